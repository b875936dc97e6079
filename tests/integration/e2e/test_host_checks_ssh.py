# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/host_checks.yml over a real sshd on loopback, which serves as 20 hosts with a tree each."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import host_faults, host_trees
from support.paths import ROOT
from support.sandboxes import PLAYBOOK as ANSIBLE
from support.sshd import Server, held_port, sshd

SHAPE = "BM.GPU.H100.8"
HOSTS = 20
FAULTS = {"h03": "port-down", "h07": "peermem-not-registered", "h11": "gpu-missing", "h15": "vfs-missing"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An sshd of this test's own."""
    with sshd(tmp_path_factory.mktemp("sshd")) as one:
        yield one


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tree per host, with its own addresses."""
    folder, made = tmp_path_factory.mktemp("trees"), {}
    for index in range(HOSTS):
        name = f"h{index:02d}"
        made[name] = folder / name
        faults = [FAULTS[name]] if name in FAULTS else ()
        host_trees.build(made[name], SHAPE, faults=faults, name=name, number=index + 1)
    return made


def play(folder: Path, server: Server, trees: dict[str, Path], *args: str, **inputs: str) -> Any:
    common = {
        "ansible_host": "127.0.0.1",
        "ansible_port": server.port,
        "ansible_user": getpass.getuser(),
        "ansible_ssh_private_key_file": str(server.key),
        "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        "ansible_python_interpreter": sys.executable,
    }
    hosts: dict[str, Any] = {name: {"host_checks_root": str(path)} for name, path in trees.items()}
    inventory = folder / "hosts.yml"
    extra = {"rdma_report_dir": str(folder / "report"), "rdma_host_become": "false", **inputs}
    given = [part for key, value in extra.items() for part in ("-e", f"{key}={value}")]
    with held_port() as nobody:
        hosts["gone"] = {"ansible_port": nobody.getsockname()[1]}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
        return subprocess.run(
            [ANSIBLE, "playbooks/host_checks.yml", "-i", str(inventory), "-f", "10", *given, *args],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


@pytest.mark.e2e
@pytest.mark.parametrize("mode", [(), ("--check",)], ids=["run", "check"])
def test_twenty_hosts_over_ssh(tmp_path: Path, server: Server, trees: dict[str, Path], mode: tuple[str, ...]) -> None:
    if mode:  # as many do not make it another one
        trees = {name: tree for name, tree in trees.items() if name in ("h00", *FAULTS)}
    done = play(tmp_path, server, trees, *mode)
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output[-3000:]
    told = json.loads((tmp_path / "report" / "run" / "host.json").read_text())["hosts"]
    assert len(told) == len(trees) + 1, output[-3000:]
    for name in trees:
        fault = FAULTS.get(name)
        assert told[name]["rule"] == (host_faults.FAULTS[fault].rule if fault else ""), told[name]
        assert (told[name]["verdict"], told[name]["shape"]) == ("fail" if fault else "pass", SHAPE)
    assert told["gone"]["verdict"] == "unknown"
    assert list(told)[: len(FAULTS)] == sorted(FAULTS), "the worst hosts come first"
    findings = json.loads((tmp_path / "report" / "run" / "findings-host_checks.json").read_text())["findings"]
    unreachable = next(item for item in findings if item["subject"] == "gone")
    assert "unreachable" in unreachable["found"] and "refused" in unreachable["found"], unreachable
    assert f"host checks: {len(trees) + 1} hosts: 4 fail, 1 unknown, {len(trees) - 4} pass" in output
    if mode:
        assert done.returncode in (0, 4), output[-2000:]
    else:
        assert done.returncode != 0
        assert "Host checks fail on 4 of 21 hosts" in output


@pytest.mark.e2e
def test_rules_are_chosen_by_id(tmp_path: Path, server: Server, trees: dict[str, Path]) -> None:
    few = {name: trees[name] for name in ("h00", "h03")}
    done = play(tmp_path, server, few, "-e", '{"rdma_host_checks_select": ["gpu.missing", "nic.missing"]}')
    told = json.loads((tmp_path / "report" / "run" / "host.json").read_text())["hosts"]
    assert told["h03"]["verdict"] == "pass", (told, done.stdout[-2000:])
