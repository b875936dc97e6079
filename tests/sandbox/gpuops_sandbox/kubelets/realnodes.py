# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes and ends the real nodes of a sandbox, and the network in which its control plane then runs.

Everything is in namespaces that only processes hold, and in cgroups of one name: the end of these processes and the
removal of these cgroups is the end of it all, whatever was killed before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from ..nodes import POD_NETWORK
from . import gpus, kernel, programs

Json = dict[str, Any]

BRIDGE, ADDRESS, PREFIX = "hub0", "10.140.255.254", 16
"""The hub's bridge, which is every node's gateway, DNS server and way to the API server."""
REGISTRY_PORT = 5000
DOMAIN = "cluster.local"
SERVICE_ADDRESS = "10.96.0.1"
HUB_READY = "hub.json"
IMAGE_RULES = "images.json"
"""In the sandbox's folder: pattern of repository and tag -> the image that it is served as; the first that matches."""
UNSHARED = "unshared"
INSIDE = "/opt/gpuops"
"""In a node: bin, config, and host, the tree of files that pods see as their node's root."""
GRACE = 20
"""Seconds without a kubelet's word after which its node is given up, and for which its lease is good: 4 of its periods.
Kubernetes' own default is 50, which a test of a lost node would wait for and learn nothing more."""
MEMORY_MIB, NODE_MIB, DISK_GIB = 1500, 1000, 2
"""Of memory for the control plane and for each node, whose disk is in memory; of disk for all."""
MOST = 16
QUIET: Json = {"capture_output": True, "text": True, "check": False}
COMMANDS = ("ip", "nsenter", "openssl", "nft")
PAUSE = "registry.k8s.io/pause:3.10"


class RealError(Exception):
    """Real nodes cannot be made here; str() says why."""


@dataclass(frozen=True)
class Real:
    """One node to make."""

    name: str
    """Its address, too."""
    pod_cidr: str
    hostname: str
    capacity: Mapping[str, str]
    tree: Path
    """The files that its pods see as the host; the machine's own where it is empty."""
    gpus: tuple[str, ...] = ()
    """Device nodes of this machine's GPUs that are the node's: nvidia0, ..."""


def group(state: Path) -> str:
    """Name of the sandbox's cgroups, the same for the same folder."""
    return f"gpuops-{state.name}-{hashlib.sha256(str(state).encode()).hexdigest()[:6]}"


def refusals(state: Path, count: int, platform: str = "") -> list[str]:
    """Why ``count`` real nodes cannot be made in this sandbox on this machine; [] when they can."""
    if not (platform or sys.platform).startswith("linux"):
        return [f"real nodes need Linux, this is {platform or sys.platform}"]
    if os.geteuid() != 0:
        return [f"real nodes need root (namespaces, mounts, cgroups); this is user {os.geteuid()}"]
    found = []
    if not 1 <= count <= MOST:
        found.append(f"--kubelets {count}: from 1 to {MOST} real nodes can be made")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if lacking := [name for name in COMMANDS if shutil.which(name, path=path) is None]:
        found.append(f"commands are missing: {', '.join(lacking)} (packages iproute2, util-linux, openssl, nftables)")
    if "\toverlay" not in Path("/proc/filesystems").read_text():
        found.append("the kernel has no overlay file system")
    if why := kernel.unusable():
        found.append(f"no usable cgroup: {why}")
    free = psutil.virtual_memory().available // 2**20
    if free < MEMORY_MIB + NODE_MIB * count:
        found.append(f"{free} MiB of memory are free; {count} real nodes need {MEMORY_MIB + NODE_MIB * count}")
    place = next(one for one in (state, *state.parents) if one.exists())
    room = shutil.disk_usage(place).free / 2**30
    if room < DISK_GIB:
        found.append(f"{room:.1f} GiB of disk are free at {place}; real nodes need {DISK_GIB}")
    if found == [] and (left := kernel.groups(group(state))):
        found.append(f"{left[0]} is left of a sandbox that was killed; 'sandbox down {state.name}' removes it")
    return found


