# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combinations of causes and the headline that a field engineer would write for them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import slow_nothing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import causes

Item = dict[str, Any]


def item(ident: str, found: str, severity: str = "error", stage: str = "", remedy: str = "") -> Item:
    stages = {"nccl": "nccl_test", "scan": "nccl_scan", "perftest": "perftest", "node": "report", "vf": "sriov"}
    stage = stage or stages.get(ident.partition(".")[0], "host_checks")
    return {"id": ident, "severity": severity, "found": found, "remedy": remedy, "stage": stage}


ACS = item("host.acs", "ACS on 0000:0e:00.0")
XID = item("driver.xid", "Xid 79 of 0000:5b:00.0 x 1")
LINK = item("nic.link", "1 of 16 ports: rdma3 (0000:2a:00.1): DOWN, Polling")
IOMMU = item("host.iommu", "the IOMMU translates", "warning")
OS = item("os.image", "Oracle Linux Server 9.6", "warning")
CRC = item("counters.crc-errors", "1 of 16 ports: mlx5_4: 4821 wrong checksums in 1.0 days", "warning")
VF = item("vf.missing", "15 of 16 nvidia.com/sriov_rdma_vf allocatable")
GONE = item("node.not-ready", "not Ready: Kubelet stopped posting node status.")
TC = item("nccl.setting", "NCCL_IB_TC is 0, on the other hosts 41")
PORT = item("nccl.port-error", "NCCL warned: NET/IB : mlx5_6:1 Got async error event: port error")
SHM = item("nccl.shm", "GPUs exchanged data through host memory (SHM), not NVLink")
FAR = item("nccl.far-gdr", "GPUDirect RDMA between GPU 3 and mlx5_7 crosses a CPU")
NODE = item("scan.node", "slow in 5 of 5 pairs")
RAIL = item("scan.rail", "rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow")
WRITE = item("perftest.slow", "mlx5_4: 96 of 190 Gb/s to 10.140.0.9")
DARK = item("nic.rate", "rdma3: the rate could not be read", "unknown")
FIGURES = "mlx5_4 (rail 3): 70000 packets out of sequence, 1.02e+03 per GB, median of 64 ports 0"
LOSSY = item("nccl.counters", FIGURES, "warning", "nccl_scan", "look at the named port's cable")
PAIRS = [{"a": "n1", "b": f"n{i}", "verdict": "slow"} for i in range(2, 7)]


def acs(address: str) -> Item:
    return {**ACS, "found": f"ACS on {address}"}


def gate(busbw: float, verdict: str) -> Item:
    return {"shape": "H", "convicted": [1], "gate": {"nodes": 39, "busbw": busbw, "threshold": 360, "verdict": verdict}}


SLOW = {"shape": "H", "nodes": ["n"] * 4, "verdict": {"verdict": "fail", "measured": 190.0, "threshold": 360.0}}
MANY = {f"n{i}": [acs(f"0000:{i:02x}:00.0"), NODE] for i in range(1, 41)}
FOUR_RULES = {"n1": [ACS], "n2": [XID], "n3": [LINK], "n4": [VF], "n5": [TC]}

