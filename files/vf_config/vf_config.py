# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates the SR-IOV virtual functions (VFs) of one node's RDMA ports, and maintains them without Ansible.

Runs in the pods of the DaemonSet gpuops-vf-config: Python 3.8 or newer, standard library only, the host's root
mounted at /host. ``configure`` makes all decisions and accesses the node only through a ``Host``; ``Keeper`` repeats it
and talks to the API server. The first rule: a VF that a pod may use is never removed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Callable

DRIVER = "mlx5_core"
DEVICES = "/sys/bus/pci/devices"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
IB_CORE_NETNS = "/sys/module/ib_core/parameters/netns_mode"
MODPROBE = "/etc/modprobe.d/zz-gpuops-rdma.conf"
OCA_LOG = "/var/log/oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure/oci-hpc-mlx-configure.log"
OCA_DONE = "Fully Configured"
STATE = "/run/gpuops-rdma/vf-config.json"  # on a tmpfs, like the VFs: gone after a reboot
REBOOTED = "/var/lib/gpuops-rdma/rebooted"  # outlives a reboot: the request that was carried out last
STATUS_ANNOTATION = "gpuops.rdma/vf-status"
REBOOT_ANNOTATION = "gpuops.rdma/reboot"
CONFIG = Path("/etc/gpuops-rdma/config.json")
POD_ANNOTATIONS = Path("/etc/podinfo/annotations")
READY = Path("/run/ready")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

DEFAULTS = {
    "shape": "",
    "set_netns": False,
    "oca_required": True,
    "oca_deadline": 600,
    "network_operator_namespace": "nvidia-network-operator",
    "plugin_selector": "app in (sriovdp,sriov-device-plugin)",
}


class Host:
    """Access to a node whose root is mounted at ``root``; ``configure`` needs only these methods.

    Paths are the host's own. Reads and writes raise OSError as the kernel does. The pod shares the host's network and
    PID namespaces, so a command run in the host's root sees the host's devices and services.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def path(self, path: str, hops: int = 0) -> Path:
        """The pod's path of a host's path: absolute links are followed inside the root."""
        here = self.root
        for part in path.strip("/").split("/"):
            here = here / part
            if hops < 20 and here.is_symlink():
                target = os.readlink(here)  # noqa: PTH115 (Path.readlink came with 3.9)
                here = self.path(target, hops + 1) if target.startswith("/") else here
        return here

    def read(self, path: str) -> str:
        """Returns the stripped text of a file."""
        return self.path(path).read_text(errors="replace").strip()

    def write(self, path: str, text: str) -> None:
        """Replaces the content of a file; outside /sys it creates missing folders."""
        target = self.path(path)
        if not path.startswith("/sys/"):
            target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder; [] if it cannot be listed."""
        try:
            return sorted(entry.name for entry in self.path(path).iterdir())
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Returns whether the path exists on the host; links are followed."""
        return self.path(path).exists()

    def readlink(self, path: str) -> str:
        """Returns the target of a link as it is stored. OSError if the path is not a link."""
        folder, _sep, name = path.rpartition("/")
        return os.readlink(self.path(folder) / name)  # noqa: PTH115

    def run(self, argv: list[str]) -> tuple[int, str]:
        """Exit status and output; 127 if the command cannot be run or times out."""
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin", "LC_ALL": "C"}
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            done = subprocess.run(["chroot", str(self.root), *argv], env=env, timeout=600, check=False, **pipes)
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, str(error)
        return done.returncode, done.stdout.decode(errors="replace").strip()

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def log(self, line: str) -> None:
        """Prints a line to the pod's log."""
        print(line, flush=True)


class End(Exception):
    """Ends a run of ``configure`` early, with (phase, reason)."""


class Bad(Exception):
    """One PF cannot be configured; the others continue."""


def text(host: Host, path: str) -> str:
    """A file's text; "" if it cannot be read."""
    try:
        return host.read(path)
    except OSError:
        return ""


def number(host: Host, path: str) -> int:
    """The number in a sysfs file; 0 without the file, as for a device without that feature."""
    found = text(host, path)
    return int(found) if found.isdigit() else 0


def load_state(host: Host) -> dict[str, Any]:
    """Returns the state that this boot has saved; {} if there is none or it cannot be parsed."""
    try:
        return dict(json.loads(text(host, STATE)))
    except (ValueError, TypeError):
        return {}