class RealNodes:
    """Those of one sandbox."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.group = group(state)
        self.folder = state / "nodes"

    def there(self) -> bool:
        """Whether something of them is left."""
        return (self.state / HUB_READY).exists() or self.folder.exists() or bool(kernel.groups(self.group))

    # the hub

    def start_hub(self, images: Path, rules: Mapping[str, str]) -> int:
        """Makes the network; the port of the API server, the same outside and inside."""
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / IMAGE_RULES).write_text(json.dumps(dict(rules), indent=1) + "\n")
        kernel.make_group(self.group)
        process = self._spawn("hub", [sys.executable, "-m", f"{__package__}.hub", str(self.state), str(images)])
        self._until((self.state / HUB_READY).exists, "hub", process)
        return int(json.loads((self.state / HUB_READY).read_text())["port"])

    def within(self) -> list[str]:
        """What a command begins with that is to run in the hub's network; [] where there is none."""
        if not (self.state / HUB_READY).exists():
            return []
        process = self._process("hub")
        if process is None:
            raise RealError(f"sandbox {self.state.name}: the process of its network has ended; 'sandbox down' it")
        return ["nsenter", f"--net=/proc/{process.pid}/ns/net", "--"]

    def dead(self) -> list[str]:
        """The processes of real nodes that should run and do not."""
        known = [path.stem for path in self.state.glob("real-*.pid")]
        return sorted(name.removeprefix("real-") for name in known if self._process(name.removeprefix("real-")) is None)

    # nodes

    def start(self, nodes: Sequence[Real], port: int, pki: Path) -> None:
        """Starts them, side by side, and kube-proxy. Their Node objects are there already."""
        self._kube_proxy(nodes[0].name)
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda number: self._start_node(number, nodes[number], port, pki), range(len(nodes))):
                pass

    def _start_node(self, number: int, node: Real, port: int, pki: Path) -> None:
        folder = self.folder / node.name
        for name in ("top", "config/cni", "config/certs.d/_default"):
            (folder / name).mkdir(parents=True)
        node.tree.mkdir(parents=True, exist_ok=True)
        own = f"{self.group}/{node.name}"
        kernel.make_group(f"{own}/system")
        config: Json = {"address": node.name, "hostname": node.hostname, "group": own, "tree": str(node.tree)}
        config["programs"] = str(programs.folder())
        if node.gpus:
            config["gpus"] = given = gpus.given(list(node.gpus))
            config["mounts"] = gpus.mounted(given["files"])
            (folder / "config" / "gpus.json").write_text(json.dumps(given, indent=1) + "\n")
            shutil.copy(Path(__file__).with_name("inject.py"), folder / "config")
        (folder / "node.json").write_text(json.dumps(config, indent=1) + "\n")
        _write_config(folder / "config", node, f"/{own}", port, pki)
        process = self._spawn(node.name, [sys.executable, "-m", f"{__package__}.node", str(folder)])
        ready = (folder / "first.pid", folder / UNSHARED)
        self._until(lambda: all(path.exists() for path in ready), node.name, process)
        pid = ready[0].read_text().strip()
        link, inside = f"node{number}", self.within()
        # A process outside of every namespace of ours makes the pair: the kernel takes the number as it is known here.
        for command in (
            f"link add {link} type veth peer name eth0 netns {pid}",
            f"link set {link} master {BRIDGE} up",
            f"route add {node.pod_cidr} via {node.name}",
        ):
            _run([*inside, "ip", *command.split()])

    def _kube_proxy(self, node: str) -> None:
        """``node``: one that there is, as it waits 30 s for its own."""
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": f"{POD_NETWORK}/16",
            "clientConnection": {"kubeconfig": str(self.state / "admin.kubeconfig")},
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            # Two pods of a node answer each other directly: only with the hub's address do answers pass the hub.
            "nftables": {"masqueradeAll": True, "syncPeriod": "30s", "minSyncPeriod": "100ms"},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "hostnameOverride": node,
        }
        path = self.state / "kube-proxy.yml"
        path.write_text(yaml.safe_dump(config))
        program = str(programs.folder() / "kube-proxy")
        self._spawn("kube-proxy", [*self.within(), program, f"--config={path}"])

    def logs(self) -> list[Path]:
        """Of the programs of real nodes; all that there are."""
        return sorted([*self.state.glob("real-*.log"), *self.folder.glob("*/*.log")])

    def services_ready(self) -> bool:
        """Whether pods reach the API server by its Service."""
        found = subprocess.run([*self.within(), "nft", "list", "map", "ip", "kube-proxy", "service-ips"], **QUIET)
        if self._process("kube-proxy") is None:
            raise RealError("kube-proxy ended; see its log")
        return f"{SERVICE_ADDRESS} " in found.stdout

    # ending

    def end(self) -> None:
        """Ends every process and removes the cgroups; also what is left when others were killed before."""
        ended = []
        for path in self.state.glob("real-*.pid"):
            if process := self._process(path.stem.removeprefix("real-")):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    ended.append(process)
        for process in self._strays():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                ended.append(process)
        psutil.wait_procs(ended, timeout=10)
        kernel.remove_group(self.group)
        for path in self.state.glob("real-*.pid"):
            path.unlink()

    def _strays(self) -> list[psutil.Process]:
        """Processes in a network namespace of ours, whose own was killed: their command line names our folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in part for part in process.info["cmdline"] or ()):
                found.append(process)
        return [process for process in found if process.pid != os.getpid()]

    # processes

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        here = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": here, "PYTHONUNBUFFERED": "1"}
        environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
        with (self.state / f"real-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        (self.state / f"real-{name}.pid").write_text(f"{process.pid}\n")
        return process

    def _process(self, name: str) -> psutil.Process | None:
        """The process if it runs and is truly ours."""
        try:
            process = psutil.Process(int((self.state / f"real-{name}.pid").read_text()))
            ours = any(str(self.state) in part for part in process.cmdline())
            return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.Error):
            return None

    def _until(
        self, reached: Callable[[], bool], name: str, process: subprocess.Popen[bytes], timeout: float = 60
    ) -> None:
        deadline = time.monotonic() + timeout
        while not reached():
            if process.poll() is not None:
                text = (self.state / f"real-{name}.log").read_text(errors="replace").strip().splitlines()
                raise RealError(f"{name} ended: " + (" | ".join(text[-4:]) or "it said nothing"))
            if time.monotonic() > deadline:
                raise RealError(f"{name} is not ready after {timeout:.0f} s")
            time.sleep(0.02)


def _write_config(config: Path, node: Real, cgroup: str, port: int, pki: Path) -> None:
    ca = (pki / "ca.crt").read_text()
    (config / "ca.crt").write_text(ca)
    cert, key = client_certificate(pki, f"/O=system:nodes/CN=system:node:{node.name}")
    (config / "node.crt").write_text(cert)
    (config / "node.key").touch(mode=0o600)
    (config / "node.key").write_text(key)
    files = {name: f"{INSIDE}/config/{name}" for name in ("ca.crt", "node.crt", "node.key")}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
        "clusters": [{"name": "node", "cluster": {"server": f"https://{ADDRESS}:{port}"}}],
        "users": [{"name": "node", "user": {"client-certificate": files["node.crt"], "client-key": files["node.key"]}}],
    }
    kubeconfig["clusters"][0]["cluster"]["certificate-authority"] = files["ca.crt"]  # type: ignore[index]
    (config / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    (config / "kubelet.yml").write_text(yaml.safe_dump(kubelet_config(cgroup, files["ca.crt"])))
    (config / "containerd.toml").write_text(CONTAINERD)
    (config / "certs.d" / "_default" / "hosts.toml").write_text(
        f'[host."http://{ADDRESS}:{REGISTRY_PORT}"]\n  capabilities = ["pull", "resolve"]\n'
    )
    (config / "cni" / "10-gpuops.conflist").write_text(json.dumps(cni_config(node.pod_cidr), indent=1))
    (config / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
    (config / "hosts").write_text(f"127.0.0.1 localhost\n{node.name} {node.hostname}\n")
    (config / "machine-id").write_text(hashlib.md5(node.name.encode(), usedforsecurity=False).hexdigest() + "\n")
    (config / "runc").write_text(RUNC)
    (config / "runc").chmod(0o755)


def kubelet_config(cgroup: str, ca: str) -> Json:
    """The KubeletConfiguration. Nothing in it changes the machine; ``cgroup`` is the root of the node's own."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": ca}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "clusterDNS": [ADDRESS],
        "clusterDomain": DOMAIN,
        "containerLogMonitorInterval": "3s",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "evictionPressureTransitionPeriod": "5s",
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "nodeLeaseDurationSeconds": GRACE,
        "nodeStatusUpdateFrequency": "5s",
        "protectKernelDefaults": True,
        "resolvConf": "/etc/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/plugins",
    }


