# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of the host checks: each one holds, does not hold, and is unknown without its facts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils.host_probe import SUBNET_COUNTERS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support.paths import ROOT

Json = dict[str, Any]
RAW = yaml.safe_load((ROOT / "files" / "host_rules.yml").read_text("utf-8"))
TABLE = rules.table(RAW)
RULES = {rule.id: rule for rule in TABLE.rules}
SHAPES = shape_table.shapes()
SUPPORTED = sorted(name for name, shape in SHAPES.items() if shape.status == "supported")
H100, B200 = SHAPES["BM.GPU.H100.8"], SHAPES["BM.GPU.B200.8"]
INFINIBAND = dataclasses.replace(H100, link_layer="InfiniBand", site=True, pfc=(), trust="", mtu=None)
CURRENT, GUIDE = files.profile("current"), files.profile("guide-2024")
VALID = {"fail", "warn", "unknown"}
BYTES = ("tx_bytes_phy", "rx_bytes_phy")
SETTINGS = {"bus_master": True, "memory": True, "power": "D0", "max_payload": 256, "extended_tags": True, "aspm": False}
SETTINGS["relaxed_ordering"] = True
AER = dict.fromkeys(("aer_corrected", "aer_nonfatal", "aer_fatal"), 0)
IB_RULES = {"nic.subnet-manager", "nic.lid", "nic.pkey", "counters.subnet-errors", "counters.subnet-wait"}
B200_RULES = {"driver.ib-umad", "nvswitch.bridge-link"}
FACTS = yaml.safe_load((ROOT / "tests/fixtures/hosts/rule_facts.yml").read_text("utf-8"))


# ---- a small document ----------------------------------------------------------------------------------------------


def healthy(shape: Shape = H100, mode: str = "sriov") -> Json:
    """What the probe says of a healthy host; docs/host_document.md."""
    vfs = shape.vfs_per_pf if mode == "sriov" else 0
    link = {"speed": 32.0, "max_speed": 32.0, "width": 16, "max_width": 16}
    gpus = [
        {
            "pci": gpu.pci,
            "id": shape.gpu_id,
            "model": shape.gpu_model,
            "driver": "nvidia",
            "numa": gpu.numa or 0,
            "ecc_errors": 0,
            "remap_pending": False,
            "vbios": "96.00.a5.00.1a",
            "firmware": "580.95.05",
            "excluded": False,
            "bar1": 1 << 37,
            "config": dict(SETTINGS),
            **link,
            **AER,
        }
        for gpu in shape.gpus
    ]
    functions = []
    for pf in shape.pfs:
        near = {gpu.pci: "PXB" if gpu.index == pf.gpu else "SYS" for gpu in shape.gpus}
        functions.append(_function(pf.pci, shape.pf_id, "pf", pf.netdev, pf.hca, shape, numvfs=vfs, totalvfs=8))
        functions[-1].update(link, numa=pf.numa or 0, gpu_distance=near, gid3_address=f"10.224.{pf.rail}.1")
        functions[-1].update(pfc=list(shape.pfc) or None, trust=shape.trust or None, max_read=4096)
        functions[-1].update(config=SETTINGS | {"ats": False}, board="MT_0000000838", carrier_changes=2, **AER)
        functions[-1].update(master="", ecn_off=[], subnet={"lid": 26, "sm_lid": 1, "pkey": 65535})
    for pf in shape.pfs if vfs else ():
        vf = _function(f"{pf.pci[:-1]}7", shape.vf_id, "vf", f"{pf.netdev}v0", f"{pf.hca}v", shape)
        functions.append({**vf, "of": pf.pci, "admin_mac": vf["mac"], "firmware": None})
        functions[-1]["gid3_address"] = f"10.224.{pf.rail}.100"
        functions[-1]["admin"] = {"link": "auto", "vlan": 0, "rate": 0}
    for nic in shape.vcn:
        functions.append(_function(nic.pci, nic.pf_id, "pf", nic.netdev, nic.hca, shape, numvfs=0, totalvfs=0))
    for number in range(shape.nvswitch_bridges):
        functions.append({**_function(f"0000:e{number}:00.0", "15b3:1021", "nvswitch", "", f"mlx5_9{number}", shape)})
    for number, function in enumerate(functions):
        function["mac"] = f"02:00:00:00:00:{(number - 15) % 256:02x}"
        if function["kind"] == "vf":
            function["admin_mac"] = function["mac"]
    ethernet = shape.link_layer == "Ethernet"
    counted = [name for name in RAW["limits"]["counters"] if not (ethernet and name in SUBNET_COUNTERS)]
    counted += BYTES if ethernet else ("port_xmit_data", "port_rcv_data")
    module = {"loaded": True, "version": "25.10", "from": "ofed", "file": "updates/dkms/x.ko"}
    return {
        "v": 1,
        "host": "gpu-0",
        "unread": {},
        "uptime": 86400,
        "kernel_log": {"events": [], "cut": {}},
        "platform": {"kind": "bare_metal", "oci": True},
        "os": {"name": "Ubuntu 22.04.5 LTS", "kernel": "6.8.0-1035-oracle", "cgroup": 2, "secure_boot": False}
        | {"lockdown": "none", "controllers": ["cpuset", "cpu", "io", "memory", "pids"], "taints": []}
        | {"boot_options": [], "modules_off": []},
        "resources": {"cpus": 224, "cpus_present": 224, "memory": 2**42, "node_memory": [2**41, 2**41]}
        | {"memory_bad": 0, "memory_free": 94, "hugepages": 0, "disk_free": 61, "boost": True},
        "runtime": {"name": "crio", "nvidia_handler": True, "cdi": ["/etc/cdi/nvidia.yaml"]}
        | {"cdi_driver": "580.95.05", "disabled": [], "pids_limit": -1},
        "driver": {"version": "580.95.05", "module": "open", "origin": "host", "persistence": True}
        | {"fabric_manager": "running", "fabric_manager_version": "580.95.05", "library": "580.95.05"}
        | {"modules": {"nouveau": False, "ib_umad": True}, "xids": [], "xids_since": "boot"}
        | {"parameters": {"NvLinkDisable": "0"}, "fabric_configured": True, "fabric_error": ""}
        | {"devices": ["nvidiactl", "nvidia-uvm", *(f"nvidia{gpu.index}" for gpu in shape.gpus)]},
        "nvswitches": shape.nvswitches,
        "nvswitch_bridges": shape.nvswitch_bridges,
        "pcie": {"links": 8, "slow": []},
        "gpus": gpus,
        "nic_stack": {"kind": "doca_ofed", "version": "25.10", "origin": "host", "same_build": True}
        | {"modules": {name: dict(module) for name in rules.MODULES}},
        "functions": functions,
        "functions_omitted": 0,
        "other_nics": [],
        "oca": {"state": "Fully Configured", "agent": "running", "errors": 0, "configured": 1, "this_boot": True}
        | {"rdma_network": "10.224.0.0/12", "supplicants": [pf.netdev for pf in shape.pfs]},
        "gpudirect": {
            "peermem": {"loaded": True, "refcnt": 0, "registered": True, "matches_ib_core": True, "persistent": True},
            "nv_peer_mem": False,
            "nvidia_fs": False,
            "dmabuf": dict.fromkeys(("possible", "open_module", "kernel", "driver", "gpu", "config"), True),
            "path": "dmabuf",
            "why": "open module",
        },
        "rdma": {"netns": "exclusive" if vfs else "shared", "netns_configured": "exclusive" if vfs else "shared"}
        | {"reboot_pending": False, "devices": ["rdma_cm", *(f"uverbs{number}" for number in range(40))]},
        "limits": {"memlock_runtime": "unlimited", "memlock_ssh": "unlimited", "iommu": "pt", "acs": []}
        | {
            "clocksource": "tsc",
            "governor": "performance",
            "time_sync": "synchronised",
            "default_route": "eth0",
            "default_route_errors": 0,
        },
        "counters": {
            "interval": 0,
            "ports": [{"hca": pf.hca, "port": 1, "delta": None, **dict.fromkeys(counted, 0)} for pf in shape.pfs],
        },
    }


