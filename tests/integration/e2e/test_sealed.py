# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/sealed_network.md: its commands as they are, where nothing but this machine can be reached. Every address that
Ansible, Helm, kubectl and the sandbox try is seen. Registry, skopeo and what carry.sh downloads with are stand-ins."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY
from support import chart_repository, page_runs, registry, sealed
from support.paths import ROOT
from support.sandboxes import BIN

PAGE, EXAMPLE = "docs/sealed_network.md", "registry.example.com:5000"
PROGRAMS = {"curl": 'touch "$3"', "sha256sum": "cat >/dev/null", "pip": "true", "ansible-galaxy": "true"}
"""What carry.sh downloads with; the program's third argument is curl's file."""


class Carried:
    """A folder in which the page's commands run. ``mirror``: the registry."""

    def __init__(self, here: Any, folder: Path, mirror: registry.Registry, charts: dict[str, Any]) -> None:
        self.here, self.folder, self.mirror = here, folder, mirror
        self.file, programs = folder / "carried", folder / "bin"
        programs.mkdir(parents=True)
        self.file.touch()
        (folder / "charts.yml").write_text(json.dumps({"rdma_charts": charts}))
        (folder / "auth.json").write_text(mirror.login())
        for name, does in PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / "skopeo").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/support/skopeo.py "$@"\n')
        for file in programs.iterdir():
            file.chmod(0o755)
        self.env = {
            "PATH": f"{programs}:{BIN}:{here.environment()['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "CARRIED": str(self.file),
            "REGISTRY_AUTH_FILE": str(folder / "auth.json"),
        }

    def run(self, ran: Sequence[Any]) -> str:
        """What these commands print, with the stand-in's address; where the internet is, the charts are its."""
        own = f'"${{@/{EXAMPLE}/{self.mirror.place}}}"'
        before = (
            f"sh() {{ command sh {own}; }}",
            'ansible-playbook() { local more=(); [ "$1" != gpuops.rdma.mirror ] || more=(-e @charts.yml); '
            f'command ansible-playbook {own} "${{more[@]}}"; }}',
        )
        done = self.here.done("bash", "-c", f"cd {self.folder}\n{page_runs.script(ran, *before)}", env=self.env)
        assert registry.PASSWORD not in done.stdout and self.mirror.login() not in done.stdout
        self.mirror.images = {line.partition("/")[2] for line in self.file.read_text().split()}
        return str(done.stdout)

    def passed(self, ran: Sequence[Any]) -> str:
        output = self.run(ran)
        faults = page_runs.failed(ran, output)
        assert not faults, "\n\n".join(faults)
        return output


@pytest.mark.e2e
@pytest.mark.skipif(not sealed.possible(), reason="this user may not make a network namespace")
def test_a_network_with_nothing_but_a_registry(pool: Any, tmp_path: Path) -> None:
    commands = list(page_runs.page_commands.commands(ROOT / PAGE))
    carry = [one for one in commands if "mirror -i" in one.text or one.text.startswith("sh ")]
    (preflight,) = (one for one in commands if "--tags preflight" in one.text)
    runs = [one for one in commands if "inputs.yml" in one.text and one is not preflight]
    assert len(carry) == 3 and len(runs) == 4, [one.text for one in commands]
    packed = [
        chart_repository.packed(tmp_path, chart_repository.directory(tmp_path, name, version))
        for name, version in (("gpu-operator", "v26.7.2"), ("network-operator", "26.7.1"))
    ]
    with sealed.network() as tried:
        for family, place in ((socket.AF_INET, "192.0.2.7"), (socket.AF_INET6, "2001:db8::7")):
            with socket.socket(family) as one, pytest.raises(ConnectionRefusedError):
                one.connect((place, 443))
        subprocess.run([sys.executable, "-c", "import socket; socket.getaddrinfo('nvcr.io', 443)"], capture_output=True)
        with pool.lease(tmp_path, "--gpu-nodes", "4") as here, registry.served() as mirror:
            control = set(tried.others())
            with chart_repository.repository(tmp_path, *packed) as charts:
                shutil.copy(ROOT / "tests/sandbox/charts/mpi-operator.yaml", tmp_path / "repository")
                one = {"repo": charts.url}
                wanted = {
                    "gpu_operator": one,
                    "network_operator": one,
                    "mpi_operator": f"{charts.url}/mpi-operator.yaml",
                }
                work = Carried(here, tmp_path / "work", mirror, wanted)
                work.passed(carry)
            listed = json.loads((work.folder / "rdma-report/mirror/list.json").read_text())
            images = [need for need in listed["needs"] if need["kind"] == "image"]
            assert len(mirror.images) == len(images) == listed["counts"]["image"], "all that is listed was carried"

            gone = next(name for name in mirror.images if "multus-cni" in name)
            work.file.write_text(work.file.read_text().replace(f"{mirror.place}/{gone}\n", ""))
            refused = work.run([preflight]) + work.run([preflight])
            assert f"image {mirror.place}/{gone}: the registry does not have it, for stage" in refused, refused[-3000:]
            work.file.write_text(work.file.read_text() + f"{mirror.place}/{gone}\n")
            work.passed([])
            work.passed([preflight])

            seen = tmp_path / "images"
            with seen.open("w") as file:
                watch = here.start("kubectl", "get", "pods", "-A", "-w", "-o", "json", stdout=file)
                here.kubectl("taint", "node", *here.nodes(), f"{GATE_KEY}=pending:NoSchedule")
                output = work.passed(runs)
                assert watch.poll() is None, "all pods were seen"
                watch.terminate()
                watch.wait()
            pods = set(re.findall(r'"image": "([^"]+)"', seen.read_text()))
            tainted = [
                one["metadata"]["name"]
                for one in here.json("kubectl", "get", "nodes")["items"]
                if GATE_KEY in str(one["spec"])
            ]
            objects = here.json(
                "kubectl", "get", "deployments,daemonsets,jobs,clusterpolicies,nicclusterpolicies", "-A"
            )
        others = set(tried.others())
    assert ("tcp", "192.0.2.7", 443) in control and ("tcp", "2001:db8::7", 443) in control
    assert any(port == 53 for _protocol, _address, port in control), "a name was looked up"
    assert others == control, f"addresses besides those of this test: {sorted(others - control)}"
    assert tried.unread == 0
    assert len([one for one in tried.addresses if one[1] == "127.0.0.1"]) > 3
    assert output.count("PASS") >= 2 and not tainted, output[-3000:]

    carried = {f"{mirror.place}/{name}" for name in mirror.images}
    assert pods and pods <= carried, sorted(pods - carried)
    assert any("nccl-tests" in name for name in pods) and any("library/python" in name for name in pods)
    assert "nvcr.io" not in yaml.safe_dump([one["spec"] for one in objects["items"]])
