# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of a shape compared with each other: who is odd, whose rates stand out, whose addresses are another's."""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import check_run, fleet
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import host_memory, host_trees

Json = dict[str, Any]
SHAPE = "BM.GPU.H100.8"
TABLE = fleet.FleetTable.of(files.document("host_fleet.yml"))
PLAIN = host_memory.probe(host_trees.tree(host_trees.Host(SHAPE)))


def host(number: int, **changes: Any) -> Json:
    """The document of a healthy host with its own addresses. ``changes``: ``driver__version`` is driver.version."""
    document = copy.deepcopy(PLAIN)
    for at, function in enumerate(document["functions"]):
        function["mac"] = f"02:{number // 256:02x}:{number % 256:02x}:00:00:{at:02x}"
        function["admin_mac"] = function["mac"] if function["kind"] == "vf" else None
        function["gid3_address"] = f"10.{224 + number // 256}.{number % 256}.{at}"
        function["node_guid"] = f"b83f:d203:{number:04x}:{at:04x}" if function["kind"] == "pf" else None
    for at, gpu in enumerate(document["gpus"]):
        gpu["uuid"] = f"GPU-{number:08x}-{at}"
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document
        for key in parents:
            place = place[key]
        place[last] = value
    return document


def found(*documents: Json, names: Any = None, shape: str = SHAPE) -> list[Any]:
    made = fleet.Fleet(TABLE)
    for number, document in enumerate(documents):
        made.add(names[number] if names else f"10.140.0.{number}", shape, document)
    return made.findings()


def drivers(*versions: str) -> list[Any]:
    return found(*(host(number, driver__version=version) for number, version in enumerate(versions)))


def test_alike_hosts_have_no_finding() -> None:
    assert found(*(host(number) for number in range(6))) == []
    assert found(host(0)) == [] and found() == []


def test_every_fact_of_the_table_is_in_a_healthy_document() -> None:
    """A misspelt path would compare nothing."""
    empty = [one.fact for one in TABLE.facts if not list(fleet._values(PLAIN, one))]
    assert empty == []
    unread = {"roce_adp_retrans"}
    assert set(TABLE.rates) - set(PLAIN["counters"]["ports"][0]) == unread, "counters that the probe does not read"
    assert set(port_counters()) < set(TABLE.rates)
    assert all(fleet._read(PLAIN, fact) for fact in TABLE.identities)


@pytest.mark.parametrize(("versions", "text"), [
    (["580"] * 38 + ["570"] * 2, "driver 570 on 2 of 40 hosts: 10.140.0.38, 10.140.0.39; the others have 580"),
    (["580"] * 3 + ["570", "565"],
     "driver 565 on 1 of 5 hosts: 10.140.0.4; 570 on 1 of 5 hosts: 10.140.0.3; the others have 580"),
    (["580", "570"], "driver 570 on 10.140.0.1, 580 on 10.140.0.0; two hosts do not show which is right"),
    (["580", "570", "565"], "driver differs: 565 on 1 host (10.140.0.2); 570 on 1 host (10.140.0.1); 580 on 1 host "
     "(10.140.0.0); no value has a majority of 3 hosts"),
    (["580", "580", "570", "570"], "driver differs: 570 on 2 hosts (10.140.0.2, 10.140.0.3); 580 on 2 hosts "
     "(10.140.0.0, 10.140.0.1); no value has a majority of 4 hosts"),
])  # fmt: skip
def test_one_finding_names_the_odd_hosts_and_nobody_without_a_majority(versions: list[str], text: str) -> None:
    (only,) = drivers(*versions)
    assert (only.id, only.severity, only.subject, only.found) == ("host.odd", "warning", SHAPE, text)


def test_many_odd_hosts_are_counted() -> None:
    (only,) = drivers(*["580"] * 40, *["570"] * 20)
    assert "on 20 of 60 hosts: 10.140.0.40" in only.found and only.found.count("10.140.0.") == 8
    assert "and 12 more; the others have 580" in only.found


def test_what_could_not_be_read_is_not_compared() -> None:
    assert drivers("580", "580", None, "580") == []  # type: ignore[arg-type]
    odd = found(*(host(number) for number in range(3)), {"gpus": 7, "functions": [None, 3], "counters": {"ports": [1]}})
    assert odd == []


def test_shapes_are_not_compared_with_each_other() -> None:
    made = fleet.Fleet(TABLE)
    for number in range(6):
        made.add(f"n{number}", "A" if number < 3 else "B", host(number, driver__version="580" if number < 3 else "570"))
    assert made.findings() == []


