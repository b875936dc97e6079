# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fault on a host, from its files to the rule that names it: tree -> probe -> document -> rules."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support import host_faults, host_incidents, host_memory, host_trees, matrix
from support.host_faults import Fault
from support.host_layout import Files, Link
from support.host_trees import FAULTS, Host, Tree
from support.paths import ROOT

SUPPORTED = sorted(name for name, shape in shape_table.shapes().items() if shape.status == "supported")
RULES = rules.table(data.load(data.FILES / "host_rules.yml"))
WELL = ("pass", "skip")
UNRECOGNISED = "host.kernel-errors"
"""Unknown is what this rule says of a host with a fault; of others it says that a fact is missing."""
OTHER_SHAPES = ("BM.GPU4.8", "BM.GPU.H200.8", "BM.GPU.L40S.4")
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
every_shape = pytest.mark.parametrize("name", SUPPORTED)


def how(fault: Fault | None = None) -> dict[str, Any]:
    profile = data.profile("current")
    if fault and fault.id == "nvidia-fs":
        # The profile's own values already keep the device plugin from handing out every NIC.
        profile = copy.deepcopy(profile)
        del profile["gpu_operator"]["values"]["devicePlugin"]["env"]
    given = {"mode": "sriov", "profile": profile, **(fault.how if fault else {})}
    return {**given, "mode": Mode(given["mode"])}


def statuses(files: Files, shape: str, **given: Any) -> dict[str, rules.RuleResult]:
    found = rules.results(RULES, host_memory.probe(files), host_trees.shape(shape), **given)
    return {result.rule.id: result for result in found}


@functools.cache
def document(fault: str) -> dict[str, Any]:
    """What the probe says of a host of the fault's own shape."""
    return host_memory.probe(faulty(FAULTS[fault]))


@functools.cache
def well(shape: str, mode: str) -> set[str]:
    """The rules that a healthy host keeps."""
    results = statuses(host_trees.tree(Host(shape, mode=mode)), shape, **{**how(), "mode": Mode(mode)})
    return {name for name, result in results.items() if result.status in WELL}


def wrong(results: Mapping[str, rules.RuleResult]) -> dict[str, tuple[str, str]]:
    return {name: (one.status, one.found) for name, one in results.items() if one.status not in WELL}


def faulty(fault: Fault, shape: str = "", place: str = "") -> Tree:
    return host_trees.tree(Host(shape or fault.shape, mode=fault.mode, faults=(fault.id + place,)))


# --- healthy hosts ---------------------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "doca": {},
    "host mode": {"mode": "host"},
    "24.04, inbox, DMA-BUF": {"image": "ubuntu24.04", "ofed": "inbox", "runtime": "containerd"},
    "operator's driver": {"driver": "operator", "runtime": "containerd"},
    "VFs in pods": {"vfs": "in_pods"},
}


@every_shape
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_healthy_host_passes_with_nothing_unknown(name: str, variant: str) -> None:
    host = Host(name, **VARIANTS[variant])
    results = statuses(host_trees.tree(host), name, **{**how(), "mode": Mode(host.mode)})
    assert wrong(results) == {}
    passed = sum(result.status == "pass" for result in results.values())
    assert passed >= (50 if host.mode == "sriov" else 45), "a rule that is skipped everywhere proves nothing"


@pytest.mark.parametrize("name", ["BM.GPU.H100.8", "BM.GPU4.8", "BM.GPU.A100-v2.8", "BM.GPU.B4.8"])
def test_a_healthy_host_of_the_guide_passes(name: str) -> None:
    """Kernel 4.18 and the proprietary module: GPUDirect by nvidia_peermem."""
    host = Host(name, image="ol8-rhck", ofed="mlnx_ofed", module="proprietary", driver_version="535.183.01")
    files = host_trees.tree(host)
    assert wrong(statuses(files, name, mode=Mode.SRIOV, profile=data.profile("guide-2024"))) == {}
    assert host_memory.probe(files)["gpudirect"]["path"] == "peermem"


def test_a_container_and_a_gpu_machine_without_nics_are_told_apart() -> None:
    vm = host_trees.describe("h200-vm")
    found = wrong(statuses(host_trees.tree(vm), vm.shape, **how()))
    assert (found["nic.missing"][0], found["gpu.missing"][0], found["gpudirect.path"][0]) == ("fail", "fail", "fail")
    box = host_trees.describe("in-a-container")
    found = wrong(statuses(host_trees.tree(box), box.shape, **how()))
    assert {status for status, _ in found.values()} == {"unknown"} and "host.platform" in found


# --- every fault -----------------------------------------------------------------------------------------------------