def save_state(host: Host, **changes: Any) -> None:
    """Writes the saved state with ``changes`` merged in. OSError if it cannot be written."""
    host.write(STATE, json.dumps({**load_state(host), **changes}))


def netns_mode(host: Host) -> str:
    """``exclusive``, ``shared`` or ``unknown``: ``exclusive`` isolates a pod's RDMA devices."""
    code, output = host.run(["rdma", "system", "show"])
    found = re.search(r"netns (exclusive|shared)", output) if code == 0 else None
    return found.group(1) if found else {"N": "exclusive", "Y": "shared"}.get(text(host, IB_CORE_NETNS), "unknown")


def configure(table: dict[str, Any], host: Host, options: dict[str, Any]) -> dict[str, Any]:
    """Configures the node by its shape's entry in ``table`` and returns its status.

    ``table`` maps a shape to ``{"pfs": [PCI addresses], "vfs": VFs per PF, "mtu": bytes or None}``; ``options``
    override DEFAULTS. ``options["started"]`` (a time of host.monotonic) starts the deadline for Oracle Cloud Agent
    (OCA); without it the deadline has passed. It does not wait for OCA: phase ``working`` means "call again". It
    writes nothing if the node is already configured.
    """
    return Run(table, host, {**DEFAULTS, **options}).run()