def _function(pci: str, ident: str, kind: str, netdev: str, hca: str, shape: Shape, **more: Any) -> Json:
    return {
        "pci": pci,
        "id": ident,
        "kind": kind,
        "of": None,
        "driver": "mlx5_core",
        "netdev": netdev,
        "hca": hca,
        "firmware": "28.43.2026",
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": shape.line_gbps or 400,
        "mtu": shape.mtu or 4220,
        "link_layer": "Ethernet",
        "gid3": "RoCE v2",
        "gid3_netdev": netdev,
        "mac": "02:00:00:00:00:01",
        "admin_mac": None,
        "admin": None,
        "config": None,
        "subnet": None,
        "numa": 0,
        **more,
    }


def put(document: Json, path: str, value: Any) -> Json:
    """``functions.1.state``; ``functions.*.state`` sets it in every item; ``del`` takes the item out."""
    *parents, last = path.split(".")
    places: list[Any] = [document]
    for key in parents:
        if key == "*":
            places = [item for place in places for item in place if item is not None]
        else:
            places = [place[int(key)] if isinstance(place, list) else place[key] for place in places]
        places = [place for place in places if place is not None]
    for place in places:
        if value == "del":
            del place[int(last) if isinstance(place, list) else last]
        else:
            place[int(last) if isinstance(place, list) else last] = value
    return document


def status(document: Json, rule: str, shape: Shape = H100, mode: str = "sriov", **how: Any) -> rules.RuleResult:
    how.setdefault("profile", CURRENT)
    found = rules.results(TABLE, document, shape, mode=Mode(mode), **how)
    return next(item for item in found if item.rule.id == rule)


def facts_of(rule: rules.HostRule) -> list[str]:
    """Paths of the facts without which the rule does not pass."""
    if rule.id in FACTS:
        return FACTS[rule.id]
    if rule.events:
        return ["kernel_log.events"]
    if rule.counters:
        return ["uptime", *(f"counters.ports.{name}" for name in rule.counters)]
    group = f"{rules.DEVICES[rule.each][2]}." if rule.each else ""
    return [f"{group}{rule.holds[0]}"]


NO_DMABUF = {"gpudirect.dmabuf.possible": False, "gpudirect.dmabuf.open_module": False, "gpudirect.path": "peermem"}
VM = {"platform.kind": "vm"}


# ---- the table -----------------------------------------------------------------------------------------------------


def test_every_rule_has_a_condition_and_every_condition_a_rule() -> None:
    assert [entry["id"] for entry in RAW["rules"]] == list(RULES)
    written = {rule.id for rule in TABLE.rules if rule.holds or rule.counters or rule.events}
    functions = {rule.replace(".", "_").replace("-", "_") for rule in set(RULES) - written}
    assert set(rules.CONDITIONS) == functions
    with pytest.raises(DataError, match=r"gpu_missing"):
        rules.table({**RAW, "rules": [item for item in RAW["rules"] if item["id"] != "gpu.missing"]})
    for odd in (
        {"unless": ["full-moon"]},
        {"each": "disks"},
        {"holds": ["os.lockdown", "about", 1]},
        {"events": {"sort": 1}},
    ):
        with pytest.raises(DataError, match=r"os\.lockdown"):
            rules.table({**RAW, "rules": [r | odd if r["id"] == "os.lockdown" else r for r in RAW["rules"]]})
    with pytest.raises(DataError, match=r"os\.lockdown"):
        rules.table({**RAW, "rules": [*RAW["rules"], {**RAW["rules"][3], "id": "os.lockdown"}]})


@pytest.mark.parametrize("rule", TABLE.rules, ids=lambda rule: rule.id)
def test_rules_are_complete(rule: rules.HostRule) -> None:
    assert rule.severity in VALID and facts_of(rule)
    for text in (rule.what, rule.remedy, rule.reference):
        assert text and text == text.strip() and not text.endswith(".")
    earlier = list(RULES)[: list(RULES).index(rule.id)]
    assert set(rule.after) <= set(RULES) - {rule.id}
    # A cause stands before what follows from it, but for the path, which sums its group up.
    assert set(rule.after) - {"gpudirect.path"} <= set(earlier)
    assert set(rule.blind) <= {"vm", "vgpu_vm", "container"}


# ---- healthy hosts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sriov", "host"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_healthy_host_of_every_shape_passes(name: str, mode: str) -> None:
    shape = SHAPES[name]
    found = rules.results(TABLE, healthy(shape, mode), shape, mode=Mode(mode), profile=CURRENT)
    others = {item.rule.id: item.found for item in found if item.status not in ("pass", "skip")}
    assert others == {}, "enter the good value of a new fact in healthy()"
    assert sum(item.status == "pass" for item in found) > 50
    assert rules.judge(TABLE, healthy(shape, mode), shape, mode=Mode(mode), profile=CURRENT) == []


def test_the_guides_hosts_pass_by_nvidia_peermem() -> None:
    document = healthy()
    document["os"].update(name="Oracle Linux Server 8.10", kernel="4.18.0-553.69.1.el8_10.x86_64", cgroup=1)
    versions = dict.fromkeys(("version", "library", "fabric_manager_version"), "535.154.05")
    document["driver"].update(versions, module="proprietary")
    document["runtime"]["cdi_driver"] = "535.154.05"
    document["gpudirect"]["dmabuf"].update(possible=False, open_module=False, kernel=False)
    document["gpudirect"]["path"] = "peermem"
    document["runtime"]["cdi"] = []
    assert rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=GUIDE) == []
    told = {item.id for item in rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)}
    assert told == {"os.image", "os.cgroup", "driver.cuda", "os.cdi"}


# ---- what each rule finds ------------------------------------------------------------------------------------------

EVENTS = {
    # rule: (kind, code, detail, count)
    "driver.api-mismatch": ("api_mismatch", None, "570.172.08", 1),
    "host.mce": ("mce", None, "fatal", 1),
    "host.mce-corrected": ("mce_corrected", None, "corrected", 101),
    "host.memory": ("memory", None, "CPU_SrcID#0_MC#1_Chan#0_DIMM#0", 1),
    "host.memory-corrected": ("memory_corrected", None, "CPU_SrcID#0_MC#1_Chan#0_DIMM#0", 101),
    "host.kernel-errors": ("other", None, "NVRM: nobody knows this", 1),
    "host.lockup": ("lockup", None, "soft lockup", 1),
    "host.hung-task": ("hung", None, "blocked for more than 120 seconds", 1),
    "host.oom": ("oom", None, "Out of memory: Killed", 1),
    "host.throttle": ("throttle", None, "Package temperature", 1),
    "host.read-only": ("read_only", None, "Remounting filesystem read-only", 1),
    "host.iommu-fault": ("iommu", None, "Read", 1),
    "gpu.init": ("gpu_init", None, "(0x62:0x40:2192)", 1),
    "gpu.gsp": ("gpu_gsp", None, "Heartbeat timed out", 1),
    "gpu.bar": ("gpu_bar", None, "BAR1", 1),
    "gpu.reboot-required": ("recovery", 154, "Node Reboot Required", 1),
    "gpu.reset-required": ("recovery", 154, "GPU Reset Required", 1),
    "gpu.drain-required": ("recovery", 154, "Drain P2P", 1),
    "gpu.recovered": ("gpu_recovered", None, "", 3),
    "pcie.reset": ("reset", None, "", 3),
    "gpu.nvlink5": ("xid", 145, "RLW_SRC_TRACK Fatal", 1),
    "gpu.nvlink5-ber": ("xid", 149, "NETIR_BER_EVENT Nonfatal", 1),
    "nvswitch.sxid": ("sxid", 20034, "Fatal", 1),
    "nvswitch.sxid-other": ("sxid", 20009, "Non-fatal", 1),
    "pcie.aer": ("aer", None, "Uncorrected (Fatal)", 1),
    "pcie.aer-corrected": ("aer_corrected", None, "Corrected", 101),
    "pcie.dpc": ("dpc", None, "containment event", 1),
    "nic.health": ("nic_health", None, "device's health compromised", 1),
    "nic.recovered": ("nic_recovered", None, "", 3),
    "nic.power": ("nic_power", None, "Detected insufficient power on the PCIe slot", 1),
    "nic.temperature": ("nic_temperature", None, "High temperature on sensors", 1),
    "nic.cable": ("nic_cable", None, "module 0, Cable error, Bus stuck", 1),
    "nic.command": ("nic_command", None, "ENABLE_HCA(0x104) timeout", 1),
    "nic.tx-timeout": ("nic_tx", None, "TX timeout detected", 1),
    "driver.modules-refused": ("module", None, "nvidia_peermem: Unknown symbol", 1),
    "host.kernel-bug": ("kernel_bug", None, "kernel BUG at", 1),
    "host.kernel-warning": ("kernel_warning", None, "drivers/iommu/dma-iommu.c:1038", 1),
    "host.disk": ("disk", None, "I/O error, dev nvme0n1", 1),
    "host.file-server": ("file_server", None, "not responding", 1),
    "host.allocation": ("allocation", None, "page allocation failure: order:5", 1),
    "host.network-table": ("net_full", None, "nf_conntrack: table full", 1),
    "host.interrupt": ("irq", None, "nobody cared", 1),
    "host.nmi": ("nmi", None, "NMI received for unknown reason", 1),
    "host.previous-boot": ("previous", None, "BERT: Error records from previous boot", 1),
    "host.bond": ("bond", None, "link status definitely down", 1),
    "host.daemon": ("daemon", None, "kubelet", 1),
    "pcie.hotplug": ("hotplug", None, "Link Down", 1),
    "pcie.lost": ("pci_lost", None, "device recovery failed", 1),
    "pcie.retrained": ("pci_retrain", None, "retraining failed", 1),
    "nic.completions": ("nic_cqe", None, "infiniband mlx5_1: dump error cqe", 1),
    "nic.flaps": ("nic_flap", None, "Link down", 21),
}