@every_fault
def test_the_fault_is_named_with_its_remedy(fault: Fault) -> None:
    shape = host_trees.shape(fault.shape)
    results = rules.results(RULES, document(fault.id), shape, **how(fault))
    result = next(one for one in results if one.rule.id == fault.rule)
    assert result.status == result.rule.severity, (result.status, result.found)
    assert fault.rule in well(shape.name, fault.mode)

    told = rules.judge(RULES, document(fault.id), shape, **how(fault))
    finding = next(one for one in told if one.id == fault.rule)
    assert finding.remedy == result.rule.remedy and finding.found and finding.expected
    assert finding.subject == "gpu-0"


# What is told first is what one acts on. Here it is another rule than the fault's own, for the reason given.
FIRST = {
    "pci-flat": "host.platform",  # A shape BM.* in a VM: that comes first.
    "peermem-not-persistent": "gpudirect.open-module",  # With the open module nothing would need nvidia_peermem.
    "no-dmabuf": "peermem.not-loaded",  # No path because of it.
}


@every_fault
def test_the_fault_is_told_first(fault: Fault) -> None:
    told = rules.judge(RULES, document(fault.id), host_trees.shape(fault.shape), **how(fault))
    known = [one.id for one in told if one.severity != "unknown" or one.id == UNRECOGNISED]
    assert known[0] == FIRST.get(fault.id, fault.rule)


def possible(fault: Fault, name: str) -> bool:
    """Whether a host of this shape can have it, as far as files/topology knows the shape."""
    shape = host_trees.shape(name)
    if fault.rule in ("gpu.numa", "nic.numa"):
        return bool(shape.pci_tree)
    if fault.shape == "BM.GPU.B200.8":
        return False  # of its board
    if fault.shape == host_faults.INFINIBAND:
        return False  # of its link layer
    if fault.rule in ("nic.ecn", "nic.pfc") and not shape.pfc:
        return False
    if fault.rule.startswith(("driver.fabric-", "nvswitch.")):
        return bool(shape.nvswitches)  # L40S has none
    if fault.rule == "nic.pci-fit":
        return bool(shape.line_gbps)
    if fault.rule in ("host.platform", "host.pci-flat"):
        return len(shape.pfs) >= 16  # the description passes that many NICs through
    return fault.id != "vf-model" or shape.vf_id != "15b3:1018"  # that is the shape's own


ELSEWHERE = [(fault, name) for fault in FAULTS.values() for name in OTHER_SHAPES if possible(fault, name)]


@pytest.mark.parametrize(("fault", "name"), matrix.part(ELSEWHERE, 5), ids=lambda value: getattr(value, "id", value))
def test_the_fault_is_named_on_other_shapes(fault: Fault, name: str) -> None:
    status = wrong(statuses(faulty(fault, name), name, **how(fault))).get(fault.rule, ("",))[0]
    assert status in (("unknown",) if fault.rule == UNRECOGNISED else ("fail", "warn"))


@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ("gpu-link-width=7", "gpu.link", "0000:d8:00.0: x8 of x16"),
        ("gpu-missing=5", "gpu.missing", "0000:a8:00.0"),
        ("port-down=9", "nic.link", "rdma9 (0000:86:00.1): DOWN, Polling"),
        ("port-rate=4", "nic.rate", "rdma4 (0000:41:00.0): 25 Gb/s"),
        ("vfs-missing=15", "vf.missing", "rdma15 (0000:d5:00.1): 0 VF(s)"),
        ("xid-79=6", "driver.xid", "Xid 79 of 0000:c0:00.0"),
        ("admin-mac-unset=12", "vf.admin-mac", "rdma12v0"),
    ],
)
def test_the_place_is_named(fault: str, rule: str, words: str) -> None:
    files = host_trees.tree(Host(faults=(fault,)))
    status, found = wrong(statuses(files, "BM.GPU.H100.8", **how()))[rule]
    assert words in found and found.startswith(("1 of ", "7 of 8", "Xid")), (status, found)


def test_faults_add_up() -> None:
    faults = ("port-down=3", "gpu-link-width=1", "memlock-runtime", "acs", "netns-reboot", "time")
    found = wrong(statuses(host_trees.tree(Host(faults=faults)), "BM.GPU.H100.8", **how()))
    assert {FAULTS[name.partition("=")[0]].rule for name in faults} <= set(found)


def test_every_rule_has_a_fault_that_it_names() -> None:
    assert {rule.id for rule in RULES.rules} == {fault.rule for fault in FAULTS.values()}


def test_the_page_of_faults_is_that_of_the_list() -> None:
    page = (ROOT / "docs" / "host_faults.md").read_text(encoding="utf-8")
    assert page == host_faults.page(), "python -m support.host_faults > docs/host_faults.md"