def test_firmware_is_compared_by_kind_of_nic() -> None:
    odd = host(3)
    vcn = {function["id"] for function in odd["functions"]}
    for function in odd["functions"]:
        function["firmware"] = "28.39.1002" if function["id"] == "15b3:1021" and function["kind"] == "pf" else (
            function["firmware"])  # fmt: skip
    (only,) = found(*(host(number) for number in range(3)), odd)
    assert only.found.startswith("NIC firmware (15b3:1021) 28.39.1002 on 1 of 4 hosts: 10.140.0.3; the others have 28.")
    assert len(vcn) > 1
    one = host(3)
    one["functions"][0]["firmware"] = "28.39.1002"
    (only,) = found(*(host(number) for number in range(3)), one)
    assert "[28.39.1002 " in only.found, "one NIC of a host is enough"
    del one["functions"][0], one["gpus"][0]
    assert found(*(host(number) for number in range(3)), one) == [], "a missing device has its own rule"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"platform__bios": "60100200"}, "BIOS 60100200 on 1 of 4"),
        ({"driver__parameters__RegistryDwords": "PeerMappingOverride=1"},
         "option of the driver RegistryDwords PeerMappingOverride=1 on 1 of 4"),
        ({"os__boot_options": ["pcie_aspm=off"]}, "options of the kernel's command line pcie_aspm=off on 1 of 4"),
        ({"resources__boost": False}, "boost of the CPUs off on 1 of 4"),
    ],
)  # fmt: skip
def test_settings_are_compared_one_by_one(change: Json, text: str) -> None:
    odd = host(3)
    for path, value in change.items():
        *parents, last = path.split("__")
        place = odd
        for key in parents:
            place = place[key]
        place[last] = value
    (only,) = found(*(host(number) for number in range(3)), odd)
    assert only.found.startswith(f"{text} hosts: 10.140.0.3; the others have "), only.found


def test_pcie_settings_are_compared_by_kind_of_device() -> None:
    odd = host(3)
    for function in odd["functions"]:
        if function["config"] and function["id"] == "15b3:1021":
            function["config"] = {**function["config"], "max_payload": 512}
    (only,) = found(*(host(number) for number in range(3)), odd)
    assert only.found.startswith("PCIe setting of the NICs (15b3:1021) max_payload 512 on 1 of 4 hosts: 10.140.0.3")


# --- rates ------------------------------------------------------------------------------------------------------------


def counted(number: int, rail: int = 0, gbytes: float = 1000.0, **counters: float) -> Json:
    """A host that has moved so many GB on each port; ``counters`` are events per GB of one of them."""
    document = host(number)
    for at, port in enumerate(document["counters"]["ports"]):
        port.update(tx_bytes_phy=gbytes * 5e8, rx_bytes_phy=gbytes * 5e8)
        port.update({name: int(rate * gbytes) for name, rate in counters.items()} if at == rail else {})
    return document


def test_a_port_that_counts_far_more_per_gb_is_named_with_its_rate() -> None:
    (only,) = found(*(counted(number, out_of_sequence=0.5) for number in range(7)), counted(7, 3, out_of_sequence=40))
    assert (only.id, only.severity) == ("host.odd-rate", "warning")
    hca = PLAIN["counters"]["ports"][3]["hca"]
    assert only.found == f"packets out of sequence per GB on 1 of 8 hosts: 10.140.0.7 40 at {hca}; the median is 0.5"


def test_rates_need_traffic_hosts_and_a_difference_that_matters() -> None:
    quiet = [counted(number, gbytes=50, out_of_sequence=0) for number in range(7)]
    assert found(*quiet, counted(7, gbytes=50, out_of_sequence=500)) == [], "less than 100 GB"
    assert found(*(counted(number) for number in range(3)), counted(3, out_of_sequence=500)) == [], "four hosts"
    assert found(*(counted(number) for number in range(7)), counted(7, out_of_sequence=0.9)) == [], "below least"
    busy = [counted(number, np_cnp_sent=1000 + 400 * number) for number in range(8)]
    assert found(*busy) == [], "a busy fabric has CNPs everywhere"


def test_healthy_hosts_with_scattered_rates_are_no_outliers() -> None:
    """Log-normal rates that differ by a factor of about two, in 200 fleets of 40 hosts."""
    rng = random.Random(3)
    for _fleet in range(200):
        rates = [20 * rng.lognormvariate(0, 0.5) for _host in range(40)]
        assert max(rates) <= counters.outlier(rates, 1.0)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_address_on_two_hosts_is_an_error_of_both() -> None:
    clone = host(2)
    clone["functions"][4]["gid3_address"] = host(0)["functions"][4]["gid3_address"]
    both = found(host(0), host(1), clone)
    assert [(item.id, item.severity, item.subject) for item in both] == [
        ("host.duplicate", "error", "10.140.0.0"),
        ("host.duplicate", "error", "10.140.0.2"),
    ]
    assert {item.found for item in both} == {
        "address 10.224.0.4: the same on 2 hosts, 10.140.0.0, 10.140.0.2"}  # fmt: skip


