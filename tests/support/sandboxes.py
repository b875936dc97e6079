# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandboxes of the integration tests: one pool per session, and the ways to use a sandbox."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml
from ansible import constants
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from gpuops_sandbox import cli, cluster
from gpuops_sandbox.cluster import Sandbox

from support import operator_programs, warm
from support.paths import ROOT

BIN = Path(sys.executable).parent
ANSIBLE, PLAYBOOK = str(BIN / "ansible"), str(BIN / "ansible-playbook")
SHAPE = "BM.GPU.H100.8"
PROGRAMS = os.environ.get("GPUOPS_PROGRAMS", "")
"""The folder of the operators' own programs (``make test-operators``); "" for simulated ones."""
PREFIX = "pytest"
"""A sandbox of a pool is called PREFIX-PID-N, after the process that runs the tests."""
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
UNSTEADY = {"events", "leases", "endpoints", "endpointslices", "nodes"}
"""Kinds of which the control plane makes and changes objects at any time; of nodes see ``Cluster.state``."""


class Cluster:
    """A sandbox, and what a test does with it. ``folder`` is the test's own, for what it writes."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.name, self.kubeconfig = sandbox.name, sandbox.kubeconfig

    @functools.cached_property
    def client(self) -> Client:
        return Client.connect({"kubeconfig": str(self.kubeconfig)})

    def environment(self) -> dict[str, str]:
        """For programs that work on this sandbox: its kubeconfig, kubectl and Helm; Ansible as this checkout has it."""
        ansible = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        return {**os.environ, **self.sandbox.environment(), **ansible}

    def start(self, *command: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """A program in a session of its own. ``env`` is added to environment()."""
        given = {**self.environment(), **(env or {})}
        return subprocess.Popen(command, cwd=ROOT, env=given, text=True, start_new_session=True, **options)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Ends it and all that it has started with SIGKILL: Ansible's workers are in sessions of their own. The
        next run need not wait until its Leases expire; those of another run stay. Its folder goes too: forks of this
        process share Ansible's folder for temporary files, and hundreds of kills later a process id comes again."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family.append(psutil.Process(process.pid))
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()  # what does not run starts nothing more
                family += [child for child in one.children() if child not in family]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        places = list(Path(constants.DEFAULT_LOCAL_TMP).parent.glob(f"*/gpuops-run-{process.pid}/id"))
        ids = [place.read_text() for place in places]
        for place in places:
            shutil.rmtree(place.parent, ignore_errors=True)
        path = self.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE)
        with contextlib.suppress(RdmaError):
            for found in self.client.list(path):
                if any(lease.decide(found, one, self.client.now()).state is lease.LeaseState.OURS for one in ids):
                    self.client.delete(f"{path}/{found['metadata']['name']}")

    def done(
        self, *command: str, text: str | None = None, env: Mapping[str, str] | None = None, timeout: float = 900
    ) -> subprocess.CompletedProcess[str]:
        """A program that has ended, however it ended. ``text`` is its input."""
        given = {**self.environment(), **(env or {})}
        if command[0] in (ANSIBLE, PLAYBOOK) and text is None:
            return warm.done(command, given, timeout)
        return subprocess.run(
            command, cwd=ROOT, env=given, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )

    def run(self, *command: str, text: str | None = None) -> str:
        """What a program prints that must end well."""
        done = self.done(*command, text=text, timeout=900)
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout[-500:]}{done.stderr[-1500:]}"
        return done.stdout

    def kubectl(self, *args: str) -> str:
        return self.run("kubectl", *args)

    def json(self, *command: str) -> Any:
        return json.loads(self.run(*command, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.run("kubectl", "apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def established(self) -> None:
        """Until the API server serves all definitions that there are."""
        deadline = time.monotonic() + 900
        while missing := [
            item["metadata"]["name"]
            for item in self.json("kubectl", "get", "crd")["items"]
            if ("Established", "True")
            not in [(one["type"], one["status"]) for one in item.get("status", {}).get("conditions") or []]
        ]:
            assert time.monotonic() < deadline, f"not established: {missing}"
            time.sleep(0.2)

    def fault(self, verb: str, *faults: str) -> None:
        """``add`` or ``clear``, as the sandbox's command."""
        _sandbox("fault", verb, "--name", self.name, *faults)

    def nodes(self) -> list[str]:
        """Names of the GPU nodes, in the order of their indexes."""
        return self.sandbox.spec().fleet().gpu_names()

    def state(self) -> dict[str, Any]:
        """All objects by path, each with what tells that it was made anew or changed; nodes by what was set on them."""
        api, found = self.sandbox.api(), {}
        for root in ("/api", "/apis"):
            for group in api.call("GET", root, accept=DISCOVERY)["items"]:
                version = group["versions"][0]
                place = "/".join(filter(None, [root, group["metadata"].get("name"), version["version"]]))
                for kind in version["resources"]:
                    if "list" in kind["verbs"] and kind["resource"] not in UNSTEADY:
                        path = f"{place}/{kind['resource']}"
                        for item in api.call("GET", path)["items"]:
                            meta = item["metadata"]
                            name = f"{path}/{meta.get('namespace', '')}/{meta['name']}"
                            found[name] = (meta.get("uid"), meta.get("generation"), item.get("data"))
        for node in api.call("GET", "/api/v1/nodes")["items"]:
            meta = node["metadata"]
            found[meta["name"]] = (meta["labels"], node["spec"], node["status"]["allocatable"])
        return found