class Run:
    """One run of ``configure``."""

    def __init__(self, table: dict[str, Any], host: Host, options: dict[str, Any]) -> None:
        self.host, self.options = host, options
        self.known = ", ".join(sorted(table))
        self.entry = table.get(options["shape"], {"pfs": [], "vfs": 0, "mtu": None})
        self.pfs, self.each = self.entry["pfs"], self.entry["vfs"]
        self.boot = text(host, BOOT_ID)
        self.bad: dict[str, str] = {}
        self.netns, self.oca = netns_mode(host), "absent"
        if host.exists(OCA_LOG.rpartition("/")[0]):
            self.oca = "configured" if OCA_DONE in text(host, OCA_LOG) else "waiting"
        self.quiet = False  # before_change() has been through

    def run(self) -> dict[str, Any]:
        """Executes all steps and returns the node's status document, also after an error."""
        try:
            self.check_devices()
            self.check_netns()
            self.start_agent()  # an earlier run was killed between stop and start
            self.change()
            phase, reason = self.verify()
        except End as end:
            phase, reason = end.args
        except OSError as error:
            phase, reason = "failed", str(error)
        return {
            "v": 1,
            "phase": phase,
            "vfs": sum(min(self.each, len(self.vfs(pci))) for pci in self.pfs if pci not in self.bad),
            "want": len(self.pfs) * self.each,
            "reason": reason[:600],
            "netns": self.netns,
            "oca": self.oca,
            "bad": {pci: self.bad[pci][:160] for pci in sorted(self.bad)},
            "boot": self.boot,
        }

    # Preconditions of any change.

    def check_devices(self) -> None:
        """Records PFs that are absent, have another driver or offer too few VFs. ``End`` for an unknown shape or for
        too few VFs in the firmware."""
        if not self.pfs:
            raise End("blocked", f"shape {self.options['shape'] or 'unknown'}: the table knows {self.known}")
        short = {}
        for pci in self.pfs:
            total = number(self.host, f"{DEVICES}/{pci}/sriov_totalvfs")
            if not self.host.exists(f"{DEVICES}/{pci}"):
                self.bad[pci] = "no such PCI device on this node"
            elif self.driver(pci) != DRIVER:
                self.bad[pci] = f"its driver is {self.driver(pci) or 'missing'}, not {DRIVER}"
            elif total < self.each:
                short[pci] = f"sriov_totalvfs is {total}, {self.each} needed"
        if short:
            self.bad.update(short)
            first = f"{len(short)} of {len(self.pfs)} PFs offer too few VFs ({min(short)}: {short[min(short)]})"
            firmware = f"SRIOV_EN=1 NUM_OF_VFS={self.each}"
            raise End("blocked", f"{first}: set {firmware} in the NIC's firmware (mlxconfig) and reboot the node")

    def check_netns(self) -> None:
        """``End`` unless the RDMA netns mode is exclusive; with ``set_netns`` it is first configured for the next
        boot."""
        if self.netns == "unknown":
            raise End("blocked", f"RDMA netns mode unknown: neither `rdma system show` nor {IB_CORE_NETNS} tells it")
        if self.netns == "shared" and self.options["set_netns"]:
            self.persist_netns()
        if self.netns == "shared":
            way = "allow a reboot, or boot the node with `options ib_core netns_mode=0`"
            raise End("blocked", f"RDMA netns mode is shared, exclusive needed; no change while pods run: {way}")

    def persist_netns(self) -> None:
        """Configures exclusive mode for the next boot, and always raises ``End``: with running pods the kernel returns
        EBUSY."""
        if load_state(self.host).get("netns_boot") != self.boot:
            again = self.host.exists(MODPROBE)
            self.host.write(MODPROBE, "# gpuops.rdma: the CNI plugin rdma needs it\noptions ib_core netns_mode=0\n")
            tool = (
                ["update-initramfs", "-u"] if self.host.exists("/usr/sbin/update-initramfs") else ["dracut", "--force"]
            )
            code, output = self.host.run(tool)
            if code:
                raise End("failed", f"{MODPROBE} written, but the initramfs was not rebuilt: {output[-200:]}")
            save_state(self.host, netns_boot=self.boot, netns_again=again)
            self.host.log(f"{MODPROBE} written, initramfs rebuilt")
        vain = "; an earlier boot had it set too, in vain" if load_state(self.host).get("netns_again") else ""
        raise End("blocked", f"reboot pending: RDMA netns mode is set to exclusive for the next boot{vain}")

    # Changes: each step compares first, and calls before_change() only when it has to write.

    def before_change(self) -> None:
        """``End`` until OCA has configured the PFs; then stops it until the changes are made."""
        if self.oca == "waiting" or (self.oca == "absent" and self.options["oca_required"]):
            deadline = self.options["oca_deadline"]
            waited = self.host.monotonic() - self.options.get("started", float("-inf"))
            what = f'Oracle Cloud Agent ({self.oca}): no "{OCA_DONE}" in {OCA_LOG}'
            if waited < deadline:
                raise End("working", f"waiting for {what}")
            raise End("failed", f"waited {deadline} s in vain for {what}; no VF is made before it")
        if self.oca == "configured" and not self.quiet:
            save_state(self.host, agent_stopped=True)
            if not self.agent("stop"):
                save_state(self.host, agent_stopped=False)
        self.quiet = True

    def agent(self, verb: str) -> bool:
        """Starts or stops OCA, a snap on Ubuntu images and a service on Oracle Linux; returns whether that
        succeeded."""
        manager = "snap" if self.host.exists("/snap/oracle-cloud-agent") else "systemctl"
        code, output = self.host.run([manager, verb, "oracle-cloud-agent"])
        self.host.log(f"{manager} {verb} oracle-cloud-agent: {code} {output if code else ''}")
        return code == 0

    def start_agent(self) -> None:
        """Starts Oracle Cloud Agent again if an earlier step stopped it."""
        if load_state(self.host).get("agent_stopped") and self.agent("start"):
            save_state(self.host, agent_stopped=False)

    def change(self) -> None:
        """Creates VFs, sets their MACs and the MTU on all PFs without a fault, then starts Oracle Cloud Agent again."""
        try:
            for step in (self.make_vfs, self.set_macs, self.set_mtu):
                for pci in self.pfs:
                    if pci not in self.bad:
                        self.attempt(step, pci)
        finally:
            self.start_agent()

    def attempt(self, step: Callable[[str], None], pci: str) -> None:
        """Runs a step for one PF; records its error in ``bad`` instead of raising it."""
        try:
            step(pci)
        except (Bad, OSError) as error:
            self.bad[pci] = str(error)
            self.host.log(f"{pci}: {error}")

    def make_vfs(self, pci: str) -> None:
        """Sets sriov_numvfs of a PF and waits for the VFs' drivers. ``Bad`` if a pod may use one of its present VFs."""
        path = f"{DEVICES}/{pci}/sriov_numvfs"
        have = number(self.host, path)
        if have == self.each:
            return
        free = [vf for vf in self.vfs(pci) if self.free(vf)]
        if len(free) != have:
            used = ", ".join(vf for vf in self.vfs(pci) if vf not in free)
            raise Bad(f"sriov_numvfs is {have}, not {self.each}; VF {used or '?'} may be in use by a pod: left alone")
        self.before_change()
        for count in (0, self.each) if have else (self.each,):
            self.write(path, str(count))
        # Tells the keeper, also after a restart, that the device plugin has not seen these VFs.
        save_state(self.host, generation=load_state(self.host).get("generation", 0) + 1)
        self.host.log(f"{pci}: sriov_numvfs {have} -> {text(self.host, path)}")
        for vf in self.vfs(pci):
            self.wait_for(vf)

    def set_macs(self, pci: str) -> None:
        """Sets each VF's administrative MAC to its own MAC, so that the VF keeps it inside a pod."""
        vfs = self.vfs(pci)
        for vf in vfs:
            if not self.driver(vf):
                self.rebind(vf)
        seen = {index: vf for index, vf in enumerate(vfs) if self.free(vf)}
        admin = self.admin_macs(pci) if seen else {}
        for index, vf in seen.items():
            mac = text(self.host, f"{DEVICES}/{vf}/net/{self.netdev(vf)}/address").lower()
            if admin.get(index) != mac:
                self.before_change()
                self.command("ip", "link", "set", self.netdev(pci), "vf", str(index), "mac", mac)
                self.rebind(vf)
                self.host.log(f"{vf}: administrative MAC {mac}")

    def admin_macs(self, pci: str) -> dict[int, str]:
        """Returns VF index -> administrative MAC in lower case. ``Bad`` if ip's output cannot be parsed."""
        output = self.command("ip", "-j", "link", "show", "dev", self.netdev(pci))
        try:
            found = json.loads(output)[0].get("vfinfo_list", [])
            return {entry["vf"]: (entry.get("address") or entry.get("mac") or "").lower() for entry in found}
        except (ValueError, TypeError, LookupError, AttributeError):
            raise Bad(f"`ip -j link show` does not tell the VFs' MACs: {output[:80]}") from None

    def rebind(self, vf: str) -> None:
        """Unbinds a VF from its driver and binds it again, so that it takes over its administrative MAC. ``Bad`` if
        that fails."""
        self.before_change()
        if self.driver(vf):
            self.write(f"/sys/bus/pci/drivers/{DRIVER}/unbind", vf)
        self.write(f"/sys/bus/pci/drivers/{DRIVER}/bind", vf)
        self.wait_for(vf)

    def set_mtu(self, pci: str) -> None:
        """Sets the shape's MTU (bytes) on a PF and on those of its VFs that no pod uses. ``Bad`` if the PF has no
        netdev."""
        if not self.netdev(pci):
            raise Bad("the host sees no network device of this PF")
        for device in [pci, *filter(self.free, self.vfs(pci))]:
            path = f"{DEVICES}/{device}/net/{self.netdev(device)}/mtu"
            if self.entry["mtu"] and number(self.host, path) != self.entry["mtu"]:
                self.before_change()
                self.write(path, str(self.entry["mtu"]))
                self.host.log(f"{device}: MTU {self.entry['mtu']}")

    # Present state.

    def verify(self) -> tuple[str, str]:
        """Returns (phase, reason) after comparing VF counts and drivers with the shape; adds faulty PFs to ``bad``."""
        for pci in self.pfs:
            found, vfs = number(self.host, f"{DEVICES}/{pci}/sriov_numvfs"), self.vfs(pci)
            lost = [vf for vf in vfs if self.driver(vf) != DRIVER]
            if pci not in self.bad and not found == len(vfs) == self.each:
                self.bad[pci] = f"sriov_numvfs is {found} with {len(vfs)} VFs, {self.each} wanted"
            elif pci not in self.bad and lost:
                self.bad[pci] = f"VF {lost[0]} is not bound to {DRIVER}"
        if load_state(self.host).get("agent_stopped"):
            return "failed", "Oracle Cloud Agent was stopped for the changes and does not start again"
        if not self.bad:
            return "ready", ""
        right = (len(self.pfs) - len(self.bad)) * self.each
        return "failed", f"{right} of {len(self.pfs) * self.each} VFs; {min(self.bad)}: {self.bad[min(self.bad)]}"

    def vfs(self, pci: str) -> list[str]:
        """PCI addresses of a PF's VFs, in the kernel's order."""
        names = [name for name in self.host.listdir(f"{DEVICES}/{pci}") if re.fullmatch(r"virtfn\d+", name)]
        names.sort(key=lambda name: int(name[len("virtfn") :]))
        return [vf for vf in (self.target(f"{pci}/{name}") for name in names) if vf]

    def driver(self, device: str) -> str:
        """Returns the name of the driver that a device is bound to; "" if it is not bound."""
        return self.target(f"{device}/driver")

    def target(self, link: str) -> str:
        """Name of the target of a link below DEVICES; "" if there is no link."""
        try:
            return self.host.readlink(f"{DEVICES}/{link}").rpartition("/")[2]
        except OSError:
            return ""

    def netdev(self, device: str) -> str:
        """Name of a device's netdev; "" if the host sees none, because a pod has it."""
        return next(iter(self.host.listdir(f"{DEVICES}/{device}/net")), "")

    def free(self, vf: str) -> bool:
        """Returns whether no pod uses the VF: it has its driver, and the host sees its netdev."""
        return self.driver(vf) == DRIVER and self.netdev(vf) != ""

    def wait_for(self, vf: str) -> None:
        """Waits up to 10 s for a new VF's driver and netdev. ``Bad`` if they do not appear."""
        for _try in range(40):
            if self.free(vf):
                return
            self.host.sleep(0.25)
        raise Bad(f"VF {vf} got no driver {DRIVER} or no network device within 10 s")

    def write(self, path: str, value: str) -> None:
        """Writes a value to a file of sysfs. ``Bad`` if the kernel refuses it."""
        try:
            self.host.write(path, value)
        except OSError as error:
            name = path.rpartition("/")[2]
            raise Bad(f"{name} is {text(self.host, path) or '?'}: writing {value} failed: {error.strerror}") from None

    def command(self, *argv: str) -> str:
        """Returns the output of a command run on the host. ``Bad`` if it fails."""
        code, output = self.host.run(list(argv))
        if code:
            raise Bad(f"`{' '.join(argv)}` failed: {output}")
        return output