HEADLINES: tuple[tuple[dict[str, list[Item]], list[Item], list[Item], str], ...] = (
    # nodes with their findings (44 in all, the others pass), scans, tests, the sentence
    ({"n1": [ACS]}, [], [], "1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check)."),
    ({"n1": [NODE, ACS]}, [], [], "1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check); slow in 5 of 5 pairs."),
    ({"n1": [RAIL, ACS]}, [{"pairs": PAIRS}], [],
     "1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check); slow in 5 of 5 pairs; "
     "rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [RAIL]}, [{"pairs": PAIRS}], [],
     "1 of 44 nodes: n1: slow in 5 of 5 pairs; rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [RAIL, LINK]}, [], [],
     "1 of 44 nodes: n1: 1 of 16 ports: rdma3 (0000:2a:00.1): DOWN, Polling (host check); "
     "rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [NODE, IOMMU]}, [], [], "1 of 44 nodes: n1: the IOMMU translates (host check); slow in 5 of 5 pairs."),
    ({"n1": [NODE, OS]}, [], [], "1 of 44 nodes: n1: slow in 5 of 5 pairs."),
    ({"n1": [NODE, IOMMU], "n9": [IOMMU]}, [], [], "1 of 44 nodes: n1: slow in 5 of 5 pairs."),
    ({"n1": [RAIL, CRC]}, [], [],
     "1 of 44 nodes: n1: 1 of 16 ports: mlx5_4: 4821 wrong checksums in 1.0 days (host check); "
     "rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [RAIL, LOSSY]}, [], [],
     f"1 of 44 nodes: n1: {FIGURES} (port counters); rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [RAIL, LOSSY, ACS], "n9": [LOSSY]}, [], [],
     f"1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check); {FIGURES} (port counters); "
     "rdma3 (mlx5_4): 11.8 of 24 GB/s, 3 of 3 runs slow."),
    ({"n1": [VF, LINK]}, [], [],
     "1 of 44 nodes: n1: 1 of 16 ports: rdma3 (0000:2a:00.1): DOWN, Polling (host check); "
     "15 of 16 nvidia.com/sriov_rdma_vf allocatable."),
    ({"n1": [GONE, XID]}, [], [],
     "1 of 44 nodes: n1: Xid 79 of 0000:5b:00.0 x 1 (host check); not Ready: Kubelet stopped posting node status."),
    ({"n1": [GONE]}, [], [], "1 of 44 nodes: n1: not Ready: Kubelet stopped posting node status."),
    ({"n1": [TC]}, [], [SLOW],
     "1 of 44 nodes: n1: NCCL_IB_TC is 0, on the other hosts 41 (NCCL's log). "
     "4 nodes x H together: 190 GB/s, threshold 360: fail."),
    ({"n1": [PORT, LINK]}, [], [],
     "1 of 44 nodes: n1: 1 of 16 ports: rdma3 (0000:2a:00.1): DOWN, Polling (host check); "
     "NCCL warned: NET/IB : mlx5_6:1 Got async error event: port error (NCCL's log)."),
    ({"n1": [SHM]}, [], [],
     "1 of 44 nodes: n1: GPUs exchanged data through host memory (SHM), not NVLink (NCCL's log)."),
    ({"n1": [FAR, NODE]}, [], [],
     "1 of 44 nodes: n1: GPUDirect RDMA between GPU 3 and mlx5_7 crosses a CPU (NCCL's log); slow in 5 of 5 pairs."),
    ({"n1": [WRITE, NODE]}, [], [],
     "1 of 44 nodes: n1: slow in 5 of 5 pairs; mlx5_4: 96 of 190 Gb/s to 10.140.0.9."),
    ({"n1": [XID, ACS, NODE]}, [], [],
     "1 of 44 nodes: n1: Xid 79 of 0000:5b:00.0 x 1 (host check); slow in 5 of 5 pairs (and 1 more)."),
    ({"n1": [ACS], "n2": [ACS]}, [], [], "2 of 44 nodes: n1, n2: ACS on 0000:0e:00.0 (host check)."),
    ({"n1": [acs("0000:0e:00.0")], "n2": [acs("0000:4e:00.0")]}, [], [],
     "2 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check). n2: ACS on 0000:4e:00.0 (host check)."),
    (MANY, [], [],
     "40 of 44 nodes: n1, n2, n3, n4 and 36 more, by host.acs: on n1 ACS on 0000:01:00.0 (host check); "
     "slow in 5 of 5 pairs."),
    ({**{f"n{i}": [ACS] for i in range(1, 4)}, "n7": [XID]}, [], [],
     "4 of 44 nodes: n1, n2, n3: ACS on 0000:0e:00.0 (host check). n7: Xid 79 of 0000:5b:00.0 x 1 (host check)."),
    ({"n7": [XID], **{f"n{i}": [ACS] for i in range(1, 4)}}, [], [],
     "4 of 44 nodes: n1, n2, n3: ACS on 0000:0e:00.0 (host check). n7: Xid 79 of 0000:5b:00.0 x 1 (host check)."),
    (FOUR_RULES, [], [],
     "5 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check). n2: Xid 79 of 0000:5b:00.0 x 1 (host check). "
     "n3: 1 of 16 ports: rdma3 (0000:2a:00.1): DOWN, Polling (host check). And 2 other causes."),
    ({"n1": [NODE]}, [gate(190.0, "slow")], [],
     "1 of 44 nodes: n1: slow in 5 of 5 pairs. The 39 good nodes together: 190 GB/s, threshold 360: slow."),
    ({"n1": [NODE]}, [gate(381.2, "ok")], [],
     "1 of 44 nodes: n1: slow in 5 of 5 pairs. The 39 good nodes together: 381.2 GB/s, threshold 360: pass."),
    ({"n1": [NODE]}, [{"shape": "H", "convicted": [1], "gate": None}], [],
     "1 of 44 nodes: n1: slow in 5 of 5 pairs. The good nodes were not tested together."),
    ({"n1": [ACS]}, [gate(190.0, "slow")], [SLOW],
     "1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check). 4 nodes x H together: 190 GB/s, threshold 360: fail."),
    ({"n1": [DARK]}, [], [], "1 of 44 nodes cannot be judged: n1: rdma3: the rate could not be read (host check)."),
    ({"n1": [DARK], "n2": [ACS]}, [], [], "1 of 44 nodes: n2: ACS on 0000:0e:00.0 (host check)."),
    ({"n1": [NODE, TC, ACS, VF]}, [], [],
     "1 of 44 nodes: n1: ACS on 0000:0e:00.0 (host check); 15 of 16 nvidia.com/sriov_rdma_vf allocatable; "
     "NCCL_IB_TC is 0, on the other hosts 41 (NCCL's log)."),
)  # fmt: skip


def table(bad: dict[str, list[Item]]) -> list[Item]:
    """The report's nodes: 44, of which those in ``bad`` have findings."""
    severities = {name: {one["severity"] for one in found} for name, found in bad.items()}
    verdicts = {
        name: "fail" if "error" in found else "incomplete" if "unknown" in found else "pass"
        for name, found in severities.items()
    }
    names = [*bad, *(f"good{i}" for i in range(44 - len(bad)))]
    return [{"name": name, "verdict": verdicts.get(name, "pass"), "findings": bad.get(name, [])} for name in names]


def headline(bad: dict[str, list[Item]], scans: list[Item], tests: list[Item]) -> str:
    shared = causes.of_nodes(table(bad), scans)
    verdict = "fail" if any(one.first.verdict == "fail" for one in shared) else "incomplete"
    return f"{causes.headline(shared, verdict, 44)} {causes.together(tests, scans)}".rstrip()


@pytest.mark.parametrize(("bad", "scans", "tests", "sentence"), HEADLINES, ids=range(len(HEADLINES)))
def test_the_headline_is_that_of_a_field_engineer(
    bad: dict[str, list[Item]], scans: list[Item], tests: list[Item], sentence: str
) -> None:
    assert headline(bad, scans, tests) == sentence


RULES = files.document("host_rules.yml")["rules"]
WARNINGS = [rule["id"] for rule in RULES if rule.get("severity") == "warn"]


@pytest.mark.parametrize("rule", WARNINGS)
def test_a_warning_heads_the_sentence_about_a_slow_node_if_it_can_slow_one(rule: str) -> None:
    told = headline({"n1": [NODE, item(rule, "what it found", "warning", "host_checks")]}, [], [])
    first = "" if rule in slow_nothing() else "what it found (host check); "
    assert told == f"1 of 44 nodes: n1: {first}slow in 5 of 5 pairs."


def test_what_slows_nothing_is_said_by_the_rules() -> None:
    """Each was judged by reading it: it is about starting, watching or the next boot, not about speed."""
    assert slow_nothing() < set(WARNINGS), "of an error nobody asks whether it slows"
    assert slow_nothing() >= {
        *("host.disk-free", "host.file-server", "driver.persistence", "peermem.persistent", "netns.persistent"),
        *("host.previous-boot", "host.bond", "host.time-sync", "driver.xid-log", "os.image", "host.platform"),
    }
    of_speed = ("counters.", "pcie.", "gpu.link", "gpu.max", "nic.max", "nic.relaxed", "nic.ecn", "host.iommu")
    assert not [rule for rule in slow_nothing() if rule.startswith(of_speed)]


def test_the_table_has_thirty_combinations() -> None:
    assert len(HEADLINES) >= 30


def test_the_causes_of_the_json_have_all_nodes_and_the_evidence_of_one() -> None:
    (one,) = causes.plain(causes.of_nodes(table(MANY)))
    assert (one["rule"], len(one["nodes"]), len(one["evidence"])) == ("host.acs", 40, 2)
    assert [found["source"] for found in one["evidence"]] == ["host check", "scan"]