def _sandbox(*command: str) -> None:
    """The sandbox's own command, in this process; what it says is shown when it fails."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(command)
    assert code == 0, f"sandbox {' '.join(command)}: {said.getvalue()[-3000:]}"


class Pool:
    """Sandboxes for one session. One that comes back as it was lent is lent again for the same options; any other is
    taken down, as cleaning one up costs what a new one costs (tests/README.md)."""

    def __init__(self) -> None:
        self._made = 0
        self._free: dict[tuple[str, ...], list[str]] = {}
        self._states: dict[str, dict[str, Any]] = {}
        for name in cluster.names():
            prefix, _, rest = name.partition("-")
            if prefix == PREFIX and not psutil.pid_exists(int(rest.partition("-")[0])):
                _sandbox("down", name)  # what a killed session left

    def lend(self, folder: Path, *options: str, again: bool = False, small: bool = True) -> Cluster:
        """A sandbox made with these options of ``sandbox up``, and --small-nodes where ``small``. ``again``: the test
        means to leave it as it is."""
        if again and self._free.get(options):
            return Cluster(Sandbox(self._free[options].pop()), folder)
        self._made += 1
        name = f"{PREFIX}-{os.getpid()}-{self._made}"
        own = operator_programs.options(Path(PROGRAMS)) if PROGRAMS and "openshift" not in options else []
        _sandbox("up", "--name", name, *(["--small-nodes"] if small else []), *own, *options)
        made = Cluster(Sandbox(name), folder)
        if again:
            self._states[name] = made.state()
        return made

    def take(self, lent: Cluster, *options: str) -> None:
        """Back from a test."""
        if lent.name in self._states and not lent.sandbox.faults() and self._states[lent.name] == lent.state():
            self._free.setdefault(options, []).append(lent.name)
        else:
            _sandbox("down", lent.name)

    @contextlib.contextmanager
    def lease(self, folder: Path, *options: str, **how: bool) -> Iterator[Cluster]:
        """``lend`` and ``take``."""
        lent = self.lend(folder, *options, **how)
        try:
            yield lent
        finally:
            self.take(lent, *options)

    def ended(self) -> dict[str, str]:
        """Sandbox and component -> the end of its log, of each that should run and does not, and of each program of
        --real."""
        lent = [Sandbox(name) for name in cluster.names() if name.startswith(f"{PREFIX}-{os.getpid()}-")]
        ended = [(one, name, "has ended") for one in lent for name in one.dead()]
        real = [
            (one, name, str(one.log_file(name)))
            for one in lent
            for name in one.spec().real
            if one.log_file(name).exists()
        ]
        return {f"{one.name}: {name} {what}": one.last_words(name) for one, name, what in [*ended, *real]}

    def close(self) -> None:
        for name in [name for names in self._free.values() for name in names]:
            _sandbox("down", name)
