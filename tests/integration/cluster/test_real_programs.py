# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of ``sandbox up --real`` run as kubelets run the containers of their pods."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpuops_sandbox import cli, real
from support import operator_programs
from support.paths import ROOT

PROGRAM = """\
#!/usr/bin/env python3
# It says who it is, listens on a port that each pod has for itself, and goes on until it is ended.
import json, os, socket, ssl, sys, time, urllib.error, urllib.request
print("args", sys.argv[1:], "host", socket.gethostname(), "file", open("/opt/brought/file").read())
account = "/var/run/secrets/kubernetes.io/serviceaccount"
server = "https://" + os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
def ask(path, body=None):
    headers = {"Authorization": "Bearer " + open(account + "/token").read(), "Content-Type": "application/json"}
    asked = urllib.request.Request(server + path, body and json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(asked, context=ssl.create_default_context(cafile=account + "/ca.crt")))
review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
print("user", ask("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]["username"])
try:
    ask("/api/v1/namespaces/" + open(account + "/namespace").read() + "/secrets")
except urllib.error.HTTPError as error:
    print("secrets", error.code)
listener = socket.create_server(("", 8081))
print("runs", os.getpid(), flush=True)
time.sleep(3600)
"""
META = {"name": "gpu-operator", "namespace": "default"}
LABELS = {"app.kubernetes.io/component": "gpu-operator"}


def deployment(version: str) -> dict[str, Any]:
    name = {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    container = {
        "name": "operator",
        "image": f"example.com/gpu-operator:v{version}",
        "command": ["gpu-operator"],
        "args": ["--leader-elect", "--namespace=$(SPACE)"],
        "env": [name],
    }
    pod = {"serviceAccountName": "gpu-operator", "containers": [container], "terminationGracePeriodSeconds": 5}
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": META, "spec": spec}


def written(path: Path, text: str = PROGRAM) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.cluster
def test_a_program_runs_as_its_pod_from_its_start_to_its_end(cluster: Any, tmp_path: Path) -> None:
    program = written(tmp_path / "gpu-operator")
    written(tmp_path / "gpu-operator-2.0", PROGRAM.replace('"runs"', '"runs-2.0"'))
    written(tmp_path / "gpu-operator.files/opt/brought/file", "brought")
    here = cluster("--gpu-nodes", "1", "--without", "all", "--real", f"gpu-operator={program}")
    log = here.sandbox.log_file("gpu-operator")

    def until(word: str, count: int) -> int:
        """The process that has written the COUNTth line that begins so."""
        deadline = time.monotonic() + 120
        while True:
            found = (
                [line.split()[1] for line in log.read_text().splitlines() if line.startswith(f"{word} ")]
                if (log.exists())
                else []
            )
            if len(found) >= count:
                return int(found[count - 1]) if found[count - 1].isdigit() else 0
            assert time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
            time.sleep(0.1)

    def pod() -> dict[str, Any]:
        (found,) = here.json("kubectl", "get", "pods", "-n", "default")["items"]
        return dict(found)

    here.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META}, deployment("1.0"))
    first = until("runs", 1)
    here.kubectl("rollout", "status", "deployment/gpu-operator", "--timeout=60s")
    said = log.read_text()
    assert f"args ['--leader-elect', '--namespace=default'] host {pod()['metadata']['name']} file brought" in said
    assert "user system:serviceaccount:default:gpu-operator" in said and "secrets 403" in said
    assert "user system:serviceaccount:default:gpu-operator" in here.kubectl("logs", "deployment/gpu-operator")
    assert not Path("/opt/brought").exists()

    here.fault("add", "controller-stopped")
    deadline = time.monotonic() + 60
    while psutil.Process(first).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    here.fault("clear")
    os.kill(first, signal.SIGKILL)
    second = until("runs", 2)
    here.kubectl("rollout", "status", "deployment/gpu-operator", "--timeout=60s")
    (container,) = pod()["status"]["containerStatuses"]
    assert (container["restartCount"], container["lastState"]["terminated"]["exitCode"]) == (1, 137)
    os.kill(second, signal.SIGKILL)  # the second time it is delayed, and the Deployment is not available
    here.kubectl("wait", "deployment/gpu-operator", "--for=jsonpath={.status.unavailableReplicas}=1", "--timeout=60s")
    assert "CrashLoopBackOff" in here.kubectl("get", "pods", "-n", "default")

    here.apply(deployment("2.0"))  # both pods listen on one port: the older one is there until the newer one is ready
    third = until("runs-2.0", 1)
    here.kubectl("rollout", "status", "deployment/gpu-operator", "--timeout=60s")
    here.kubectl("delete", "deployment", "gpu-operator", "--timeout=60s")
    here.kubectl("wait", "pods", "-l", "app.kubernetes.io/component", "--for=delete", "--timeout=60s")
    assert not [pid for pid in (first, second, third) if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("gpu-operator=/nowhere/program", "--real gpu-operator: /nowhere/program is not there, nor"),
        ("gpu-operator={}", "is not executable"),
        ("gpu-operater=/bin/sh", "write NAME=PATH, with one of the names gpu-operator, "),
        ("gpu-operator", "write NAME=PATH"),
    ],
)
def test_what_cannot_run_is_refused_by_name(asked: str, words: str, tmp_path: Path, capsys: Any) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    assert cli.main(["up", "--name", "refused", "--real", asked.format(plain)]) == 1
    assert words in capsys.readouterr().err


def test_the_program_of_a_version_is_preferred(tmp_path: Path) -> None:
    image = "nvcr.io/nvidia/mellanox/sriov-network-operator:network-operator-v26.7.1"
    one = tmp_path / "sriov-network-operator"
    assert real.program(one, image) is None
    assert "nor" in real.problem(one)
    newest = written(tmp_path / "sriov-network-operator-26.7.1")
    assert (real.program(one, image), real.problem(one)) == (newest, "")
    assert real.program(one, image.replace("26.7.1", "26.4.2")) is None
    assert real.program(written(one), image.replace("26.7.1", "26.4.2")) == one
    assert real.version("example.com/a/b:v26.7.0-ubi9@sha256:12.5") == "26.7.0-ubi9"


@pytest.mark.parametrize("folder", ["", "/nowhere", "{}"])
def test_the_target_names_what_is_missing(folder: str, tmp_path: Path) -> None:
    written(tmp_path / "network-operator-26.7.1")
    done = subprocess.run(
        ["make", "-s", "test-operators", f"PROGRAMS={folder.format(tmp_path)}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert done.returncode and "Traceback" not in text
    assert "gpu-operator-26.7.2" in text and "network-operator-23.10.0" in text
    assert ("\n  network-operator-26.7.1 " in text) == (folder != "{}")


def test_the_stand_ins_are_programs_for_the_target() -> None:
    assert operator_programs.missing(ROOT / "tests/sandbox/programs") == []
    options = operator_programs.options(ROOT / "tests/sandbox/programs")
    assert [word.partition("=")[0] for word in options[1::2]] == [
        "gpu-operator", "network-operator", "sriov-network-operator", "network-operator-keep-ncp"
    ]  # fmt: skip
