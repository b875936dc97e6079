# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing objects: what counts as a change, and what a diff shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import network, placement
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaling, pools
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import metrics, serving, vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import revert
from hypothesis import given
from hypothesis import strategies as st
from support import plan_samples as samples
from support.paths import ROOT

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


def config_map(**meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "b", **meta},
        "data": {"key": "value"},
    }


def test_how_messages_name_an_object() -> None:
    assert kube_objects.reference(config_map()) == "ConfigMap b/a"
    assert kube_objects.reference({"kind": "Node", "metadata": {"name": "n"}}) == "Node n"


def test_owned_objects_carry_label_and_digest_and_the_original_stays() -> None:
    original = config_map(labels={"mine": "1"}, annotations={"note": "x"})
    before = copy.deepcopy(original)
    owned = kube_objects.owned(original)
    assert original == before
    assert owned["metadata"]["labels"] == {"mine": "1", **names.OWNED}
    assert owned["metadata"]["annotations"]["note"] == "x"
    assert owned["data"] == original["data"]


def test_the_digest_follows_the_content_and_nothing_else() -> None:
    def digest(obj: dict[str, Any]) -> str:
        return str(kube_objects.owned(obj)["metadata"]["annotations"][kube_objects.APPLIED])

    first = config_map()
    reordered = dict(reversed(list(first.items())))
    assert digest(first) == digest(reordered)
    assert digest(first) != digest({**first, "data": {}}), "a key that is no longer asked for changes it"
    assert digest(first) != digest({**first, "data": {"key": "other"}})


def test_what_the_server_keeps_for_itself_is_no_change() -> None:
    live = config_map(uid="1", resourceVersion="7", generation=2, managedFields=[{}], creationTimestamp="t")
    assert kube_objects.same({**live, "status": {"phase": "Active"}}, config_map())
    assert not kube_objects.same({**live, "data": {"key": "old"}}, config_map())
    assert not kube_objects.same(None, config_map()), "a new object is a change"


def test_a_secrets_content_is_never_shown() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"p": "aHVudGVyMg=="},
        "stringData": {"p": "hunter2"},
    }
    shown = str(kube_objects.visible({**secret, "type": "Opaque"}))
    assert "hunter2" not in shown and "aHVudGVyMg" not in shown and "Opaque" in shown
    assert kube_objects.visible(None) == {}


def test_long_texts_become_their_length() -> None:
    value = {"data": {"program": "x" * 5000, "short": "y"}, "list": ["z" * 3000, 7]}
    short = kube_objects.shortened(value)
    assert short["data"]["program"].startswith("<5000 characters, starts 'xxx")
    assert short["data"]["short"] == "y" and short["list"][1] == 7 and len(short["list"][0]) < 100


@pytest.mark.parametrize(
    ("wanted", "live", "there"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {}, False),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, False),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "default": True}]}, True),
        ({"a": [{"x": 1}]}, {"a": {"x": 1}}, False),
        ({"a": {}}, {"a": None}, False),
        ({}, {"a": 1}, True),
    ],
)
def test_is_everything_there_that_we_ask_for(wanted: Any, live: Any, there: bool) -> None:
    assert kube_objects.contained(wanted, live) is there


@given(JSON)
def test_an_object_contains_itself(value: Any) -> None:
    assert kube_objects.contained(value, copy.deepcopy(value))


@given(st.dictionaries(st.text(max_size=3), JSON, min_size=1, max_size=3), st.data())
def test_a_missing_key_is_noticed_and_an_extra_one_is_not(value: dict[str, Any], data: Any) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    less = {name: item for name, item in value.items() if name != key}
    assert not kube_objects.contained(value, less)
    assert kube_objects.contained(less, value)


