# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sandbox's control plane: its folder, its processes, and a small client for its API server.

Everything of a sandbox is in one folder. A process is only ever ended by the pid that this sandbox wrote down, and only
while that pid's command line still names the sandbox's folder.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import urllib3
import yaml

from . import build, login, openshift, stages
from .context import FAULTS_FILE, REPO, Fault, read_faults, write_faults
from .kubelets import hosts, images, programs
from .kubelets.realnodes import ADDRESS, DOMAIN, GRACE, SERVICE_ADDRESS, RealError, RealNodes, refusals
from .nodes import SERVICE_NETWORK, Fleet, Pool
from .real import PROGRAMS

Json = dict[str, Any]
Say = Callable[[str], None]

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok-controller")
IMPATIENT = ("kube-controller-manager", "kube-scheduler")
"""Those that end if the API server is not healthy 10 s after their start; kubelets start static pods again."""
CONTROLLERS = "controllers"
READY_FILE = "controllers.ready"
MANAGER = "gpuops-sandbox"
INIT_PROGRESS_UP_TO = 100
"""Nodes up to which pods pass through Init:k/n; beyond it the extra write per pod costs more than it shows."""
ACCOUNTS = "gpuops-access"
"""Namespace of accounts with narrow rights; the audit log has their requests."""
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{ACCOUNTS}"]},
        {"level": "None"},
    ],
}
PARALLEL = 8
LARGE = 100
"""Nodes from which on the control plane's garbage collector is given memory for time: with 200 nodes that saves 2 of 5
CPU seconds, and makes kube-apiserver twice as big."""

_EXTRA_ARGS = (
    f"kube-apiserver=service-cluster-ip-range={SERVICE_NETWORK}",
    f"kube-controller-manager=service-cluster-ip-range={SERVICE_NETWORK}",
    # The simulated kubelet listens on 127.0.0.1, which nodes.py publishes as InternalDNS; real ones have no such name.
    "kube-apiserver=kubelet-preferred-address-types=InternalDNS,InternalIP",
    "etcd=unsafe-no-fsync=true",
    # It writes on each node, by how many there are, what only kubelets read.
    "kube-controller-manager=controllers=*,-ttl-controller",
    # There is one of each: nobody to elect, and no lease that ends one on a busy machine or that its restart waits for.
    *(f"{name}=leader-elect=false" for name in COMPONENTS[2:4]),
)


class SandboxError(Exception):
    """What was asked of a sandbox cannot be done; str() is the whole message."""


class ApiError(SandboxError):
    """The API server refused. ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def home() -> Path:
    """The folder of all sandboxes."""
    return Path(os.environ.get("GPUOPS_SANDBOX_HOME") or REPO / ".cache" / "sandbox").absolute()


@dataclass
class Spec:
    """What ``up`` was asked for; kept as sandbox.json."""

    pools: list[list[Any]]
    cpu_nodes: int
    profile: str = "current"
    platform: str = "oke"
    ocp: str = ""
    """OpenShift's version with platform openshift, else ""."""
    region: str = "phx"
    without: list[str] = field(default_factory=list)
    small: bool = False
    kubeconfig: str = ""
    """A second place for the kubeconfig, chosen by the user; "" for none."""
    kubelets: int = 0
    """So many of the GPU nodes, the first ones, are real: with a kubelet and containers."""
    machine: str = ""
    """A folder of images: the real nodes have this machine's own GPUs, files and these images; "" for none of it."""

    names: str = ""
    """Pattern of the nodes' names; "" for their addresses."""
    real: dict[str, str] = field(default_factory=dict)
    """The operators' own programs: name in real.py -> path."""

    def fleet(self) -> Fleet:
        return Fleet(
            names=self.names,
            pools=tuple(Pool(*pool) for pool in self.pools),
            cpu_nodes=self.cpu_nodes,
            profile=self.profile,
            platform=self.platform,
            ocp=self.ocp,
            region=self.region,
            kubelet=build.version("k8s.io/kubernetes"),
            small=self.small,
            real=self.kubelets,
            machine=bool(self.machine),
        )


