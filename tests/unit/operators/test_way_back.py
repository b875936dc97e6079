# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of an upgrade: what it holds, when it stays, and which record cannot be returned to."""

from __future__ import annotations

import base64
import gzip
import random
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import packed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm_records, way_back
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.way_back import (
    PastDefinition,
    PastRelease,
    WayBack,
)

GPU, NICS = "gpu_operator", "network_operator"
STEPS = files.document("upgrade.yml")["steps"]
OLD = {
    GPU: PastRelease("gpu-operator", "gpus", "gpu-operator", "v26.3.3", {"driver": {"password": "hush"}}),
    NICS: PastRelease("network-operator", "nics", "network-operator", "26.1.0", {}),
}
TO = {GPU: way_back.state("gpu-operator", "v26.7.0", {"a": 1}), NICS: way_back.state("network-operator", "26.4.1", {})}
RECORD = WayBack(
    at="2026-11-22T19:40:12Z",
    cluster="uid-1",
    releases=OLD,
    to=TO,
    policies={"NicClusterPolicy nic-cluster-policy": {"nvIpam": {"version": "v0.3"}}},
    definitions={"nicclusterpolicies.mellanox.com": PastDefinition(("v1alpha1",), ("v1alpha1",))},
    images={"toolkit": ("nvcr.io/x:1",)},
    labels={"nvidia.com/mig.config=all-disabled": ("n1", "n2")},
)


def test_a_record_is_read_as_it_was_written_and_shows_no_values() -> None:
    made = way_back.secret(RECORD)
    assert way_back.record(made, "uid-1") == RECORD and "hush" not in str(made) + RECORD.shown
    assert RECORD.shown == "gpu_operator v26.3.3, network_operator 26.1.0, recorded 2026-11-22T19:40:12Z"


def edited(content: Any) -> Any:
    return {**way_back.secret(RECORD), "data": content}


def data(record: WayBack) -> Any:
    return way_back.secret(record)["data"]