def test_teardown_knows_every_kind_that_a_plan_or_a_job_makes() -> None:
    made = []
    for profile in ("current", "guide-2024"):
        for launcher in ("mpi", "volcano"):
            facts = [samples.gpu_node(f"10.140.0.{number}") for number in (1, 2)]
            plan = samples.whole(facts, profile=profile, launcher=launcher, topology="file")
            made += [item for group in plan.objects.values() for item in group]
            test = job.of_plan(plan, plan.tests[0], [fact.name for fact in facts], gang=launcher == "mpi")
            made += job.objects(test, launcher)
    kinds = {(item["apiVersion"], item["kind"]) for item in made}
    assert {kind for _version, kind in kinds} >= {"MPIJob", "IPPool", "NicClusterPolicy", "DaemonSet", "Namespace"}
    assert kinds <= set(kube_objects.KINDS)


def test_teardown_knows_every_kind_that_a_use_of_gpus_creates() -> None:
    made = metrics.report_objects("x 1", "gpuops", "image", "15s", {}, openshift=True)
    made += [vgpu.license_object("a", "b", "", "", as_secret) for as_secret in (True, False)]
    made += pools.removable(True)
    made += pools.machine_autoscalers(
        [{"machine_set": "a", "min_replicas": 0, "max_replicas": 1, "accelerator": ""}], []
    )
    kinds = {(item["apiVersion"], item["kind"]) for item in made}
    kinds |= {(version, kind) for version, kind in (*network.KINDS, *placement.KINDS) if "v1beta1" not in version}
    kinds |= {*serving.kinds("kserve"), *serving.kinds("lws"), *serving.ACCOUNT_KINDS, autoscaling.MACHINE_SETS}
    assert kinds | {revert.DRIVER} <= set(kube_objects.KINDS)
    order = [kind for _version, kind in kube_objects.KINDS]
    assert order.index("ClusterAutoscaler") < order.index("ConfigMap"), "its priorities go after it"
    assert order.index("NVIDIADriver") < order.index("Secret") < order.index("Namespace") == len(order) - 1


def test_an_operators_manifest_goes_with_its_operator_but_for_the_definitions() -> None:
    manifest = ROOT / "tests" / "sandbox" / "charts" / "mpi-operator.yaml"
    objects = [item for item in yaml.safe_load_all(manifest.read_text("utf-8")) if item]
    left = {item["kind"] for item in objects if (item["apiVersion"], item["kind"]) not in kube_objects.KINDS}
    assert left == {"CustomResourceDefinition"}
    labels = kube_objects.owned(objects[0], "mpi-operator")["metadata"]["labels"]
    assert labels[kube_objects.RELEASE] == "mpi-operator"
    assert kube_objects.RELEASE not in kube_objects.owned(objects[0])["metadata"].get("labels", {})


@pytest.mark.parametrize(
    ("obj", "unmanaged"),
    [
        (config_map(), True),
        (config_map(labels=names.OWNED), False),
        (config_map(ownerReferences=[{"kind": "Job"}]), False),
        (config_map(name="kube-root-ca.crt"), False),
        (config_map(deletionTimestamp="2026-11-21T07:00:00Z"), False),
        ({**config_map(), "kind": "Secret", "type": "kubernetes.io/service-account-token"}, False),
        ({**config_map(), "kind": "Secret", "type": "Opaque"}, True),
    ],
)
def test_what_keeps_a_namespace(obj: dict[str, Any], unmanaged: bool) -> None:
    assert kube_objects.is_unmanaged(obj) is unmanaged


@pytest.mark.parametrize(
    ("patch", "live", "left"),
    [
        ({}, {"a": 1}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": {"b": None}}, {"a": {"c": 1}}, {}),
        ({"a": {"b": None}}, {}, {}),
        ({"a": {"b": None, "c": 1}}, {"a": {"b": 2, "c": 1}}, {"a": {"b": None}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": {"b": 1}}),
    ],
)
def test_what_is_left_to_merge(patch: Any, live: Any, left: Any) -> None:
    assert kube_objects.outstanding(patch, live) == left
