# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the pages, as they are, one page after the other in a shell of its own: support/page_runs.yml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import matrix, page_runs
from support.paths import ROOT
from support.sandboxes import BIN
from support.sshd import sshd

CHARTS = 'ansible-playbook() { command ansible-playbook "$@" -e @charts.yml; }'
"""NVIDIA's repository of charts cannot be reached from here: the sandbox's stand for its."""
SSH = 'ssh() { command ssh -F "$HOME/.ssh/config" "$@"; }'
"""OpenSSH takes the home of the account, not HOME."""


def prepared(here: Any, work: Path) -> None:
    """What the pages take for granted: a pool that shares its GPUs, a team's namespace, the charts."""
    here.kubectl("create", "namespace", "team-a")
    here.kubectl("label", "node", here.nodes()[0], "oke.oraclecloud.com/pool.name=small-jobs", "--overwrite")
    (work / "charts.yml").write_text(json.dumps(page_runs.charts()))


@matrix.only("every command of the pages")
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
            ran = page_runs.here(page)
            text = page_runs.script(ran, CHARTS, SSH)
            fault = page_runs.TABLE["faults"].get(page)
            if fault:
                here.fault("add", fault)
            done = here.done("bash", "-c", f"cd {work}\n{text}", env=env, timeout=1800)
            if fault:
                here.fault("clear", fault)
            faults += page_runs.failed(ran, done.stdout)
            (tmp_path / f"{Path(page).stem}.log").write_text(done.stdout)
    assert not faults, "\n\n".join(faults)