@pytest.mark.parametrize(
    ("found", "cluster", "why"),
    [
        (None, "uid-1", r"there is no record of an upgrade \(Secret gpuops-rdma/gpuops-way-back\)"),
        (edited({}), "uid-1", "cannot be read: KeyError"),
        (edited({"record": "%%%"}), "uid-1", "cannot be read"),
        (edited({"record": base64.b64encode(gzip.compress(b'{"at": 1}')).decode()}), "uid-1", "was edited"),
        (packed.secret("x", "y", {"at": 1}), "uid-1", "cannot be read: cluster: missing"),
        (edited(data(replace(RECORD, cluster="uid-2"))), "uid-2", "was edited: its content does not match"),
        (way_back.secret(RECORD), "uid-2", r"record of another cluster \(kube-system uid-1, this one's is uid-2\)"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused_by_name(found: Any, cluster: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        way_back.record(found, cluster)


def test_a_record_damaged_anywhere_is_refused() -> None:
    whole = base64.b64decode(data(RECORD)["record"])
    for seed in range(200):
        dice = random.Random(seed)
        place = dice.randrange(10, len(whole))  # gzip's own header says nothing of the content
        bad = bytearray(whole)
        bad[place] ^= dice.randrange(1, 256)
        with pytest.raises(InputError, match="Cannot roll back"):
            way_back.record(edited({"record": base64.b64encode(bytes(bad)).decode()}), "uid-1")


def test_a_record_that_no_secret_can_hold_is_refused_before_any_change() -> None:
    noise = random.Random(1).randbytes(packed.LARGEST).hex()
    with pytest.raises(InputError, match=r"the record has \d+ bytes, but a Secret takes at most 1000000"):
        way_back.secret(replace(RECORD, images={"x": (noise,)}))


def test_of_a_release_that_is_held_back_the_values_of_before_are_recorded() -> None:
    hold = {"daemonsets": {"updateStrategy": "OnDelete"}}
    there = HelmRelease("r", "n", "gpu-operator", "v1", values=helm_records.held({"a": 1}, hold))
    assert way_back.past(there) == PastRelease("r", "n", "gpu-operator", "v1", {"a": 1})


def now(gpu: Any = None, nics: Any = None, to: Any = None) -> WayBack:
    """A record of a cluster with these releases, those of RECORD by default."""
    return replace(RECORD, releases={GPU: gpu or OLD[GPU], NICS: nics or OLD[NICS]}, to=to or TO, at="later")


UP = {GPU: replace(OLD[GPU], version="v26.7.0", values={"a": 1, "operator": {"upgradeCRD": False}})}
UP[NICS] = replace(OLD[NICS], version="26.4.1")
OTHER = replace(OLD[NICS], values={"by": "hand"})


@pytest.mark.parametrize(
    ("new", "settled", "stays"),
    [
        (now(), False, True),  # killed while the operands are held back
        (now(UP[GPU]), True, True),  # killed between the two operators
        (now(UP[GPU], UP[NICS]), True, True),  # killed after both
        (now(nics=UP[NICS]), True, True),
        (now(), True, False),  # it failed before Helm changed anything, or was taken back
        (now(nics=OTHER), True, False),  # changed by hand since
        (now(UP[GPU], UP[NICS], to={**TO, NICS: "27.1.0 x"}), True, False),  # the next upgrade
        (now(to={GPU: TO[GPU]}), True, False),
        (now(nics=OTHER), False, True),
        (replace(now(), cluster="uid-2"), False, False),
    ],
)
def test_a_record_stays_while_its_upgrade_continues(new: WayBack, settled: bool, stays: bool) -> None:
    assert way_back.keeps(RECORD, new, settled) is stays
    assert not way_back.keeps(None, new, settled)


def definition(name: str, *versions: str, storage: str = "v1", gone: str = "") -> Any:
    every = [{"name": one, "served": one != gone, "storage": one == storage} for one in versions]
    spec = {"group": name.partition(".")[2], "versions": every}
    return {"metadata": {"name": name}, "spec": spec, "status": {"storedVersions": [storage]}}


def test_definitions_of_other_groups_are_not_recorded() -> None:
    name, made = way_back.definition(definition("clusterpolicies.nvidia.com", "v1", "v2", gone="v2"))
    assert (name, made) == ("clusterpolicies.nvidia.com", PastDefinition(("v1",), ("v1",)))
    assert way_back.definition(definition("jobs.example.com", "v1"))[1] is None


@pytest.mark.parametrize(
    ("versions", "storage", "gone", "why"),
    [
        (["v1"], "v1", "", []),
        (["v1", "v2"], "v1", "", []),
        (["v1", "v2"], "v2", "", ["definition x.nvidia.com: its objects get stored as v2, which the older release"]),
        (["v1", "v2"], "v1", "v1", ["definition x.nvidia.com: version v1 is no longer served"]),
    ],
)
def test_definitions_that_cannot_return_are_named_before(
    versions: list[str], storage: str, gone: str, why: list[str]
) -> None:
    before = {"x.nvidia.com": PastDefinition(("v1",), ("v1",))}
    found = list(way_back.lost(before, [definition("x.nvidia.com", *versions, storage=storage, gone=gone)]))
    assert [text.startswith(one) for text, one in zip(found, why)] == [True] * len(why) == [True] * len(found)
    assert list(way_back.lost({}, [definition("x.nvidia.com", "v9")])) == [], "a new one"


NAME = "nicclusterpolicies.mellanox.com"


@pytest.mark.parametrize(
    ("live", "there", "why"),
    [
        (PastDefinition(("v1alpha1",), ("v1alpha1",)), "26.4.1", ""),
        (PastDefinition(("v1alpha1", "v1"), ("v1alpha1",)), "26.4.1", ""),
        (PastDefinition(("v1",), ("v1alpha1",)), "26.4.1", "is no longer served; apply the CRDs of"),
        (PastDefinition(("v1alpha1", "v1"), ("v1alpha1", "v1")), "26.4.1", "has stored objects in version v1, which"),
        (None, "26.4.1", f"definition {NAME} no longer exists; apply the CRDs of"),
    ],
)
def test_what_is_in_the_way_is_named(live: Any, there: str, why: str) -> None:
    found = way_back.blocked(RECORD, {NAME: live} if live else {}, {NICS: there}, STEPS)
    assert len(found) == bool(why) and all(why in text for text in found)


@pytest.mark.parametrize("name", ["nodefeatures.nfd.k8s-sigs.io", "network-attachment-definitions.k8s.cni.cncf.io"])
def test_a_definition_that_others_brought_is_not_in_the_way(name: str) -> None:
    releases = {key: replace(one, values={"nfd": {"enabled": False}}) for key, one in OLD.items()}
    record = replace(RECORD, releases=releases, definitions={name: PastDefinition(("v1",), ("v1",))})
    assert way_back.blocked(record, {}, {}, STEPS) == []
    brought = replace(record, releases=OLD, policies={"NicClusterPolicy x": {"secondaryNetwork": {"multus": {"x": 1}}}})
    assert len(way_back.blocked(brought, {}, {}, STEPS)) == 1


@pytest.mark.parametrize(
    ("old", "new", "back"), [("23.10.0", "26.4.1", False), ("25.10.0", "26.4.1", True), ("", "26.4.1", True)]
)
def test_the_step_over_24_10_has_no_way_back(old: str, new: str, back: bool) -> None:
    assert bool(way_back.past_step(old, new, STEPS)) is not back
    old_record = replace(RECORD, releases={NICS: replace(OLD[NICS], version=old)}, definitions={})
    assert bool(way_back.blocked(old_record, {}, {NICS: new}, STEPS)) is not back


def test_labels_that_decide_about_operands_are_kept_by_value() -> None:
    nodes = [("n2", {"nvidia.com/mig.config": "x", "zone": "a"}), ("n1", {"nvidia.com/mig.config": "x"})]
    assert way_back.labels(nodes) == {"nvidia.com/mig.config=x": ("n1", "n2")}