def test_no_rule_passes_on_events_that_were_cut() -> None:
    for rule in ("host.memory", "driver.xid"):
        kind = {"driver.xid": "xids"}.get(rule, "memory")
        document = healthy()
        document["kernel_log"]["cut"] = {kind: 7}
        result = status(document, rule)
        assert (result.status, "no place for 7 more events" in result.found) == ("unknown", True), result


def event(kind: str, code: int | None, detail: str, count: int) -> Json:
    where = {"pci": "0000:44:00.0", "severity": 3, "at": 9000.0}
    return {"kind": kind, "code": code, "detail": detail, "count": count, **where}


SLOW = {"pci": "0000:0b:00.0", "upper": "0000:0a:01.0", "speed": 8.0, "max_speed": 32.0, "width": 4, "max_width": 16}
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    *(
        (rule, {"kernel_log.events": [event(*one)]}, f"{one[2]} 0000:44:00.0 x {one[3]}")
        for rule, one in EVENTS.items()
    ),
    ("driver.library", {"driver.library": "570.172.08"}, "libnvidia-ml is 570.172.08, the module 580.95.05"),
    ("driver.fabric-manager-version", {"driver.fabric_manager_version": "570.172.08"}, "is 570.172.08, the module"),
    ("driver.nouveau", {"driver.modules.nouveau": True}, "nouveau is loaded"),
    ("gpu.model", {"gpus.1.model": "NVIDIA H100 PCIe"}, "1 of 8 GPUs: 0000:2d:00.0: NVIDIA H100 PCIe"),
    ("nvswitch.missing", {"nvswitches": 3}, "3 NVSwitch(es)"),
    ("nvswitch.bridges", {"nvswitch_bridges": 4}, "4 function(s)"),
    ("pcie.uplink-width", {"pcie.slow": [SLOW]}, "0000:0b:00.0 below 0000:0a:01.0: x4 of x16"),
    ("pcie.uplink-speed", {"pcie.slow": [SLOW]}, "8 of 32 GT/s"),
    ("nic.recovery", {"functions.1.id": "15b3:0218"}, "15b3:0218"),
    ("nic.gid-address", {"functions.1.gid3_address": "fe80:0000:0000:0000:0000:00ff:fe00:0001"}, "fe80:"),
    ("nic.gid-netdev", {"functions.1.gid3_netdev": "vlan7"}, "rdma1 (0000:0c:00.1): of vlan7"),
    ("nic.gid-duplicate", {"functions.1.gid3_address": "10.224.0.1"}, "10.224.0.1 on rdma0"),
    ("nic.gid-duplicate", {"functions.16.gid3_address": "10.224.0.1"}, "rdma0v0"),
    (
        "nic.mac-duplicate",
        {"functions.16.admin_mac": "02:00:00:00:00:77", "functions.17.admin_mac": "02:00:00:00:00:77"},
        "02:00:00:00:00:77 on ",
    ),
    (
        "nic.mac-duplicate",
        {"functions.1.mac": "02:00:00:00:00:78", "functions.16.admin_mac": "02:00:00:00:00:78"},
        "02:00:00:00:00:78 on rdma1",
    ),
    ("nic.gid-network", {"functions.1.gid3_address": "192.168.1.7"}, "192.168.1.7"),
    ("nic.pci-fit", {"functions.1.max_speed": 16.0}, "x16 at 16 GT/s carries 252 of 400 Gb/s"),
    ("nic.pfc", {"functions.1.pfc": []}, "priorities: none"),
    ("nic.trust", {"functions.1.trust": "pcp"}, "trust pcp"),
    ("nic.max-read", {"functions.1.max_read": 512}, "512 bytes"),
    ("host.oca-agent", {"oca.agent": "stopped"}, "the agent is stopped"),
    ("host.oca-errors", {"oca.errors": 2}, "2 error(s) after"),
    ("host.oca-boot", {"oca.this_boot": False}, "from an earlier boot"),
    ("nic.wpa", {"oca.supplicants": ["rdma0"]}, "15 of 16 ports: rdma1"),
    ("vf.link", {"functions.16.state": "DOWN"}, "DOWN"),
    ("vf.gid", {"functions.16.gid3": "IB/RoCE v1"}, "IB/RoCE v1"),
    ("rdma.uverbs", {"rdma.devices": ["rdma_cm", *(f"uverbs{n}" for n in range(20))]}, "20 uverbs devices for 34"),
    ("host.clocksource", {"limits.clocksource": "hpet"}, "clock source hpet"),
    ("counters.link-events", {"counters.ports.1.link_down_events_phy": 12}, "12 link losses in 1.0 days"),
    ("counters.receive-errors", {"counters.ports.1.port_rcv_errors": 4000}, "4000 broken packets"),
    ("counters.crc-errors", {"counters.ports.1.rx_crc_errors_phy": 4000}, "4000 wrong checksums"),
    ("counters.icrc-errors", {"counters.ports.1.rx_icrc_encapsulated": 77}, "77 damaged"),
    ("counters.discards", {"counters.ports.1.rx_discards_phy": 90000}, "90000 packets dropped"),
    ("counters.no-buffer", {"counters.ports.1.out_of_buffer": 900000}, "900000 packets without"),
    ("counters.ack-timeouts", {"counters.ports.1.local_ack_timeout_err": 5000}, "5000 answers"),
    ("counters.sequence-errors", {"counters.ports.1.packet_seq_err": 900000}, "900000 gaps"),
    ("counters.completion-errors", {"counters.ports.1.req_cqe_error": 90000}, "90000 failed"),
    ("os.cgroup-controllers", {"os.controllers": ["cpu", "io"]}, "cpu, io"),
    ("os.boot-options", {"os.boot_options": ["pci=noaer"]}, "pci=noaer"),
    ("os.modules-off", {"os.modules_off": ["mlx5_ib"]}, "mlx5_ib"),
    ("os.taints", {"os.taints": ["oops"]}, "oops"),
    ("os.cri-disabled", {"runtime.disabled": ["io.containerd.grpc.v1.cri"]}, "grpc.v1.cri"),
    ("os.pids-limit", {"runtime.pids_limit": 1024}, "1024 processes"),
    ("driver.cdi", {"runtime.cdi_driver": "570.172.08"}, "its libcuda is 570.172.08, the module 580.95.05"),
    ("driver.devices", {"driver.devices": ["nvidia-uvm", "nvidia0"]}, "1 of 8 GPUs (no nvidia1, nvidia2, nvidia3"),
    ("driver.nvlink-disabled", {"driver.parameters.NvLinkDisable": "1"}, "NvLinkDisable is 1"),
    ("driver.fabric-configured", {"driver.fabric_configured": False}, "no success"),
    ("driver.fabric-error", {"driver.fabric_error": "NVLink 12 failed"}, "NVLink 12 failed"),
    ("host.cpus", {"resources.cpus": 112}, "112 of 224 CPUs"),
    ("host.cpus", {"resources.cpus": 112, "resources.cpus_present": 112}, "112 of 224 CPUs"),
    ("host.memory-size", {"resources.memory": 2**40}, "1024 GiB"),
    ("host.memory-balance", {"resources.node_memory": [2**40, 2**39]}, "1024, 512 GiB"),
    ("host.memory-bad", {"resources.memory_bad": 12288}, "12288 bytes"),
    ("host.memory-free", {"resources.memory_free": 1}, "1 %"),
    ("host.hugepages", {"resources.hugepages": 70}, "70 % of the memory"),
    ("host.disk-free", {"resources.disk_free": 2}, "2 % of the fullest"),
    ("host.boost", {"resources.boost": False}, "boost is off"),
    ("gpu.excluded", {"gpus.1.excluded": True}, "0000:2d:00.0: excluded"),
    ("gpu.firmware", {"gpus.1.firmware": "N/A"}, "0000:2d:00.0: firmware N/A"),
    ("gpu.vbios", {"gpus.1.vbios": "96.00.68.00.01"}, "0000:2d:00.0: 96.00.68.00.01"),
    ("gpu.bar1", {"gpus.1.bar1": 2**28}, "BAR1 of 268435456 bytes"),
    ("gpu.bus-master", {"gpus.1.config.bus_master": False}, "bus master off"),
    ("gpu.memory", {"gpus.1.config.memory": False}, "0000:2d:00.0: memory space off"),
    ("gpu.max-payload", {"gpus.1.config.max_payload": 128}, "0000:2d:00.0: 128 bytes"),
    ("gpu.extended-tags", {"gpus.1.config.extended_tags": False}, "0000:2d:00.0: off"),
    ("nic.memory", {"functions.1.config.memory": False}, "rdma1 (0000:0c:00.1): memory space off"),
    ("gpu.power", {"gpus.1.config.power": "D3"}, "D3"),
    ("gpu.aspm", {"gpus.1.config.aspm": True}, "ASPM on"),
    ("pcie.aer-counted", {"gpus.1.aer_nonfatal": 3}, "0000:2d:00.0: 3 uncorrected"),
    ("pcie.aer-counted", {"functions.1.aer_fatal": 1}, "rdma1 (0000:0c:00.1): 1 uncorrected"),
    ("pcie.aer-corrected-counted", {"functions.1.aer_corrected": 9123}, "9123 corrected"),
    ("nic.carrier", {"functions.1.carrier_changes": 214}, "214 changes"),
    ("nic.bus-master", {"functions.1.config.bus_master": False}, "bus master off"),
    ("nic.power-state", {"functions.1.config.power": "D3"}, "D3"),
    ("nic.master", {"functions.1.master": "bond0"}, "belongs to bond0"),
    ("nic.ecn", {"functions.1.ecn_off": ["rp 5"]}, "off: rp 5"),
    ("nic.max-payload", {"functions.1.config.max_payload": 128}, "128 bytes"),
    ("nic.extended-tags", {"functions.1.config.extended_tags": False}, "off"),
    ("nic.aspm", {"functions.1.config.aspm": True}, "ASPM on"),
    ("nic.ats", {"functions.1.config.ats": True}, "ATS on"),
    ("nic.board", {"functions.1.board": "MT_0000000834"}, "MT_0000000834"),
    ("vf.admin-link", {"functions.16.admin.link": "disable"}, "state disable"),
    ("vf.admin-vlan", {"functions.16.admin.vlan": 7}, "VLAN 7"),
    ("vf.admin-rate", {"functions.16.admin.rate": 1000}, "at most 1000 Mb/s"),
    ("gpudirect.kernel-config", {"gpudirect.dmabuf.config": False}, "an option is missing"),
    ("host.route-errors", {"limits.default_route_errors": 9123}, "9123 packets with errors on eth0"),
    ("counters.retries-exceeded", {"counters.ports.1.req_transport_retries_exceeded": 9000}, "9000 requests without"),
    ("counters.slow-restarts", {"counters.ports.1.roce_slow_restart": 900000}, "900000 slow restarts"),
    ("counters.completion-errors", {"counters.ports.1.resp_cqe_error": 90000}, "90000 failed completions of answers"),
    (
        "counters.congestion",
        {"counters.ports.1.np_ecn_marked_roce_packets": 70000000},
        "70000000 packets with ECN marks",
    ),
    ("counters.link-recoveries", {"counters.ports.1.link_error_recovery": 40}, "40 recoveries"),
    ("counters.transmit-drops", {"counters.ports.1.tx_dropped_phy": 900000}, "900000 packets dropped"),
    ("counters.coding-errors", {"counters.ports.1.rx_symbol_err_phy": 48211}, "48211 symbols"),
    ("counters.frame-errors", {"counters.ports.1.rx_wrong_length_phy": 48211}, "48211 frames"),
    ("counters.pause-storms", {"counters.ports.1.pause_storms": 3}, "3 pause storms"),
    ("counters.module-errors", {"counters.ports.1.module_errors": 9}, "9 errors of the transceiver"),
    ("counters.pci-signal", {"counters.ports.1.pci_signal_integrity": 90000}, "90000 recoveries"),
    ("counters.pci-stalled", {"counters.ports.1.pci_stalled_seconds": 40000}, "40000 seconds"),
    ("counters.cnp-ignored", {"counters.ports.1.rp_cnp_ignored": 900000}, "900000 notifications"),
    ("counters.not-ready", {"counters.ports.1.rnr_nak_retry_err": 900000}, "900000 receivers"),
    ("counters.retransmissions", {"counters.ports.1.duplicate_request": 900000}, "900000 requests"),
    ("counters.remote-errors", {"counters.ports.1.resp_remote_access_errors": 9000}, "9000 requests"),
    # rule, what is changed, words of what was found
    ("host.platform", VM, "a virtual machine"),
    ("os.image", {"os.name": "Ubuntu 20.04.6 LTS"}, "Ubuntu 20.04.6 LTS"),
    ("os.secure-boot", {"os.secure_boot": True}, "Secure Boot is on"),
    ("os.lockdown", {"os.lockdown": "integrity"}, "lockdown integrity"),
    ("os.cgroup", {"os.cgroup": 1}, "cgroup v1"),
    ("os.runtime", {"runtime.name": "none"}, "no container runtime"),
    ("os.runtime-handler", {"runtime.nvidia_handler": False}, "crio has no handler nvidia"),
    ("os.cdi", {"runtime.cdi": []}, "no file in /etc/cdi"),
    ("driver.absent", {"driver.origin": "none"}, "no NVIDIA driver is loaded"),
    ("driver.old", {"driver.version": "460.106.00"}, "driver 460.106.00"),
    ("driver.cuda", {"driver.version": "570.172.08"}, "driver 570.172.08"),
    ("driver.fabric-manager", {"driver.fabric_manager": "stopped"}, "the fabric manager is stopped"),
    ("driver.fabric-manager", {"driver.fabric_manager": "absent", "nvswitches": 0}, "the fabric manager is absent"),
    ("driver.persistence", {"driver.persistence": False}, "does not run"),
    ("driver.xid", {"driver.xids": [{"code": 79, "pci": "0000:18:00.0", "count": 2}]}, "Xid 79 of 0000:18:00.0 x 2"),
    ("driver.xid-other", {"driver.xids": [{"code": 777, "pci": "0000:18:00.0", "count": 1}]}, "Xid 777"),
    ("driver.xid-log", {"driver.xids_since": "log"}, "begins after boot"),
    ("gpu.missing", {"gpus.2": "del"}, "7 of 8 GPUs; missing: 0000:44:00.0"),
    ("gpu.missing", {"gpus": []}, "0 of 8"),
    ("gpu.id", {"gpus.1.id": "10de:20f1"}, "1 of 8 GPUs: 0000:2d:00.0: 10de:20f1"),
    ("gpu.address", {"gpus.1.pci": "0000:ee:00.0"}, "0000:ee:00.0: an address that the shape does not have"),
    ("gpu.driver", {"gpus.*.driver": "vfio-pci"}, "8 of 8 GPUs: 0000:0f:00.0, "),
    ("gpu.driver", {"gpus.3.driver": ""}, "0000:5b:00.0: driver none"),
    ("gpu.link", {"gpus.2.width": 8}, "0000:44:00.0: x8 of x16"),
    ("gpu.link", {"gpus.2.width": 8, "gpus.2.max_width": 8}, "x8 of x16"),
    ("gpu.link-speed", {"gpus.2.speed": 8.0}, "8 of 32 GT/s"),
    ("gpu.link-speed", {"gpus.2.speed": 2.5, "gpus.2.max_speed": 2.5}, "2.5 of 32 GT/s"),
    ("gpu.numa", {"gpus.2.numa": 1}, "node 1, not 0"),
    ("gpu.ecc", {"gpus.5.ecc_errors": 3}, "3 ECC error(s)"),
    ("gpu.remap", {"gpus.5.remap_pending": True}, "waits for a reset"),
    ("nic.modules", {"nic_stack.modules.rdma_cm.loaded": False}, "not loaded: rdma_cm"),
    (
        "nic.same-build",
        {"nic_stack.same_build": False, "nic_stack.modules.ib_core.from": "kernel"},
        "ib_core from kernel",
    ),
    ("ofed.origin", {"nic_stack.origin": "operator"}, "OFED comes from the Network Operator"),
    ("nic.missing", {"functions.1": "del"}, "15 of 16 ports; missing: rdma1 (0000:0c:00.1)"),
    ("nic.missing", {"functions": []}, "0 of 16 ports; no Mellanox function"),
    (
        "nic.missing",
        {"functions": [], "other_nics": [{"pci": "0000:01:00.0", "id": "8086:1572", "driver": "i40e"}]},
        "other NICs: 8086:1572 i40e",
    ),
    ("nic.id", {"functions.1.id": "15b3:1019"}, "rdma1 (0000:0c:00.1): 15b3:1019"),
    ("nic.extra", {"functions.0.pci": "0000:ee:00.0"}, "15b3:1021, not in the shape"),
    ("nic.driver", {"functions.1.driver": "", "functions.1.hca": None}, "no driver"),
    ("nic.link", {"functions.1.state": "DOWN", "functions.1.physical": "Polling"}, "DOWN, Polling"),
    ("nic.rate", {"functions.1.rate": 25}, "1 of 16 ports: rdma1 (0000:0c:00.1): 25 Gb/s"),
    ("nic.link-layer", {"functions.1.link_layer": "InfiniBand"}, "InfiniBand"),
    ("nic.gid", {"functions.1.gid3": "IB/RoCE v1"}, "IB/RoCE v1"),
    ("nic.mtu", {"functions.1.mtu": 1500}, "MTU 1500"),
    ("nic.pci-link", {"functions.1.width": 8}, "x8 of x16"),
    ("nic.pci-link", {"functions.1.speed": 8.0}, "8 of 32 GT/s"),
    ("nic.pci-link", {"functions.1.speed": 2.5}, "2.5 of 32 GT/s"),
    ("nic.firmware", {"functions.1.firmware": "28.40.1000"}, "1 of 16 ports: rdma1 (0000:0c:00.1): 28.40.1000"),
    ("nic.gpu-distance", {"functions.1.gpu_distance": {"0000:0f:00.0": "SYS"}}, "SYS to its GPU 0000:0f:00.0"),
    ("nic.numa", {"functions.1.numa": 1}, "node 1, not 0"),
    ("host.pci-flat", {**VM, "functions.*.gpu_distance": {"0000:0f:00.0": "PHB"}}, "flat"),
    ("host.oca", {"oca.state": "pending"}, "pending"),
    ("vf.total", {"functions.1.totalvfs": 0}, "firmware offers 0 VF(s)"),
    ("vf.missing", {"functions.1.numvfs": 0}, "0 VF(s)"),
    ("vf.missing", {"functions.1.numvfs": 4}, "4 VF(s)"),
    ("vf.id", {"functions.16.id": "15b3:1018"}, "15b3:1018"),
    ("vf.driver", {"functions.16.driver": "vfio-pci"}, "vfio-pci"),
    ("vf.mtu", {"functions.16.mtu": 1500}, "MTU 1500"),
    ("vf.admin-mac", {"functions.16.admin_mac": "00:00:00:00:00:00"}, "never set"),
    ("vf.admin-mac", {"functions.16.admin_mac": "02:00:00:00:00:99"}, "the VF has 02:00:00:00:00:01"),
    ("gpudirect.nv-peer-mem", {"gpudirect.nv_peer_mem": True}, "nv_peer_mem is loaded"),
    ("peermem.not-loaded", {**NO_DMABUF, "gpudirect.peermem.loaded": False}, "no DMA-BUF: the driver's module"),
    ("peermem.ib-core", {**NO_DMABUF, "gpudirect.peermem.matches_ib_core": False}, "running ib_core"),
    ("peermem.not-registered", {**NO_DMABUF, "gpudirect.peermem.registered": False}, "memory_peers"),
    ("gpudirect.path", {"gpudirect.path": "none", "gpudirect.why": "no way"}, "none: no way"),
    ("gpudirect.open-module", {**NO_DMABUF}, "proprietary kernel modules"),
    ("peermem.idle", {"gpudirect.peermem.registered": False}, "not registered"),
    ("peermem.persistent", {**NO_DMABUF, "gpudirect.peermem.persistent": False}, "next boot"),
    ("gpudirect.nvidia-fs", {"gpudirect.nvidia_fs": True}, "nvidia_fs is loaded"),
    ("netns.mode", {"rdma.netns": "shared", "rdma.netns_configured": "shared"}, "mode shared"),
    ("netns.reboot", {"rdma.netns": "shared", "rdma.reboot_pending": True}, "shared now, exclusive after"),
    ("netns.reboot", {"rdma.netns_configured": "shared", "rdma.reboot_pending": True}, "exclusive now, shared after"),
    ("netns.persistent", {"rdma.netns_configured": "default"}, "nothing configures"),
    ("rdma.devices", {"rdma.devices": ["uverbs0"]}, "no rdma_cm, 1 of 16 uverbs"),
    ("memlock.runtime", {"limits.memlock_runtime": 8388608}, "containers may lock 8388608 bytes"),
    ("memlock.ssh", {"limits.memlock_ssh": 65536}, "SSH sessions may lock 65536 bytes"),
    ("host.iommu", {"limits.iommu": "on"}, "translates"),
    ("host.acs", {"limits.acs": ["0000:0a:00.0"]}, "0000:0a:00.0"),
    ("nic.relaxed-ordering", {"functions.1.config.relaxed_ordering": False}, "rdma1 (0000:0c:00.1): off"),
    ("host.governor", {"limits.governor": "powersave"}, "powersave"),
    ("host.time-sync", {"limits.time_sync": "unsynchronised"}, "unsynchronised"),
    ("host.default-route", {"limits.default_route": "rdma3"}, "rdma3"),
    ("counters.link-downed", {"counters.ports.1.link_downed": 12}, "mlx5_1: 12 times down"),
    ("counters.symbol-errors", {"counters.ports.1.symbol_error": 48211}, "48211 symbol errors"),
    ("counters.out-of-sequence", {"counters.ports.1.out_of_sequence": 900000}, "900000 packets"),
    ("counters.congestion", {"counters.ports.1.np_cnp_sent": 70000000}, "70000000 notifications sent"),
    ("counters.congestion", {"counters.ports.1.rp_cnp_handled": 70000000}, "70000000 notifications handled"),
    ("counters.pause", {"counters.ports.1.tx_pause": 7100000}, "7100000 pauses sent"),
]