def cni_config(pod_cidr: str) -> Json:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_cidr}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {"cniVersion": "1.0.0", "name": "gpuops", "plugins": [bridge]}


CONTAINERD = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.differ.v1.erofs",
  "io.containerd.internal.v1.opt",
]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  discard_unpacked_layers = true
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{INSIDE}/config/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{INSIDE}/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{INSIDE}/config/runc"
      SystemdCgroup = false
"""

RUNC = r"""#!/bin/sh
# Of a pod that has the node's root at /host it is the tree of files of the simulated host; of an image that says so the
# tree's /sys is the container's.
bundle=; last=
for word in "$@"; do [ "$last" != --bundle ] || bundle=$word; last=$word; done
if [ -n "$bundle" ] && [ -e INSIDE/host/etc ]; then
  mount='"destination":"/host","type":"bind","source"'
  sed -i "s#$mount:\"/\"#$mount:\"INSIDE/host\"#" "$bundle/config.json"
  if grep -q '"GPUOPS_SYS=host"' "$bundle/config.json"; then
    mkdir -p INSIDE/host/sys/fs/cgroup
    mount='"destination":"/sys","type":"bind","source":"INSIDE/host/sys","options":["rbind","ro"]'
    sed -i "s#\"destination\":\"/sys\",\"type\":\"sysfs\"[^]]*]#$mount#" "$bundle/config.json"
  fi
fi
if [ -n "$bundle" ] && [ -e INSIDE/config/gpus.json ]; then
  python3 INSIDE/config/inject.py INSIDE/config/gpus.json "$bundle" || exit 1
fi
exec INSIDE/bin/runc "$@"
""".replace("INSIDE", INSIDE)


def client_certificate(pki: Path, subject: str) -> tuple[str, str]:
    """(certificate, key) as PEM, signed by the sandbox's CA."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ext").write_text("keyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth\n")
        new = "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out csr"
        _run(["openssl", *new.split(), "-subj", subject], cwd=folder)
        sign = ["-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key"), "-days", "30", "-extfile", "ext"]
        serial = str(int.from_bytes(os.urandom(8), "big") >> 1)
        _run(["openssl", "x509", "-req", "-in", "csr", "-out", "crt", "-set_serial", serial, *sign], cwd=folder)
        return (folder / "crt").read_text(), (folder / "key").read_text()


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode:
        raise RealError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