@pytest.mark.parametrize(("part", "key", "kind"), [
    ("functions", "node_guid", "node GUID"), ("gpus", "uuid", "GPU UUID"), ("functions", "mac", "MAC")])  # fmt: skip
def test_an_identity_on_two_hosts_is_named_by_its_kind(part: str, key: str, kind: str) -> None:
    clone = host(2)
    clone[part][0][key] = host(0)[part][0][key]
    both = found(host(0), host(1), clone)
    assert {item.subject for item in both} == {"10.140.0.0", "10.140.0.2"}
    assert all(item.found.startswith(f"{kind} {clone[part][0][key]}: the same on 2 hosts") for item in both)


def test_guids_that_were_never_set_are_no_duplicates() -> None:
    documents = [host(0), host(1)]
    for document in documents:
        document["functions"][0]["node_guid"] = "0000:0000:0000:0000"
    assert found(*documents) == []


def test_a_cloned_host_is_one_cause_and_a_vf_in_a_pod_counts() -> None:
    both = found(host(0), host(1), host(1))
    assert len(both) == 2 and len({item.found for item in both}) == 1 and " more: the same on 2 hosts" in both[0].found
    pod = host(3)
    vf = next(function for function in pod["functions"] if function["kind"] == "vf")
    vf.update(mac=None, gid3_address=None, admin_mac=host(0)["functions"][0]["mac"])
    assert {item.subject for item in found(host(0), pod)} == {"10.140.0.0", "10.140.0.1"}


def test_one_host_read_twice_and_unset_macs_are_no_duplicates() -> None:
    made = fleet.Fleet(TABLE)
    for _time in range(2):
        made.add("a", SHAPE, host(0))
    unset = [host(1), host(2)]
    for document in unset:
        for function in document["functions"]:
            function["admin_mac"] = "00:00:00:00:00:00" if function["kind"] == "vf" else None
    for name, document in zip("bc", unset):
        made.add(name, SHAPE, document)
    assert made.findings() == []


# --- with the rules ---------------------------------------------------------------------------------------------------


def checked(*documents: Json, select: Any = (), mute: Any = (), run_dir: str = "") -> tuple[Json, list[str]]:
    judge, shape, lines = Judge(Plan(profile="current"), select, mute), shape_table.shapes()[SHAPE], []
    judged = {f"n{number}": judge(f"n{number}", document, shape) for number, document in enumerate(documents)}
    args = {"run_dir": run_dir, "fail_on_findings": True}
    return check_run.result(judged, judge.compared(), args, "", lines.append), lines


def test_a_duplicate_fails_its_hosts_and_an_odd_value_none(tmp_path: Any) -> None:
    result, lines = checked(host(0), host(1), host(1), host(3, runtime__version="1.2"), run_dir=str(tmp_path))
    assert result["bad"] == ["n1", "n2"] and result["failed"] and "host.duplicate" in result["msg"]
    verdicts = {name: one["verdict"] for name, one in result["hosts"].items()}
    assert verdicts["n1"] == "fail" and verdicts["n0"] == verdicts["n3"] != "fail"
    assert result["hosts"]["n1"]["rule"] == "host.duplicate"
    assert any(
        "host.odd: BM.GPU.H100.8: version of the container runtime 1.2 on 1 of 4 hosts: n3" in one for one in lines
    )


def test_the_comparison_can_be_muted_and_is_left_out_where_rules_are_selected() -> None:
    clones = (host(0), host(0), host(2, runtime__version="1.2"))
    assert not {item["id"] for item in checked(*clones, mute=fleet.IDS)[0]["findings"]} & set(fleet.IDS)
    assert checked(*clones, mute=["host.duplicate"])[0]["bad"] == checked(host(0), host(1))[0]["bad"]
    assert not {item["id"] for item in checked(*clones, select=["driver.old"])[0]["findings"]} & set(fleet.IDS)


def test_5000_hosts_take_seconds() -> None:
    """The time of one core per host, without the reading; docs/host_document.md has the measured figure."""
    made, document = fleet.Fleet(TABLE), host(0)
    began = time.process_time()
    for number in range(1000):
        for at, function in enumerate(document["functions"]):
            function["mac"] = f"02:{number:05x}:{at:02x}"
            function["gid3_address"] = f"{number}.{at}"
            function["admin_mac"] = function["node_guid"] = None
        for at, gpu in enumerate(document["gpus"]):
            gpu["uuid"] = f"{number}.{at}"
        made.add(f"n{number}", SHAPE, document)
    assert made.findings() == []
    assert (time.process_time() - began) / 1000 < 0.01
