# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the pages, as they are, one page after the other in a shell of its own: support/page_runs.yml."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import page_runs
from support.paths import ROOT
from support.sandboxes import BIN
from support.sshd import sshd

MARK = "@@ status of command"


CHARTS = 'ansible-playbook() { command ansible-playbook "$@" -e @charts.yml; }'
"""NVIDIA's repository of charts cannot be reached from here: the sandbox's stand for its."""
SSH = 'ssh() { command ssh -F "$HOME/.ssh/config" "$@"; }'
"""OpenSSH takes the home of the account, not HOME."""


def script(page: str) -> str:
    """The page's commands, each followed by a line with its status."""
    parts = [f"{one.text}\necho '{MARK}' {number} $?" for number, one in enumerate(page_runs.here(page))]
    return "\n".join(["exec 2>&1", CHARTS, SSH, *parts])


def prepared(here: Any, work: Path) -> None:
    """What the pages take for granted: a pool that shares its GPUs, a team's namespace, the charts."""
    here.kubectl("create", "namespace", "team-a")
    here.kubectl("label", "node", here.nodes()[0], "oke.oraclecloud.com/pool.name=small-jobs", "--overwrite")
    charts = yaml.safe_load((ROOT / "inventories/sandbox/group_vars/all.yml").read_text())
    folder = {"inventory_dir | dirname | dirname": str(ROOT), "rdma_profile | default('current')": "current"}
    text = re.sub(r"{{ (.*?) }}", lambda found: folder[found[1]], json.dumps(charts))
    (work / "charts.yml").write_text(text)


def failed(page: str, output: str) -> list[str]:
    """The commands that ended with another status than the table's, each with what it printed."""
    parts = re.split(rf"^{MARK} (\d+) (\d+)\n", output, flags=re.MULTILINE)
    ended = {int(number): (int(status), text) for text, number, status in zip(parts[::3], parts[1::3], parts[2::3])}
    found = []
    for number, one in enumerate(page_runs.here(page)):
        expected = (page_runs.entry("ends", one) or {"status": 0})["status"]
        status, text = ended.get(number, (-1, output[-2000:]))
        if status != expected:
            found.append(f"{one.place}: {one.text}\nended with {status}, not {expected}:\n{text[-2500:]}")
        elif (line := missing(one.shows, text)) is not None:
            found.append(f"{one.place}: {one.text}\ndoes not print {line!r}:\n{text[-6000:]}")
    return found


def missing(shown: str, output: str) -> str | None:
    """The first line of a page's text that is not in the output, in its order. ``...`` stands for what was left out;
    seconds and other numbers with a decimal point differ from run to run."""
    rest = iter([plain(line) for line in output.splitlines()])
    for line in shown.splitlines():
        parts = [part.strip() for part in plain(line).split("...")]
        if any(parts) and not any(all(part in other for part in parts) for other in rest):
            return line
    return None


def plain(line: str) -> str:
    text = re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])|\d+(?= s\b)", "N", line)
    return " ".join(text.split())


@pytest.mark.skipif(os.environ.get("GPUOPS_MATRIX") != "all", reason="GPUOPS_MATRIX=all: every command of the pages")
@pytest.mark.e2e
def test_the_commands_of_the_pages_run_as_they_are(cluster: Any, tmp_path: Path) -> None:
    here = cluster("--gpu-nodes", "4")
    home = tmp_path / "home"
    for name in (".kube", ".ssh"):
        (home / name).mkdir(parents=True)
    (home / ".kube/my-cluster").write_text(Path(here.kubeconfig).read_text())
    (home / "ansible.cfg").touch()  # a user's own, empty
    env = {
        "HOME": str(home),
        "PATH": f"{BIN}:{here.environment()['PATH']}",
        "ANSIBLE_CONFIG": str(home / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"),
        "KUBECONFIG": str(home / ".kube/my-cluster"),
    }
    faults, work = [], tmp_path / "work"
    work.mkdir()
    prepared(here, work)
    with sshd(tmp_path) as bastion:
        known = "StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null"
        place = f"HostName 127.0.0.1\n  Port {bastion.port}\n  IdentityFile {bastion.key}\n  {known}"
        (home / ".ssh/config").write_text(f"Host bastion\n  {place}\n")
        for page in page_runs.TABLE["runs"]:
            done = here.done("bash", "-c", f"cd {work}\n{script(page)}", env=env, timeout=1800)
            faults += failed(page, done.stdout)
            (tmp_path / f"{Path(page).stem}.log").write_text(done.stdout)
    assert not faults, "\n\n".join(faults)