@pytest.mark.parametrize("one", [one for one in host_incidents.INCIDENTS if one.seen], ids=lambda one: one.thread)
def test_what_was_seen_of_a_public_thread_is_still_seen(one: host_incidents.Incident) -> None:
    files = host_trees.tree(dataclasses.replace(Host(one.shape, mode=one.mode), **one.change))
    one.apply(files, 1)
    given = {**how(), "mode": Mode(one.mode)}
    told = rules.judge(RULES, host_memory.probe(files), host_trees.shape(one.shape), **given)
    assert one.seen in {finding.id for finding in told}


# --- damaged trees ---------------------------------------------------------------------------------------------------

SMALL = "BM.GPU.L40S.4"


@functools.cache
def base(fault: str) -> tuple[Tree, dict[str, rules.RuleResult], tuple[str, ...]]:
    """A small host with one fault, its results, and the files of the kernel that can be damaged."""
    files = faulty(FAULTS[fault], SMALL)
    kernels = tuple(key for key in files if key.startswith(("sys/", "proc/", "dev/")))
    return files, statuses(files, SMALL, **how(FAULTS[fault])), kernels


# Two need 16 NICs, others what this shape does not have.
DAMAGED = sorted(name for name, fault in FAULTS.items() if possible(fault, SMALL))
settings.register_profile("damage", max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


# (fault, rule) -> why the rule may pass when the file is gone.
GONE = {
    ("nic-extra", "nic.extra"): "a card that the bus does not list is not there",
    ("device-node", "driver.devices"): "a GPU without its driver has no node; gpu.driver fails",
}
# Once these passed for want of one file: the fault, its rule, the file.
WITHOUT = (
    ("default-route", "host.default-route", "0000:27:00.0/class"),
    ("relaxed-ordering", "nic.relaxed-ordering", "0000:97:00.0/class"),
    ("kernel-update", "nic.same-build", "proc/sys/kernel/osrelease"),
    ("nouveau", "driver.nouveau", "sys/module/nouveau/refcnt"),
)


@pytest.mark.parametrize(("fault", "rule", "file"), WITHOUT)
def test_one_missing_file_does_not_make_it_pass(fault: str, rule: str, file: str) -> None:
    files = Files(base(fault)[0])
    del files[next(key for key in files if key.endswith(file))]
    assert statuses(files, SMALL, **how(FAULTS[fault]))[rule].status != "pass"


@given(
    fault=st.sampled_from(DAMAGED),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
)
@settings(settings.get_profile("damage"))
def test_damage_never_makes_a_fault_pass(fault: str, damage: list[tuple[int, float, bool]]) -> None:
    """Files of the kernel cut short or taken away: nothing raises, and what failed is at best unknown.

    Not so for configuration, where no file is a statement of its own, and for whole lines cut from a log.
    """
    original, before, kernels = base(fault)
    files = Files(original)
    for number, share, delete in damage:
        key = kernels[number % len(kernels)]
        value = original[key]
        if delete or isinstance(value, Link):
            files.pop(key, None)
        elif key != "dev/kmsg" or not value[: int(share * len(value))].endswith(b"\n"):
            files[key] = value[: int(share * len(value))]
    try:
        after = statuses(files, SMALL, **how(FAULTS[fault]))
    except probe.NotATree:
        assume(False)
    turned = {name for name, one in before.items() if one.status in ("fail", "warn") and after[name].status == "pass"}
    known = {rule for one, rule in GONE if one == fault}
    assert turned <= known
    assert wrong(after) or set(wrong(before)) <= known


@given(
    key=st.integers(0, 10**6),
    content=st.one_of(st.binary(max_size=80), st.sampled_from([b"\n", b"-1\n", b"nan\n", b"[]\n", b'{"a":{"0":1}}\n'])),
)
@settings(settings.get_profile("damage"), max_examples=200)
def test_nonsense_in_any_file_never_raises(key: int, content: bytes) -> None:
    files = Files(base("port-down")[0])
    keys = list(files)
    files[keys[key % len(keys)].rstrip("/")] = content
    results = statuses(files, SMALL, **how())
    assert {one.status for one in results.values()} <= {"pass", "warn", "fail", "unknown", "skip"}


@given(share=st.floats(0, 1))
@settings(settings.get_profile("damage"), max_examples=60)
def test_a_tree_that_was_cut_off_is_no_healthy_host(share: float) -> None:
    """Half a support bundle: the later files of the tree are not there."""
    files = host_trees.tree(Host(SMALL))
    keys = sorted(files)
    kept = Files({key: files[key] for key in keys[: int(share * len(keys))]})
    try:
        results = statuses(kept, SMALL, **how())
    except probe.NotATree:
        return
    lost = any(files[key] for key in keys[len(kept) :] if not key.startswith("usr/"))
    assert wrong(results) or not lost
