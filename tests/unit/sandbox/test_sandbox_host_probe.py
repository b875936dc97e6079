# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hosts follow the sandbox's own state: VFs, faults, operators, what has been mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpuops_sandbox import faults
from gpuops_sandbox.cluster import SandboxError
from gpuops_sandbox.context import Fault, load_shapes
from gpuops_sandbox.operators import host_probe
from gpuops_sandbox.operators._machines import Machine
from gpuops_sandbox.vfhost import MemoryHost

H100 = load_shapes()["BM.GPU.H100.8"]
NODE = "10.140.0.1"


def machine(configured: bool = True, **held: str) -> Machine:
    host = MemoryHost(H100, {name.replace("_", "-"): arg for name, arg in held.items()})
    made = Machine(H100, host)
    if configured:
        made.keeper = object()
        for pci in host.pfs:
            try:
                host.write(f"/sys/bus/pci/devices/{pci}/sriov_numvfs", "1")
            except OSError:
                continue
    return made


def described(made: Machine, *kept: Fault, cured: set[str] = frozenset(), apps: set[str] = frozenset()) -> Any:  # type: ignore[assignment]
    return host_probe.describe(made, list(kept), set(cured), set(apps), "current")


def test_counters_grow_between_two_readings() -> None:
    ports = [{"hca": hca, "port": 1, "tx_bytes_phy": 7, "link_downed": 3, "delta": None} for hca in ("a", "b")]
    twice = host_probe.twice({"interval": 0, "ports": ports}, 2.0, {"b"})
    assert twice["interval"] == 2.0
    assert [port["delta"] for port in twice["ports"]] == [
        {"tx_bytes_phy": 0, "link_downed": 0},
        {"tx_bytes_phy": 80_000_000_000, "link_downed": 0},
    ]


def test_a_host_without_vf_configuration_is_one_for_mode_host() -> None:
    wrong, description = described(machine(configured=False))
    assert (wrong, description["mode"]) == ((), "host")
    wrong, description = described(machine())
    assert (wrong, description["mode"], description["vfs"]) == ((), "sriov", "idle")


def test_vfs_are_those_of_the_machine() -> None:
    assert described(machine(vf_missing="3"))[0] == ("vfs-missing=3",)
    assert described(machine(vf_config_fails=""))[0] == tuple(f"vfs-missing={rail}" for rail in range(16))
    none, _description = described(machine(no_totalvfs="", vf_config_fails=""))
    assert none[0] == "no-totalvfs=0"
    used = machine()
    used.host.used.add("0000:0c:01.0")
    assert described(used)[1]["vfs"] == "in_pods"


def test_faults_of_the_sandbox_and_of_the_host_are_taken_and_a_reboot_cures() -> None:
    shared = Fault("netns-shared", NODE)
    assert described(machine(netns_shared=""), shared)[0] == ("netns-shared",)
    assert described(machine(), shared)[0] == (), "the machine was rebooted into exclusive mode"
    wrong, _description = described(machine(), Fault("host-port-down", NODE, "4"), Fault("host-acs", NODE))
    assert wrong == ("port-down=4", "acs")


def test_operators_and_the_peermem_pod_change_the_host() -> None:
    assert described(machine(), apps={"nvidia-driver-daemonset"})[1]["driver"] == "operator"
    assert described(machine(), apps={"mofed"})[1]["ofed_origin"] == "operator"
    wrong, description = described(machine(), Fault("host-peermem-not-loaded", NODE), cured={"peermem-not-loaded"})
    assert wrong == ()
    assert (description["peermem"], description["module"]) == (True, "proprietary")


def test_like_hosts_share_a_tree_and_a_probe(tmp_path: Path) -> None:
    hosts = host_probe.Hosts(tmp_path)
    wrong, description = described(machine())
    one = hosts.document(H100.name, wrong, description)
    assert hosts.document(H100.name, wrong, description) is one
    other = hosts.document(H100.name, ("port-down=1",), description)
    assert [item["state"] for item in other["functions"][:2]] == ["ACTIVE", "DOWN"]
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert host_probe.Hosts(tmp_path).document(H100.name, wrong, description)["gpus"] == one["gpus"]


def test_every_fault_of_the_catalogue_can_be_asked_for() -> None:
    assert faults.parse("host-gpu-link-width:0:5", [NODE]) == Fault("host-gpu-link-width", NODE, "5")
    with pytest.raises(SandboxError, match="host-port-down"):
        faults.parse("host-port-dwn:0", [NODE])
    assert "host-ID:NODE[:PLACE]" in faults.table()
    assert "peermem-not-registered" in faults.table()