@pytest.mark.parametrize(("rule", "change", "words"), FAULTS, ids=[f"{item[0]}-{n}" for n, item in enumerate(FAULTS)])
def test_a_fault_is_named(rule: str, change: Json, words: str) -> None:
    document = healthy()
    for path, value in change.items():
        put(document, path, value)
    found = status(document, rule)
    assert found.status == RULES[rule].severity
    assert words in found.found and found.expected
    findings = rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)
    told = next(item for item in findings if item.id == rule)
    assert (told.severity, told.subject) == (rules.SEVERITIES[found.status], "gpu-0")
    assert told.remedy == RULES[rule].remedy


def test_idle_links_at_the_lowest_speed_are_no_fault_and_no_pass() -> None:
    gpus, nics = healthy(), healthy()
    for gpu in gpus["gpus"][:3]:
        gpu["speed"] = 2.5
    found = status(gpus, "gpu.link-speed")
    assert found.status == "unknown" and "3 GPUs at 2.5 GT/s, as idle ones may be (0000:0f:00.0" in found.found
    assert status(put(gpus, "gpus.*.speed", 2.5), "gpu.link-speed").status == "skip"
    found = status(put(nics, "functions.*.speed", 2.5), "nic.pci-link")
    assert found.status == "unknown" and "16 ports at 2.5 GT/s" in found.found
    assert status(put(nics, "functions.3.width", 8), "nic.pci-link").status == "fail"