def tls(ca: str) -> ssl.SSLContext:
    """Returns a context that accepts every certificate authority in the file ``ca`` that kubectl accepts: one without
    keyUsage, which Python refuses from 3.13 on, and one that another has signed, which it refuses before 3.13."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= 0x80000  # VERIFY_X509_PARTIAL_CHAIN, a name since 3.10
    return context


class Api:
    """Requests to the API server with the pod's service account."""

    def __init__(self, namespace: str, pod: str, node: str) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.base = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.pod, self.node = f"/api/v1/namespaces/{namespace}/pods/{pod}", node
        https = urllib.request.HTTPSHandler(context=tls(str(ACCOUNT / "ca.crt")))
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request with the service account's token and returns the decoded JSON. HTTPError for a refused
        request, OSError without a connection."""
        headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}"}  # it rotates: read each time
        data = None if body is None else json.dumps(body).encode()
        if data:
            headers["Content-Type"] = "application/merge-patch+json"
        request = urllib.request.Request(self.base + path, data=data, headers=headers, method=method)
        with self.opener.open(request, timeout=30) as answer:
            return json.loads(answer.read())

    def publish(self, status: dict[str, Any]) -> None:
        """Writes the status to this pod's annotation. Errors as for ``request``."""
        value = json.dumps(status, separators=(",", ":"))
        self.request("PATCH", self.pod, {"metadata": {"annotations": {STATUS_ANNOTATION: value}}})

    def plugin_pods(self, namespace: str, selector: str) -> list[str]:
        """Paths of this node's device-plugin pods."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        query = urllib.parse.urlencode({"labelSelector": selector, "fieldSelector": f"spec.nodeName={self.node}"})
        found = [item["metadata"] for item in self.request("GET", f"{pods}?{query}")["items"]]
        return [f"{pods}/{meta['name']}" for meta in found if "deletionTimestamp" not in meta]

    def delete(self, path: str) -> None:
        """Deletes the object at a path; one that is already gone is not an error. Other errors as for ``request``."""
        try:
            self.request("DELETE", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


def imds_shape() -> str:
    """The shape from the instance metadata service; "" if it does not answer."""
    url, headers = "http://169.254.169.254/opc/v2/instance/shape", {"Authorization": "Bearer Oracle"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return str(answer.read().decode()).strip()
    except (OSError, ValueError):
        return ""


def shape_of(table: dict[str, Any], host: Host) -> str:
    """The shape from the metadata service, else the only one of ``table`` whose PFs are all on this host, else ""."""
    named = imds_shape()
    fits = [
        name for name, one in table.items() if one["pfs"] and all(host.exists(f"{DEVICES}/{pci}") for pci in one["pfs"])
    ]
    return named if named in table or len(fits) != 1 else fits[0]


def pod_annotation(name: str) -> str:
    """An annotation of this pod, from the downward API's file of name="quoted value" lines; "" without it."""
    lines = POD_ANNOTATIONS.read_text().splitlines() if POD_ANNOTATIONS.exists() else []
    values = [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]
    return str(json.loads(values[0])) if values else ""