class Api:
    """A client for the sandbox's API server; thread-safe, keeps its connections."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
        folder = kubeconfig.parent / "pki"
        self.host = cluster["server"]
        self._pool = urllib3.PoolManager(
            maxsize=PARALLEL,
            block=True,
            cert_file=str(_inline(folder / "admin.crt", user["client-certificate-data"])),
            key_file=str(_inline(folder / "admin.key", user["client-key-data"])),
            ca_certs=str(_inline(folder / "ca.crt", cluster["certificate-authority-data"])),
            retries=urllib3.Retry(connect=3, read=0, redirect=0, status=0, other=0, backoff_factor=0.2),
            timeout=urllib3.Timeout(connect=5, read=120),
        )

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", accept: str = "") -> Json:
        """One request; the answer's document. Raises ApiError on a status of 400 or more."""
        headers = {"Accept": accept or "application/json", "Content-Type": kind}
        data = None if body is None else json.dumps(body)
        try:
            answer = self._pool.request(method, self.host + path, body=data, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(f"{method} {path}: no answer from {self.host}: {error}", 0) from error
        if answer.status >= 400:
            raise ApiError(f"{method} {path}: {answer.status} {_message(answer.data)}", answer.status)
        try:
            document: Json = json.loads(answer.data)
        except ValueError:
            document = {"text": answer.data.decode(errors="replace")}
        return document

    def find(self, path: str) -> Json | None:
        """The object, or None when there is none."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, obj: Json) -> None:
        """Create; nothing is done when it exists."""
        try:
            self.call("POST", f"{path}?fieldManager={MANAGER}", obj)
        except ApiError as error:
            if error.status != 409:
                raise

    def apply(self, path: str, obj: Json) -> None:
        """Server-side apply to the object's own path."""
        self.call("PATCH", f"{path}?fieldManager={MANAGER}&force=true", obj, kind="application/apply-patch+yaml")

    def merge(self, path: str, body: Json) -> None:
        self.call("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str, body: Json | None = None) -> None:
        """Delete; nothing is done when it is not there."""
        try:
            self.call("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    def ready(self) -> bool:
        try:
            self.call("GET", "/readyz")
        except ApiError:
            return False
        return True

    def node_states(self) -> dict[str, str]:
        """Node name -> ``Ready``, ``NotReady``, ... as kubectl prints it: the server's table, not 31 KB a node."""
        accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
        rows = self.call("GET", "/api/v1/nodes?includeObject=None&resourceVersion=0", accept=accept)["rows"] or []
        return {row["cells"][0]: row["cells"][1] for row in rows}


class Sandbox:
    """One sandbox, existing or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = home() / name
        self.failed = self.state.with_name(f"{name}.failed")
        self.kubeconfig = self.state / "kubeconfig"
        self.admin = self.state / "admin.kubeconfig"
        """For the sandbox itself: by client certificate, the user's is by a login program."""
        self.faults_file = self.state / FAULTS_FILE
        self.real = RealNodes(self.state)
        self._cluster = self.state / "kwok" / "clusters" / name

    # what is there

    def exists(self) -> bool:
        return (self.state / "sandbox.json").exists()

    def spec(self) -> Spec:
        if not self.exists():
            known = ", ".join(names()) or "none"
            raise SandboxError(f"no sandbox is called {self.name!r} (in {home()}: {known}); 'sandbox up' makes one")
        return Spec(**json.loads((self.state / "sandbox.json").read_text()))

    def api(self) -> Api:
        return Api(self.admin)

    def faults(self) -> list[Fault]:
        return read_faults(self.faults_file)

    def pid_file(self, component: str) -> Path:
        folder = self.state if component == CONTROLLERS else self._cluster / "pids"
        return folder / f"{component}.pid"

    def log_file(self, component: str) -> Path:
        if component in PROGRAMS:
            return self.state / "programs" / f"{component}.log"
        folder = self.state if component == CONTROLLERS else self._cluster / "logs"
        return folder / f"{component}.log"

    def process(self, component: str) -> psutil.Process | None:
        """The component's process if it runs and is truly ours."""
        try:
            process = psutil.Process(int(self.pid_file(component).read_text()))
            ours = any(part.startswith(str(self.state)) for part in process.cmdline())
            return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.Error):
            return None

    def dead(self) -> list[str]:
        """The components that should run and do not."""
        return [name for name in (*COMPONENTS, CONTROLLERS) if self.process(name) is None] + self.real.dead()

    def last_words(self, component: str) -> str:
        """The end of its log."""
        path = self.log_file(component)
        return "\n".join(path.read_text(errors="replace").strip().splitlines()[-15:]) if path.exists() else "no log"

    def environment(self) -> dict[str, str]:
        """Variables under which kubectl, helm and Ansible work on this sandbox and leave the user's own settings."""
        helm = self.state / "helm"
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "K8S_AUTH_KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{build.folder()}{os.pathsep}{os.environ.get('PATH', '')}",
            "HELM_CACHE_HOME": str(helm / "cache"),
            "HELM_CONFIG_HOME": str(helm / "config"),
            "HELM_DATA_HOME": str(helm / "data"),
        }

    # making and repairing it

    def create(self, spec: Spec, faults: Iterable[Fault], say: Say, download: bool = False) -> None:
        """Start the control plane and make the nodes. On failure nothing is left running."""
        if spec.kubelets and (against := refusals(self.state, spec.kubelets)):
            raise SandboxError(f"no real nodes can be made: {'; '.join(against)}")
        binaries, held = build.ensure(say, download), list(faults)
        if spec.kubelets:
            programs.ensure(say)
            offered = (Path(spec.machine), images.MACHINE_RULES) if spec.machine else (images.ensure(say), images.RULES)
        self.state.mkdir(parents=True)
        try:
            write_faults(self.faults_file, held)
            port = self.real.start_hub(*offered) if spec.kubelets else 0
            self._start_control_plane(binaries, download, say, _go_settings(spec), port)
            self._write_kubeconfig(spec.kubeconfig)
            if spec.ocp:
                openshift.install(self.api(), spec.ocp)
            self.start_controllers(spec)
            self.apply_stages(spec)
            self._create_nodes(spec.fleet())
            if spec.kubelets:
                self.real.start(hosts.real_nodes(self.state, spec.fleet(), held), port, self._cluster / "pki")
            (self.state / "sandbox.json").write_text(json.dumps(asdict(spec), indent=1) + "\n")
        except BaseException as error:
            kept = self._save_logs()
            self.delete()
            if isinstance(error, (SandboxError, RealError)):
                raise SandboxError(f"{error}\nlogs are kept in {kept}") from error
            raise

    def repair(self, say: Say) -> None:
        """Start again what has died; the cluster's content is as it was."""
        dead = self.dead()
        if self.spec().kubelets:
            raise SandboxError(
                f"sandbox {self.name}: {', '.join(dead) or 'the API server'} has ended; a sandbox with real nodes "
                f"cannot be repaired: 'sandbox down {self.name}', then 'up' again"
            )
        say(f"starting again: {', '.join(dead)}")
        if set(dead) - {CONTROLLERS}:
            self._start_again(dead, self.spec())
            self._wait(self.api().ready, 300, "the API server does not get ready")
            self._restart("kwok-controller", self._drop_leases)
        if self.process(CONTROLLERS) is None:
            self.start_controllers(self.spec())

    def _start_again(self, dead: Iterable[str], spec: Spec) -> None:
        for name in dead:
            self.pid_file(name).unlink(missing_ok=True)
        self._kwokctl(build.folder(), "start", "cluster", "--timeout", "300s", settings=_go_settings(spec))

    def _start_control_plane(
        self, binaries: Path, download: bool, say: Say, settings: Mapping[str, str], port: int
    ) -> None:
        """kwokctl takes the same free ports each time: one at a time on a machine, and once more if it lost a race."""
        with build.locked(build.cache_home() / "ports.lock"):
            try:
                self._create_control_plane(binaries, download, settings, port)
            except SandboxError as error:
                say(f"{str(error).splitlines()[0]} trying once more (logs: {self._save_logs()})")
                self._end_processes()
                shutil.rmtree(self.state / "kwok")
                self._create_control_plane(binaries, download, settings, port)

    def _create_control_plane(self, binaries: Path, download: bool, settings: Mapping[str, str], port: int) -> None:
        """``port``: with real nodes, that of the API server."""
        flags: list[str] = []
        if not download:
            for flag, name in {"etcd": "server", "kwok-controller": "kwok"}.items():
                flags += [f"--{flag}-binary", str(binaries / name)]
            for name in COMPONENTS[1:4]:
                flags += [f"--{name}-binary", str(binaries / name)]
        policy = self.state / "audit.yml"
        policy.write_text(yaml.safe_dump(AUDIT))
        for extra in _one_each_first([*_EXTRA_ARGS, *(_for_real_nodes(self._cluster / "pki") if port else [])]):
            flags += ["--extra-args", extra]
        if port:
            flags += ["--kube-apiserver-port", str(port)]
        self._kwokctl(
            binaries,
            *("create", "cluster", "--runtime", "binary", *flags),
            *("--disable-qps-limits", "--secure-port", "--kube-authorization", "--kube-audit-policy", str(policy)),
            *("--enable-crds", "Stage,Logs,ClusterLogs,Exec,ClusterExec"),
            *("--kubeconfig", str(self.state / "kwok" / "kubeconfig"), "--wait", "60s"),
            settings=settings,
        )

    def _kwokctl(self, binaries: Path, *arguments: str, settings: Mapping[str, str]) -> None:
        """``settings``: further variables for the processes that it starts."""
        config = self.state / "kwok" / "kwokctl.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        options: Json = {"bindAddress": "127.0.0.1"}
        if within := self.real.within():
            names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
            options = {"bindAddress": "0.0.0.0", "kubeApiserverCertSANs": [ADDRESS, SERVICE_ADDRESS, *names]}
        version = {"kind": "KwokctlConfiguration", "apiVersion": "config.kwok.x-k8s.io/v1alpha1"}
        config.write_text(yaml.safe_dump({**version, "options": options}))
        environment = {
            **os.environ,
            "KWOK_WORKDIR": str(self.state / "kwok"),
            "KWOK_KUBECTL_BINARY": str(binaries / "kubectl"),
            "KWOK_ETCDCTL_BINARY": "true",
            "KWOK_KUBE_VERSION": build.version("k8s.io/kubernetes"),
            **settings,
        }
        command = [*within, str(binaries / "kwokctl"), "--name", self.name, "--config", str(config), *arguments]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SandboxError(f"kwokctl {arguments[0]} failed:\n{(done.stderr or done.stdout).strip()[-1500:]}")

    def _write_kubeconfig(self, second: str) -> None:
        """The sandbox's own kubeconfig, which needs no other file, and the user's."""
        config = yaml.safe_load((self._cluster / "kubeconfig.yaml").read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        name = f"sandbox-{self.name}"

        def write(path: Path, credential: Json) -> None:
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "clusters": [{"name": name, "cluster": {"server": cluster["server"], **_data(cluster, _CA)}}],
                "users": [{"name": name, "user": credential}],
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(yaml.safe_dump(document))

        write(self.admin, _data(user, *_CLIENT))
        api = self.api()
        for path, obj in login.objects().items():
            api.create(path, obj)
        account = api.call("GET", f"/api/v1/namespaces/{login.SPACE}/serviceaccounts/{login.USER}")
        by_program = login.write(self.state / "login", account["metadata"]["uid"], self._cluster / "pki" / "admin.key")
        for path in [self.kubeconfig, *([Path(second)] if second else [])]:
            write(path, by_program)

    def start_controllers(self, spec: Spec) -> None:
        """Start the process of simulated controllers; it is ready when READY_FILE exists."""
        (self.state / READY_FILE).unlink(missing_ok=True)
        here = Path(__file__).resolve().parents[1]
        command = [sys.executable, "-m", "gpuops_sandbox.controllers", "--state", str(self.state)]
        command += [
            "--profile",
            spec.profile,
            "--platform",
            spec.platform,
            "--ocp",
            spec.ocp,
            "--without",
            ",".join(spec.without),
            *(word for name, path in spec.real.items() for word in ("--real", f"{name}={path}")),
        ]
        environment = {**os.environ, **self.environment(), "PYTHONPATH": str(here), "PYTHONUNBUFFERED": "1"}
        with self.log_file(CONTROLLERS).open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.pid_file(CONTROLLERS).write_text(str(process.pid))

    def apply_stages(self, spec: Spec) -> None:
        """Give kwok the Stages for the faults that hold now."""
        api, fleet = self.api(), spec.fleet()
        show_init = fleet.gpu_nodes <= INIT_PROGRESS_UP_TO
        for stage in stages.stages(self.faults(), show_init, spec.real):
            path = f"/apis/kwok.x-k8s.io/v1alpha1/stages/{stage['metadata']['name']}"
            api.apply(path, stage)

    def _create_nodes(self, fleet: Fleet) -> None:
        api, broken = self.api(), [fault.node for fault in self.faults() if fault.kind == "node-not-ready"]
        fleet = replace(fleet, port=self._kubelet_port(), broken=frozenset(broken))
        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in pool.map(lambda node: api.create("/api/v1/nodes", node), fleet.nodes()):
                pass

    def _kubelet_port(self) -> int:
        process = self.process("kwok-controller")
        flags = process.cmdline() if process else []
        ports = [int(flag.partition("=")[2]) for flag in flags if flag.startswith("--node-port=")]
        if not ports:
            raise SandboxError(f"sandbox {self.name}: kwok-controller has ended; see its log")
        return ports[0]

    def wait_ready(self, spec: Spec, timeout: float) -> None:
        """Until all nodes are Ready (but those with the fault node-not-ready) and the controllers have started."""
        api, broken = self.api(), {fault.node for fault in self.faults() if fault.kind == "node-not-ready"}
        fleet = spec.fleet()
        total = fleet.gpu_nodes + fleet.cpu_nodes
        # The node controller takes them in order, by 8 workers, so the last ones speak for all.
        watched = [name for name in [*fleet.gpu_names()[-8:], *fleet.cpu_names()] if name not in broken]

        late = set(IMPATIENT)

        def nodes_ready() -> bool:
            dead = self.dead()
            for component in dead:
                if component not in late:
                    raise SandboxError(f"sandbox {self.name}: {component} has ended:\n{self.last_words(component)}")
            if dead:
                self._wait(api.ready, timeout, "the API server does not get ready")
                self._start_again(dead, spec)
                late.difference_update(dead)
            if not all(_settled(api, name) for name in watched):
                return False
            states = api.node_states()
            return sum(state.startswith("Ready") != (name in broken) for name, state in states.items()) >= total

        otherwise = "not all nodes get Ready ('sandbox logs kwok-controller' may say why)"
        self._wait(nodes_ready, timeout, otherwise, pause=0.2 + total / 1000)
        for node in hosts.real_nodes(self.state, fleet, ()):
            # A kubelet that registers takes extended resources away.
            status = {"capacity": dict(node.capacity), "allocatable": dict(node.capacity)}
            api.merge(f"/api/v1/nodes/{node.name}/status", {"status": status})
        if spec.kubelets:
            self._wait(self.real.services_ready, timeout, "kube-proxy has no rules for the API server's Service")
        self._wait(self.controllers_ready, timeout, "the simulated controllers do not start")

    def controllers_ready(self) -> bool:
        if self.process(CONTROLLERS) is None:
            raise SandboxError(f"the simulated controllers ended:\n{self.last_words(CONTROLLERS)}")
        return (self.state / READY_FILE).exists()

    def _wait(self, reached: Callable[[], bool], timeout: float, otherwise: str, pause: float = 0.2) -> None:
        deadline = time.monotonic() + timeout
        while not reached():
            if time.monotonic() > deadline:
                raise SandboxError(f"sandbox {self.name}: {otherwise}, after {timeout:.0f} s")
            time.sleep(pause)

    # ending it

    def delete(self) -> None:
        """End the processes and remove the folder."""
        self._end_processes()
        if self.real.there():
            self.real.end()
        self._remove_second_kubeconfig()
        shutil.rmtree(self.state, ignore_errors=True)

    def _end_processes(self) -> None:
        processes = [process for name in (CONTROLLERS, *reversed(COMPONENTS)) if (process := self.process(name))]
        for process in processes:
            _signal(process, signal.SIGKILL)
        _ended(processes, 10)

    def _save_logs(self) -> Path:
        """Copy the logs into NAME.failed beside the sandbox's folder; 'sandbox down' removes it."""
        shutil.rmtree(self.failed, ignore_errors=True)
        self.failed.mkdir(parents=True)
        for name in (*COMPONENTS, CONTROLLERS, *PROGRAMS):
            if self.log_file(name).exists():
                shutil.copy(self.log_file(name), self.failed)
        for path in self.real.logs():
            shutil.copy(path, self.failed / path.relative_to(self.state).as_posix().replace("/", "-"))
        return self.failed

    def _remove_second_kubeconfig(self) -> None:
        """Only while it still is what we wrote."""
        if not self.exists():
            return
        second = Path(self.spec().kubeconfig or self.kubeconfig)
        same = second.exists() and self.kubeconfig.exists() and second.read_bytes() == self.kubeconfig.read_bytes()
        if second != self.kubeconfig and same:
            second.unlink()

    def restart_apiserver(self, down: float = 1.0) -> None:
        """Stop kube-apiserver, stay without it for ``down`` seconds, start it again with the same command.

        kwok is restarted too: its watches come back up to 30 s later than a kubelet's do.
        """
        # While it is away another sandbox that starts must not take its port.
        with build.locked(build.cache_home() / "ports.lock"):
            self._restart("kube-apiserver", lambda: time.sleep(down))
            self._wait(self.api().ready, 300, "the API server does not get ready after its restart")
        self._restart("kwok-controller", self._drop_leases)

    def _drop_leases(self) -> None:
        """New processes wait until the leases of the old ones run out: kwok for nodes (200 s), the others to lead."""
        for namespace in ("kube-node-lease", "kube-system"):
            self.api().delete(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")

    def _restart(self, component: str, meanwhile: Callable[[], None]) -> None:
        process = self.process(component)
        if process is None:
            raise SandboxError(f"sandbox {self.name}: {component} does not run; 'sandbox up' repairs it")
        command, folder, environment = process.cmdline(), process.cwd(), process.environ()
        _signal(process, signal.SIGTERM)
        if not _ended([process], 1):
            _signal(process, signal.SIGKILL)
            _ended([process], 10)
        meanwhile()
        with self.log_file(component).open("ab") as log:
            started = subprocess.Popen(
                [*self.real.within(), *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid_file(component).write_text(str(started.pid))


def _one_each_first(extra: Iterable[str]) -> list[str]:
    """The order in which kwokctl takes them: it counts a component's place over all arguments."""
    seen: set[str] = set()
    first, rest = [], []
    for one in extra:
        component = one.partition("=")[0]
        (rest if component in seen else first).append(one)
        seen.add(component)
    return [*first, *rest]


def _for_real_nodes(pki: Path) -> list[str]:
    """Further arguments of the control plane, which then has a network of its own."""
    return [
        f"kube-apiserver=advertise-address={ADDRESS}",
        f"kube-apiserver=kubelet-client-certificate={pki / 'admin.crt'}",
        f"kube-apiserver=kubelet-client-key={pki / 'admin.key'}",
        "kube-apiserver=enable-admission-plugins=NodeRestriction",
        # Last wins: kwok alone has all nodes by default.
        "kwok-controller=manage-all-nodes=false",
        "kwok-controller=manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"kwok-controller=node-lease-duration-seconds={GRACE}",
        f"kube-controller-manager=node-monitor-grace-period={GRACE}s",
        "kube-controller-manager=node-monitor-period=2s",
    ]


_CA = ("certificate-authority-data", "certificate-authority")
_CLIENT = (("client-certificate-data", "client-certificate"), ("client-key-data", "client-key"))


def names() -> list[str]:
    """The sandboxes that exist."""
    return sorted(path.parent.name for path in home().glob("*/sandbox.json"))


def _data(source: Mapping[str, str], *keys: tuple[str, str]) -> dict[str, str]:
    """``*-data`` entries of a kubeconfig, read from the files where they are given as files."""
    return {
        inline: source.get(inline) or base64.b64encode(Path(source[by_file]).read_bytes()).decode()
        for inline, by_file in keys
    }


def _inline(path: Path, data: str) -> Path:
    """TLS wants files: the kubeconfig's inline certificate as one, beside the kubeconfig."""
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(data))
    return path


def _go_settings(spec: Spec) -> dict[str, str]:
    """Of Go's garbage collector; what the user has set stays."""
    fleet = spec.fleet()
    if fleet.gpu_nodes + fleet.cpu_nodes < LARGE or "GOGC" in os.environ:
        return {}
    return {"GOGC": "400", "GOMEMLIMIT": str(psutil.virtual_memory().total // 3)}


def _settled(api: Api, name: str) -> bool:
    """The node controller has seen the node: the taint that every new node has is gone."""
    taints = api.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints") or []
    return all(taint["key"] != "node.kubernetes.io/not-ready" for taint in taints)


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _ended(processes: Iterable[psutil.Process], timeout: float) -> bool:
    """Wait until none of them runs. A zombie counts as ended: who should reap it may never do so in a container."""
    deadline = time.monotonic() + timeout
    while any(_runs(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data).get("message") or data[:300])
    except (ValueError, AttributeError):
        return data[:300].decode(errors="replace")