def test_a_counter_that_this_kernel_does_not_have_is_skipped_and_one_that_cannot_be_read_is_not() -> None:
    document = put(healthy(), "counters.ports.*.roce_slow_restart", None)
    assert status(document, "counters.slow-restarts").status == "unknown"
    document["unread"] = {"counters.ports.roce_slow_restart": "HCA/ports/*/hw_counters/roce_slow_restart: not found"}
    assert status(document, "counters.slow-restarts").status == "skip"
    document = put(healthy(), "counters.ports.*.req_rnr_retries_exceeded", None)
    document["unread"] = {"counters.ports.req_rnr_retries_exceeded": "not found (16 of them, first mlx5_0)"}
    assert status(document, "counters.retries-exceeded").status == "pass", "by the other counter"


def test_infiniband_is_judged_by_its_own_counters() -> None:
    document = put(healthy(INFINIBAND), "counters.ports.1.port_xmit_wait", 7 * 10**10)
    assert "ticks of waiting" in status(document, "counters.subnet-wait", INFINIBAND).found
    put(document, "counters.ports.1.port_xmit_data", 10**12)
    assert status(document, "counters.subnet-wait", INFINIBAND).status == "pass", "18 per cent of 4,000 GB"
    put(document, "counters.ports.1.VL15_dropped", 9000)
    assert "9000 management packets" in status(document, "counters.subnet-errors", INFINIBAND).found