class Keeper:
    """Repeats: configure, publish, restart the device plugin after changes, reboot on request."""

    def __init__(self, table: dict[str, Any], host: Host, api: Api, options: dict[str, Any]) -> None:
        self.table, self.host, self.api = table, host, api
        self.options = {**DEFAULTS, **options, "started": host.monotonic()}
        self.status: dict[str, Any] = {}
        self.published: dict[str, Any] = {}
        self.pause, self.next_try = 30.0, 0.0

    def tick(self) -> float:
        """One round; returns the seconds until the next."""
        if self.due():
            self.options["shape"] = self.options["shape"] or shape_of(self.table, self.host)
            self.status = configure(self.table, self.host, self.options)
            self.host.log(json.dumps(self.status))
            self.pause = min(600.0, self.pause * 2) if self.status["phase"] == "failed" else 30.0
            self.next_try = self.host.monotonic() + self.pause
        request = pod_annotation(REBOOT_ANNOTATION)
        reboot = request not in ("", text(self.host, REBOOTED))
        if reboot:
            self.status = {**self.status, "phase": "working", "reason": f"rebooting, request {request}"}
        if self.status["phase"] == "ready":
            READY.touch()
        elif READY.exists():
            READY.unlink()
        self.attempt(self.restart_plugin)
        self.attempt(self.publish)
        if reboot:
            self.host.write(REBOOTED, request)  # first, so that each request reboots only once
            code, output = self.host.run(["systemctl", "reboot"])
            self.host.log(f"reboot, request {request}: {code} {output}")
            return 600.0 if code == 0 else 30.0
        return 5.0 if self.status["phase"] == "working" else 30.0

    def due(self) -> bool:
        """Whether ``configure`` has to run. Cheap in phase ready: a device that was reset has lost its VFs."""
        if self.status.get("phase") == "failed":
            return self.host.monotonic() >= self.next_try
        if self.status.get("phase") != "ready":
            return True
        entry = self.table[self.options["shape"]]
        counts = {number(self.host, f"{DEVICES}/{pci}/sriov_numvfs") for pci in entry["pfs"]}
        return counts != {entry["vfs"]} or text(self.host, BOOT_ID) != self.status["boot"]

    def attempt(self, action: Callable[[], None]) -> None:
        """Runs an action; an error is logged, and the action is retried in the next round."""
        try:
            action()
        except (OSError, ValueError, KeyError) as error:
            self.host.log(f"{action.__name__}: {error}; again in the next round")

    def publish(self) -> None:
        """Publishes the status if it has changed since it was last published. Errors as for ``Api.request``."""
        if self.status != self.published:
            self.api.publish(self.status)
            self.published = self.status

    def restart_plugin(self) -> None:
        """Restarts the device plugin once per generation of VFs, because it detects VFs only at its start."""
        made = load_state(self.host).get("generation", 0)
        if made != load_state(self.host).get("plugin_knows", 0):
            namespace, selector = self.options["network_operator_namespace"], self.options["plugin_selector"]
            for path in self.api.plugin_pods(namespace, selector):
                self.api.delete(path)
                self.host.log(f"deleted {path}: this device plugin has not seen the new VFs")
            save_state(self.host, plugin_knows=made)


def main(argv: list[str]) -> int:
    """Returns the exit status of ``--ready``: 0 if all VFs are ready, else 1. Without it, it runs until SIGTERM."""
    if argv == ["--ready"]:
        return 0 if READY.exists() else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as an exception: a stopped agent is started again
    config = json.loads(CONFIG.read_text())
    api = Api(os.environ["POD_NAMESPACE"], os.environ["POD_NAME"], os.environ["NODE_NAME"])
    host = Host("/host")
    keeper = Keeper(config["shapes"], host, api, {**config["options"], "shape": os.environ.get("NODE_SHAPE", "")})
    while True:
        host.sleep(keeper.tick())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
