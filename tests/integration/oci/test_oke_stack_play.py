# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_stack by ansible-playbook: its inventory reaches an operator host through a real sshd as jump host."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import oci_site
from support.fake_oci import Answer, FakeOci, Request
from support.fake_stacks import Stacks, World
from support.paths import ROOT
from support.sshd import Server, sshd

GPU, SECRET = "ocid1.compartment.oc1..gpu", "hunter2-hunter2"
BASTION, OPERATOR = "192.0.2.5", "192.0.2.9"
"""Addresses for documentation: ssh_config leads them to the loopback."""
TERRAFORM = """
variable "cluster_name" { default = "x" }
variable "compartment_ocid" {}
variable "admin_password" { default = "" }
"""


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.folder, self.fake = folder, fake
        self.stacks = Stacks(fake)
        self.stacks.seconds = dict.fromkeys(self.stacks.seconds, 0.0)
        user = getpass.getuser()
        outputs = {"cluster_id": oci_site.cluster(fake)["id"], "cluster_name": "train"}
        outputs.update({"bastion_public_ip": BASTION, "bastion_ssh_user": user})
        outputs.update({"operator_private_ip": OPERATOR, "operator_ssh_user": user, "grafana_admin_password": SECRET})
        self.stacks.world = World(resources={"module.oke.cluster": "x"}, outputs=outputs, echo=True)
        fake.register("/20180222/clusters", self.kubeconfig)
        with zipfile.ZipFile(folder / "stack.zip", "w") as archive:
            archive.writestr("variables.tf", TERRAFORM)
        self.inventory = folder / "train.yml"
        self.variables = {
            "compartment": GPU,
            "name": "train",
            "service_endpoint": url,
            "config_file": str(oci_site.config_file(config, folder)),
            "inventory": str(self.inventory),
            "kubeconfig_dest": str(folder / "kubeconfig"),
        }
        self.made = {
            "zip": str(folder / "stack.zip"),
            "variables": {"cluster_name": "train"},
            "secret_variables": {"admin_password": SECRET},
        }

    def kubeconfig(self, fake: FakeOci, request: Request) -> Any:
        return Answer(b"apiVersion: v1\nkind: Config\n") if request.path.endswith("/kubeconfig/content") else None

    def play(self, *args: str, **changes: Any) -> str:
        given = {**self.variables, **changes}
        task = {"gpuops.rdma.oci_stack": given, "name": "Stack", "register": "stack"}
        shown = {"ansible.builtin.debug": {"var": "stack"}, "name": "Result"}
        document = [{"hosts": "localhost", "gather_facts": False, "tasks": [task, shown]}]
        (self.folder / "play.yml").write_text(yaml.safe_dump(document))
        return ansible("ansible-playbook", str(self.folder / "play.yml"), "-i", "localhost,", "-vv", *args)


def ansible(program: str, *args: str, **environment: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *args],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return f"{done.stdout}{done.stderr}\nrc={done.returncode}\n"


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_made_once_and_written_down(site: Site) -> None:
    first = site.play(**site.made)
    assert "failed=0" in first and "changed=1" in first, first
    assert "Creation complete" in first and SECRET not in first and "admin_password = (hidden)" in first
    groups = yaml.safe_load(site.inventory.read_text())["all"]["children"]
    assert set(groups) == {"clusters", "bastion", "operator"} and SECRET not in site.inventory.read_text()
    assert (site.folder / "kubeconfig").stat().st_mode & 0o777 == 0o600
    again = site.play(**site.made)
    assert "changed=0" in again and "failed=0" in again and "did: []" in again, again


def test_a_cluster_that_is_there_is_taken_as_it_is(site: Site) -> None:
    key = next(iter(site.fake.tables["clusters"]))
    output = site.play(cluster=key, jump="opc@gate")
    assert "failed=0" in output and not site.stacks.stacks, output
    (told,) = yaml.safe_load(site.inventory.read_text())["all"]["children"]["clusters"]["hosts"].values()
    assert told["oci_cluster_id"] == key and told["oci_public_endpoint"] == "203.0.113.10:6443"
    assert told["oci_bastion"] == ["opc@gate"] and told["oci_compartment_id"] == GPU


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Server]]:
    """Two sshd on the loopback that take the same key."""
    with sshd(tmp_path, "bastion") as bastion, sshd(tmp_path, "operator") as operator:
        yield {"bastion": bastion, "operator": operator}


@pytest.mark.parametrize("by", ["agent", "key"])
def test_the_operator_host_is_reached_through_the_bastion(site: Site, servers: dict[str, Server], by: str) -> None:
    """With ProxyJump where the agent has the key (here: ssh_config), with ProxyCommand where a file is named."""
    key = {"ssh_key": str(servers["bastion"].key)} if by == "key" else {}
    assert "failed=0" in site.play(**site.made, **key)
    places = [(BASTION, "bastion"), (OPERATOR, "operator")]
    config = site.folder / "ssh_config"
    hosts = [f"Host {address}\n  HostName 127.0.0.1\n  Port {servers[name].port}\n" for address, name in places]
    common = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  IdentitiesOnly yes\n"
    config.write_text("".join(hosts) + common + (f"  IdentityFile {servers['bastion'].key}\n" if by == "agent" else ""))
    # What is given by -F goes on to a ProxyJump; a ProxyCommand is a command of its own.
    # No shared connection: one of an earlier test would go to where that one went.
    ssh = {"PATH": _ssh_with(site.folder, config), "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    output = ansible("ansible", "operator", "-i", str(site.inventory), "-m", "raw", "-a", "echo over", **ssh)
    assert "train-operator | CHANGED" in output and "over" in output and "rc=0" in output, output
    log = servers["bastion"].log.read_text()
    assert f"target 127.0.0.1 port {servers['operator'].port}" in log, log[-2000:]


def _ssh_with(folder: Path, config: Path) -> str:
    """A PATH whose ssh reads this ssh_config, instead of that of who runs the tests."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"