def test_a_missing_device_is_named_by_its_number() -> None:
    document = healthy()
    document["rdma"]["devices"] = ["rdma_cm", *(f"uverbs{number}" for number in range(34) if number not in (3, 7))]
    assert "(no uverbs3, uverbs7)" in status(document, "rdma.uverbs").found


def test_every_rule_can_fail() -> None:
    with_inputs = {"netns.shared", "driver.origin", "nic.names", "vf.left", *B200_RULES, *IB_RULES}
    tried = {rule for rule, _change, _words in FAULTS} | with_inputs
    assert tried == set(RULES), "each rule has a case in FAULTS, and each case a rule"


# ---- what is not known is not passed -------------------------------------------------------------------------------

NEEDS = [(rule.id, path) for rule in TABLE.rules for path in facts_of(rule)]
CONTEXT: dict[str, Json] = {
    # What must be so for the rule to ask for all its facts.
    "driver.ib-umad": {},
    "peermem.not-loaded": NO_DMABUF,
    "peermem.ib-core": NO_DMABUF,
    "peermem.not-registered": NO_DMABUF,
    "peermem.persistent": NO_DMABUF,
    "gpudirect.open-module": NO_DMABUF,
    "host.pci-flat": VM,
    "netns.mode": {"rdma.netns": "shared"},
}


@pytest.mark.parametrize(("rule", "path"), NEEDS, ids=[f"{rule}-{path}" for rule, path in NEEDS])
def test_without_a_fact_a_rule_does_not_pass(rule: str, path: str) -> None:
    mode = {"vf.left": "host", "nic.names": "host", "netns.shared": "shared"}.get(rule, "sriov")
    how = {"driver": "host"} if rule == "driver.origin" else {"ofed": "host"} if rule == "ofed.origin" else {}
    shape = B200 if rule in B200_RULES else INFINIBAND if rule in IB_RULES else H100
    document = healthy(shape, mode)
    for key, value in CONTEXT.get(rule, {}).items():
        put(document, key, value)
    for group in ("functions.", "gpus.", "counters.ports."):
        if path.startswith(group):
            path = f"{group}*.{path[len(group) :]}"
    put(document, path, None)
    if rule == "ofed.origin" and path == "platform.oci":
        put(document, "nic_stack.origin", "operator")
    found = status(document, rule, shape, mode=mode, **how)
    if path == "nvswitches" and rule.startswith("driver.fabric-"):
        assert found.status == "pass"  # This shape's GPUs are known to hang on NVSwitches.
        found = status(put(healthy(SHAPES["BM.GPU.L40S.4"]), path, None), rule, SHAPES["BM.GPU.L40S.4"])
    assert found.status in ("unknown", "skip")
    if found.status == "skip":
        assert found.found.startswith("follows from ")


def paths_read(rule: rules.HostRule, document: Json, shape: Shape, mode: str, **how: Any) -> set[tuple[str | int, ...]]:
    """Paths of the leaves of a document that a rule reads."""
    read: set[tuple[str | int, ...]] = set()

    def watched(value: Any, path: tuple[str | int, ...] = ()) -> Any:
        if isinstance(value, dict):
            return Watched({key: watched(below, (*path, key)) for key, below in value.items()}, path)
        if isinstance(value, list):
            return [watched(below, (*path, number)) for number, below in enumerate(value)]
        return value

    class Watched(dict):  # type: ignore[type-arg]
        def __init__(self, values: Json, path: tuple[str | int, ...]) -> None:
            super().__init__(values)
            self.path = path

        def __getitem__(self, key: str) -> Any:
            read.add((*self.path, key))
            return super().__getitem__(key)

        def get(self, key: str, default: Any = None) -> Any:
            if key in self:
                read.add((*self.path, key))
            return super().get(key, default)

    rules.results(TABLE, watched(document), shape, mode=Mode(mode), profile=CURRENT, select=[rule.id], **how)
    return {path for path in read if not any(len(other) > len(path) and other[: len(path)] == path for other in read)}


# Facts that a rule only reads to name a device or to say more of a fault, or that another fact stands in for.
ONLY_WORDS = {
    "unread",
    "host",
    "v",
    "physical",
    "why",
    "kind",
    "pci",
    "netdev",
    "functions_omitted",
    "interval",
    "code",
}
# (rule, fact): the rule's other facts decide, or null is a value of the fact (no file: the agent's default).
STANDS_IN = {
    *((f"vf.{name}", "driver") for name in ("mtu", "link", "gid", "admin-mac")),
    ("nic.mac-duplicate", "of"),
    *((rule, "driver") for rule in ("nic.gid-duplicate", "rdma.uverbs")),
    *(("host.pci-flat", key) for key in ("of", "id")),
    *(("peermem.not-loaded", key) for key in ("kernel", "open_module", "driver", "gpu")),
    ("nic.gid-network", "rdma_network"),
}


@pytest.mark.parametrize("rule", TABLE.rules, ids=lambda rule: rule.id)
def test_no_rule_passes_on_a_fact_that_is_null_absent_or_cut(rule: rules.HostRule) -> None:
    """Of every fact that the rule was seen to read: no other value of it than the good one lets the rule pass."""
    mode = {"vf.left": "host", "nic.names": "host", "netns.shared": "shared"}.get(rule.id, "sriov")
    how = {"driver": "host"} if rule.id == "driver.origin" else {"ofed": "host"} if rule.id == "ofed.origin" else {}
    shape = B200 if rule.id in B200_RULES else INFINIBAND if rule.id in IB_RULES else H100
    good = healthy(shape, mode)
    for key, value in CONTEXT.get(rule.id, {}).items():
        put(good, key, value)
    if rule.id == "netns.mode":
        put(good, "rdma.netns", "exclusive")
    read = [path for path in sorted(paths_read(rule, good, shape, mode, **how), key=str) if path[-1] not in ONLY_WORDS]
    # Of devices of one kind one stands for all.
    paths = {tuple(key for key in path if not isinstance(key, int)): path for path in reversed(read)}.values()
    before = status(good, rule.id, shape, mode=mode, **how, select=[rule.id]).status
    assert before in ("pass", "skip", "warn")
    for path in paths if before == "pass" else ():
        place: Any = good
        for key in path[:-1]:
            place = place[key]
        value = place.pop(path[-1])
        values = {"absent": place, "null": None}
        if ".".join(map(str, path)) in TABLE.values:
            values["cut"] = value[: len(value) // 2]
        for damage, other in values.items():
            if damage != "absent":
                place[path[-1]] = other
            found = status(good, rule.id, shape, mode=mode, **how, select=[rule.id])
            allowed = (rule.id, path[-1]) in STANDS_IN
            assert allowed or found.status not in ("pass", "skip"), (path, damage, found.found)
        place[path[-1]] = value


def test_an_empty_document_passes_nothing() -> None:
    for mode in ("sriov", "host"):
        found = rules.results(TABLE, {"v": 1}, H100, mode=Mode(mode), profile=CURRENT)
        assert not [item.rule.id for item in found if item.status == "pass"]
    findings = rules.judge(TABLE, {"v": 1}, H100, mode=Mode.SRIOV, profile=CURRENT)
    assert {item.severity for item in findings} == {"unknown"}
    assert "driver.absent" in {item.id for item in findings}


def test_the_probes_reason_is_told() -> None:
    document = put(healthy(), "functions.*.state", None)
    document["unread"]["functions.state"] = "permission denied (18 of them, first 0000:0c:00.0)"
    found = status(document, "nic.link")
    assert found.found == "functions.state is unknown: permission denied (18 of them, first 0000:0c:00.0)"
    document = put(healthy(), "limits", None)
    document["unread"]["limits"] = "no proc"
    assert "no proc" in status(document, "host.iommu").found


def test_a_proven_fault_counts_before_a_missing_fact() -> None:
    document = put(put(healthy(), "functions.0.state", None), "functions.1.state", "DOWN")
    assert status(document, "nic.link").status == "fail"
    document = put(put(healthy(), "functions.0.width", None), "functions.0.speed", 8.0)
    assert status(document, "nic.pci-link").status == "fail"
    document = put(put(healthy(), "nic_stack.modules.ib_core", None), "nic_stack.modules.rdma_cm.loaded", False)
    assert status(document, "nic.modules").status == "fail"


@pytest.mark.parametrize("rule", ["host.default-route", "nic.relaxed-ordering", "host.acs"])
def test_a_fact_about_all_ports_says_nothing_of_one_that_is_not_there(rule: str) -> None:
    document = put(healthy(), "functions.1", "del")
    only = rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT, select=[rule])
    assert [item.severity for item in only] == ["unknown"]


def test_without_modules_dep_the_next_build_is_not_known() -> None:
    for name in rules.MODULES:
        document = put(healthy(), f"nic_stack.modules.{name}.file", None)
        assert status(document, "nic.same-build").status == "unknown"


def test_what_follows_from_a_fault_is_told_once() -> None:
    document = put(healthy(), "functions.1", "del")
    assert [item.id for item in rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)] == ["nic.missing"]
    alone = rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT, select=["nic.link"])
    assert [(item.id, item.severity) for item in alone] == [("nic.link", "unknown")]
    assert "rdma1 (0000:0c:00.1)" in alone[0].found
    document = put(healthy(), "driver.origin", "none")
    assert status(document, "driver.old").status == "skip"


def test_ports_without_a_known_rate_are_compared_with_each_other() -> None:
    shape = SHAPES["BM.GPU.L40S-NC.4"]
    assert shape.line_gbps is None
    document = put(healthy(shape), "functions.0.rate", 100)
    found = status(document, "nic.rate", shape)
    assert found.status == "fail" and "400 Gb/s, the rate of the fastest port" in found.expected


def test_vfs_in_pods_have_left_the_host() -> None:
    document = healthy()
    for vf in document["functions"]:
        if vf["kind"] == "vf":
            vf.update(netdev=None, hca=None, mtu=None, mac=None, state=None)
    assert rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT) == []
    put(document, "functions.20.hca", "mlx5_9")
    assert status(document, "vf.mtu").status == "unknown"


def test_vfs_that_the_probe_left_out_are_not_passed() -> None:
    document = healthy()
    document["functions"] = [item for item in document["functions"] if item["kind"] == "pf"]
    assert status(document, "vf.missing").status == "pass"
    assert status(document, "vf.driver").status == "unknown"


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_mode_host_wants_no_vfs_and_the_names_of_the_list() -> None:
    document = healthy(mode="host")
    put(document, "functions.3.numvfs", 2)
    assert status(document, "vf.left", mode="host").found == "1 of 16 ports: rdma3 (0000:2a:00.1): 2 VF(s)"
    put(document, "functions.3.hca", "rocep42s0f1")
    assert status(document, "nic.names", mode="host").status == "fail"
    assert status(document, "vf.missing", mode="host").status == "skip"
    assert status(document, "netns.mode", mode="host").status == "skip"


def test_mode_shared_wants_no_vfs_and_shared_namespaces() -> None:
    document = healthy(mode="host")
    assert status(document, "netns.shared", mode="shared").status == "pass"
    assert status(document, "netns.mode", mode="shared").status == status(document, "vf.missing", mode="shared").status
    put(document, "rdma.netns", "exclusive")
    found = status(document, "netns.shared", mode="shared")
    assert (found.status, found.found) == ("fail", "RDMA namespace mode exclusive")
    assert status(document, "netns.shared", mode="host").status == "skip", "pods of mode host see all devices"


@pytest.mark.parametrize(
    ("wanted", "origin", "expected"),
    [
        ("auto", "host", "skip"),
        ("auto", "operator", "skip"),
        ("host", "host", "pass"),
        ("host", "operator", "fail"),
        ("operator", "host", "fail"),
        ("operator", "operator", "pass"),
        ("operator", "none", "skip"),
    ],
)
def test_driver_origin(wanted: str, origin: str, expected: str) -> None:
    document = put(healthy(), "driver.origin", origin)
    assert status(document, "driver.origin", driver=wanted).status == expected


@pytest.mark.parametrize(
    ("wanted", "origin", "oci", "expected"),
    [
        ("auto", "host", False, "skip"),
        ("auto", "operator", False, "skip"),
        ("auto", "operator", True, "fail"),
        ("host", "kernel", False, "pass"),
        ("host", "operator", False, "fail"),
        ("operator", "host", False, "fail"),
        ("operator", "operator", False, "pass"),
        ("operator", "operator", True, "fail"),
        ("auto", "none", True, "skip"),
    ],
)
def test_ofed_origin(wanted: str, origin: str, oci: bool, expected: str) -> None:
    document = put(put(healthy(), "nic_stack.origin", origin), "platform.oci", oci)
    assert status(document, "ofed.origin", ofed=wanted).status == expected


def test_application_xids_are_not_told() -> None:
    xids = [{"code": code, "pci": "0000:18:00.0", "count": 9} for code in (13, 31, 43, 45, 48, 63)]
    document = put(healthy(), "driver.xids", xids)
    assert (status(document, "driver.xid").status, status(document, "driver.xid-other").status) == ("pass", "pass")


def test_dmabuf_makes_peermem_matter_less() -> None:
    document = put(put(healthy(), "gpudirect.peermem.loaded", False), "gpudirect.peermem.registered", False)
    assert rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT) == []


def test_the_operators_driver_loads_peermem_itself() -> None:
    document = healthy()
    for path, value in {**NO_DMABUF, "gpudirect.peermem.persistent": False, "driver.origin": "operator"}.items():
        put(document, path, value)
    assert status(document, "peermem.persistent").status == "skip"


@pytest.mark.parametrize(
    ("delta", "total", "expected"),
    [
        (0, 9_000_000, "pass"),
        (5000, 0, "pass"),
        (50_000, 0, "warn"),
        (None, 9_000_000, "unknown"),
        # Reset in between, by the driver or by hand: 300 since then, or 50,000.
        (-8_999_700, 9_000_000, "unknown"),
        (-8_950_000, 9_000_000, "warn"),
    ],
)
def test_read_twice_the_rate_counts(delta: Any, total: int, expected: str) -> None:
    document = put(healthy(), "counters.interval", 10)
    put(document, "counters.ports.2.rx_pause", total)
    put(document, "counters.ports.*.delta", {"rx_pause": 0, "tx_pause": 0})
    put(document, "counters.ports.2.delta", {"rx_pause": delta, "tx_pause": 0, **dict.fromkeys(BYTES, 0)})
    found = status(document, "counters.pause")
    assert found.status == expected
    if delta:
        words = {"pass": "", "warn": "50000 pauses received in 10 s", "unknown": "rx_pause of mlx5_3 decreased"}
        assert words[expected] in found.found


# ---- platforms -----------------------------------------------------------------------------------------------------


def test_a_vm_is_judged_by_what_it_shows() -> None:
    document = put(healthy(), "platform.kind", "vm")
    for number, gpu in enumerate(document["gpus"]):
        gpu["pci"] = f"0000:00:{number:02x}.0"
    found = {item.rule.id: item for item in rules.results(TABLE, document, H100, mode=Mode.HOST, profile=CURRENT)}
    assert found["gpu.missing"].status == "pass" and found["nic.missing"].status == "pass"
    for hidden in ("gpu.address", "gpu.link", "nic.pci-link", "host.acs", "host.iommu"):
        assert found[hidden].status == "unknown", hidden
    assert found["host.acs"].found == "not visible inside a virtual machine"
    assert found["host.pci-flat"].status == "pass"
    assert found["nic.gpu-distance"].found.startswith("follows from gpu.address")
    one = put(copy.deepcopy(document), "gpus", document["gpus"][:1])
    assert status(one, "gpu.missing").found == "1 of 8 GPUs; missing: 7 GPU(s)"


def test_a_container_says_little_of_its_host() -> None:
    document = put(healthy(), "platform.kind", "container")
    assert status(document, "host.platform").status == "unknown"
    assert status(document, "memlock.runtime").status in ("unknown", "skip")
    assert status(document, "gpu.missing").status == "pass"


# ---- selecting, refusing -------------------------------------------------------------------------------------------


def test_select_and_mute() -> None:
    document = put(put(healthy(), "limits.iommu", "on"), "functions.1.state", "DOWN")

    def judge(**how: Any) -> list[str]:
        found = rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT, **how)
        return [item.id for item in found]

    assert judge() == ["nic.link", "host.iommu"]
    assert judge(select=["host.iommu", "host.acs"]) == ["host.iommu"]
    assert judge(mute=["host.iommu"]) == ["nic.link"]
    # What followed from a muted rule is told: without a link a port's rate is not known.
    assert judge(mute=["nic.link", "host.iommu"]) == ["nic.rate"]
    assert judge(select=["host.iommu"], mute=["host.acs"]) == ["host.iommu"]
    with pytest.raises(InputError, match=r"'nic.lnk' \(nearest: nic.link\)"):
        judge(mute=["nic.lnk"])
    with pytest.raises(InputError, match="'zzz'"):
        judge(select=["zzz"])
    with pytest.raises(InputError, match="No host rule is left"):
        judge(select=["host.iommu"], mute=["host.iommu"])


def test_worst_first() -> None:
    document = put(put(put(healthy(), "limits.iommu", "on"), "limits.acs", None), "functions.1.state", "DOWN")
    found = rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)
    assert [(item.id, item.severity) for item in found] == [
        ("nic.link", "error"),
        ("host.acs", "unknown"),
        ("host.iommu", "warning"),
    ]
    assert "mute host.acs" in found[1].remedy


def test_a_counter_is_a_rate_over_the_uptime() -> None:
    document = put(healthy(), "counters.ports.1.link_downed", 12)
    assert status(document, "counters.link-downed").found == "1 of 16 ports: mlx5_1: 12 times down in 1.0 days"
    assert status(put(document, "uptime", 10 * 86400), "counters.link-downed").status == "pass"
    assert status(put(document, "uptime", 60), "counters.link-downed").status == "warn"


@pytest.mark.parametrize(("name", "full"), [("link_downed", 255), ("symbol_error", 65535), ("port_rcv_errors", 65535)])
def test_a_counter_at_its_end_is_no_rate(name: str, full: int) -> None:
    """It has 8 or 16 bits and stays there: over a year it was few errors a day, between two readings none."""
    (rule,) = (one.id for one in TABLE.rules if name in one.counters)
    document = put(put(healthy(), f"counters.ports.1.{name}", full), "uptime", 365 * 86400)
    found = status(document, rule)
    assert (found.status, f"{name} of mlx5_1 has reached its maximum, {full}" in found.found) == ("unknown", True), (
        found
    )
    assert status(put(document, f"counters.ports.1.{name}", full - 1), rule).status == "pass"
    assert status(put(put(document, "uptime", 3600), f"counters.ports.1.{name}", full), rule).status == "warn"
    again = put(put(document, "counters.interval", 10), "counters.ports.*.delta", {name: 0})
    assert status(put(again, f"counters.ports.1.{name}", full), rule).status == "unknown"
    assert status(put(again, f"counters.ports.1.{name}", 4), rule).status == "pass"
    put(again, f"counters.ports.1.{name}", full - 3)
    put(again, "counters.ports.1.delta", {name: 3})
    assert status(again, rule).status == "warn"


def test_the_fabric_manager_of_a_b200_needs_ib_umad() -> None:
    document = healthy(B200)
    assert status(document, "driver.ib-umad", B200).status == "pass"
    assert status(put(document, "driver.modules.ib_umad", False), "driver.ib-umad", B200).status == "fail"
    assert status(healthy(), "driver.ib-umad").status == "skip"


def test_an_older_probes_document_is_unknown_where_it_lacks_a_fact() -> None:
    """A new fact makes no node fail, and passes none, that has not been probed anew."""
    document = healthy()
    for key in ("uptime", "kernel_log", "nvswitch_bridges", "pcie"):
        del document[key]
    for key in ("library", "fabric_manager_version", "modules"):
        del document["driver"][key]
    for key in ("agent", "errors", "configured", "this_boot", "supplicants"):
        del document["oca"][key]
    for item in document["functions"]:
        for key in ("gid3_address", "gid3_netdev", "pfc", "trust", "max_read"):
            item.pop(key, None)
    found = {item.rule.id: item for item in rules.results(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)}
    assert {item.status for item in found.values()} <= {"pass", "skip", "unknown"}
    assert {"gpu.init", "nvswitch.bridges", "pcie.uplink-width", "driver.library", "nic.wpa", "nic.pfc"} <= {
        name for name, item in found.items() if item.status == "unknown"
    }


@pytest.mark.parametrize("value", [10**400, -1, float("inf"), "", "x", [], {}, [None]])
def test_no_value_of_a_fact_raises(value: Any) -> None:
    """A document comes from the cluster: whatever it holds, each rule answers."""
    for path in ("uptime", "nvswitches", "oca.rdma_network", "oca.supplicants", "driver.version", "pcie.slow"):
        rules.judge(TABLE, put(healthy(), path, value), H100, mode=Mode.SRIOV, profile=CURRENT)
    for path in ("functions.*.rate", "functions.*.max_speed", "functions.*.gid3_address", "functions.*.pfc"):
        rules.judge(TABLE, put(healthy(), path, value), H100, mode=Mode.SRIOV, profile=CURRENT)
    for path in ("counters.ports.*.rx_pause", "kernel_log.events", "driver.xids", "gpus.*.width", "functions.1.pci"):
        rules.judge(TABLE, put(healthy(), path, value), H100, mode=Mode.SRIOV, profile=CURRENT)


def test_documents_of_another_format_and_refused_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="format 2, not 1"):
        rules.judge(TABLE, {**healthy(), "v": 2}, H100, mode=Mode.SRIOV, profile=CURRENT)
    refused = SHAPES["BM.GPU.MI300X.8"]
    with pytest.raises(InputError, match=r"BM\.GPU\.MI300X\.8"):
        rules.judge(TABLE, healthy(), refused, mode=Mode.SRIOV, profile=CURRENT)


def test_a_thousand_hosts_are_judged_in_seconds() -> None:
    import time

    document, begin = healthy(), time.process_time()
    for _number in range(100):
        rules.judge(TABLE, document, H100, mode=Mode.SRIOV, profile=CURRENT)
    assert time.process_time() - begin < 1.0


def test_infiniband_has_other_facts_than_roce() -> None:
    shape = dataclasses.replace(SHAPES["BM.GPU.H200.8"], link_layer="InfiniBand", site=True, pfc=(), trust="", mtu=None)
    document = healthy(shape, "host")
    for port in document["functions"]:
        roce = dict.fromkeys(("gid3", "gid3_address", "gid3_netdev", "pfc", "trust"))
        port.update(link_layer="InfiniBand", mtu=2044, **roce)
    assert rules.judge(TABLE, document, shape, mode=Mode.HOST, profile=CURRENT) == []
    document["functions"][0]["link_layer"] = "Ethernet"
    (told,) = rules.judge(TABLE, document, shape, mode=Mode.HOST, profile=CURRENT)
    assert told.id == "nic.link-layer" and told.expected == "InfiniBand"
