# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators through OLM: what the recorded objects of OLM 0.46.0 mean, and what we write."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm, olm_run
from support.crd_schema import faults
from support.olm_recordings import RECORDINGS, recorded, seen
from support.paths import upstream

GPU = "gpu-operator-certified"
# Scenario -> (state, words of the reason, words of the remedy, install plan to approve, ClusterServiceVersion)
RECORDED = {
    "allnamespaces_not_supported": ("broken", "UnsupportedOperatorGroup", "targetNamespaces", "", f"{GPU}.v26.3.3"),
    "bad_image_csv_installing": ("waiting", "InstallWaiting", "See the pods", "", f"{GPU}.v26.7.0"),
    "catalogsource_unreachable": ("broken", "there is no CatalogSource certified-operators", "mirror it", "", ""),
    "global_and_own_same_api": ("broken", "InterOperatorGroupOwnerConflict", "remove one", "", "nfd.v4.20.0"),
    "manual_approved_succeeded": ("ready", "is Succeeded", "", "", f"{GPU}.v26.3.3"),
    "manual_first_install_pending": ("approve", "waits for approval", "", "install-xq28m", f"{GPU}.v26.3.3"),
    "manual_starting_csv_then_upgrade": ("ready", f"{GPU}.v26.3.2 is Succeeded", "", "", f"{GPU}.v26.3.2"),
    "no_catalogsource": ("broken", "there is no CatalogSource certified-operators", "mirror it", "", ""),
    "no_operatorgroup": ("broken", "has no OperatorGroup", "Create one", "", ""),
    "orphan_csv_then_resubscribe": ("broken", "@existing", "of an earlier Subscription still exists", "", ""),
    "two_operatorgroups": ("broken", "has 2 OperatorGroups: a, b", "Remove all but one", "", ""),
    "wrong_channel": ("broken", "in channel v99 of package nfd", "leave channel out", "", ""),
    "wrong_package": ("broken", "in package no-such-operator", "does not have this package", "", ""),
    "wrong_starting_csv": ("broken", "with name nfd.v4.19.0 in channel stable", "startingCSV", "", ""),
}


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_scenario(name: str) -> None:
    state, why, remedy, plan, csv = RECORDED[name]
    objects = recorded(name)
    subscription = next(one for one in objects if one["kind"] == "Subscription")
    found = seen(objects, subscription["spec"].get("startingCSV", ""))
    assert (found.state, found.plan) == (state, plan), found
    assert why in found.why
    assert remedy in found.remedy
    assert found.csv == csv or (state == "broken" and not csv)


def test_no_recording_is_left_out() -> None:
    there = {path.stem.removeprefix("olm-0.46.0_") for path in RECORDINGS.glob("olm-0.46.0_*.json")}
    assert there == set(RECORDED)


def test_the_plan_of_an_upgrade_is_not_approved_for_a_pinned_version() -> None:
    objects = recorded("manual_starting_csv_then_upgrade")
    assert seen(objects, f"{GPU}.v26.3.2").state == "ready"
    wanted = seen(objects, f"{GPU}.v26.3.3")
    assert (wanted.state, wanted.plan) == ("approve", "install-xpldq")
    plans = [one for one in objects if one["kind"] == "InstallPlan"]
    assert olm.plan_for(plans, "something.v1") is None
    assert olm.foreign(plans[0], [f"{GPU}.v26.3.2"]) == []
    assert olm.foreign(plans[0], []) == [f"{GPU}.v26.3.2"]


def test_what_is_not_there_yet() -> None:
    assert olm.state(None, [], [], [], []).state == "waiting"
    objects = recorded("manual_first_install_pending")
    subscription = next(one for one in objects if one["kind"] == "Subscription")
    subscription["status"] = {}
    assert "not resolved" in seen([one for one in objects if one["kind"] != "InstallPlan"]).why
    plan = next(one for one in objects if one["kind"] == "InstallPlan")
    plan["spec"]["approved"] = True
    plan["status"] = {"phase": "Failed", "conditions": [{"status": "False", "message": "no such CRD"}]}
    subscription["status"] = {"state": "UpgradePending", "currentCSV": f"{GPU}.v26.3.3"}
    assert seen(objects).why == "InstallPlan install-xq28m failed: no such CRD"


# ---- what we write -------------------------------------------------------------------------------------------------


def objects(**more: Any) -> list[dict[str, Any]]:
    return olm.subscribe(operator(**more), "v26.7", f"{GPU}.v26.7.0", "gpu-og")


def operator(**more: Any) -> Any:
    given = {"package": GPU, "namespace": "nvidia-gpu-operator", "source": "certified-operators"}
    return olm_run.complete({**given, **more})


def test_what_we_write_is_what_the_definitions_take() -> None:
    for every in (False, True):
        _namespace, group, subscription = objects(every_namespace=every)
        assert faults(group, upstream("crds/openshift/olm_operatorgroups.yaml")) == []
        assert faults(subscription, upstream("crds/openshift/olm_subscriptions.yaml")) == []
        assert group["spec"] == ({} if every else {"targetNamespaces": ["nvidia-gpu-operator"]})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"approval": "auto"}, "'auto' is none; did you mean Automatic?"),
        ({"source": ""}, "no source"),
        ({"namespace": ""}, "no namespace"),
    ],
)
def test_what_the_api_server_would_take_in_silence(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        operator(**more)
    assert words in str(error.value)


def test_a_second_operator_group_is_not_made() -> None:
    def group(name: str, *targets: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"targetNamespaces": list(targets)} if targets else {}}

    place = "nvidia-gpu-operator"
    want = operator()
    assert olm.group_for([], want) == place
    assert olm.group_for([group("made-by-the-console", place)], want) == "made-by-the-console"
    assert olm.group_for([group("global")], operator(every_namespace=True)) == "global"
    with pytest.raises(InputError, match="gpu-og, which watches every namespace, but the operator needs nvidia"):
        olm.group_for([group("gpu-og")], want)
    with pytest.raises(InputError, match=r"2 OperatorGroups \(a, b\): OLM does nothing there \(MultipleOperatorGroup"):
        olm.group_for([group("b", place), group("a", place)], want)


def test_the_same_package_is_not_subscribed_to_twice() -> None:
    there = {"metadata": {"name": "x", "namespace": "other"}, "spec": {"name": GPU}}
    olm.elsewhere([there], operator(package="nfd", namespace="openshift-nfd"))
    olm.elsewhere([there], operator(namespace="other"))
    with pytest.raises(InputError, match="already has a Subscription in namespace other"):
        olm.elsewhere([there], operator())


def test_somebody_elses_subscription_is_used_as_it_is() -> None:
    held = {"metadata": {"name": GPU, "namespace": "n"}, "spec": {"channel": "stable", "source": "certified-operators"}}
    olm.settled(held, operator())
    with pytest.raises(InputError, match=r"has channel stable, not v26\.7"):
        olm.settled(held, operator(channel="v26.7"))


def test_a_cluster_without_the_internet() -> None:
    mirrored = operator(source="mirrored", catalog_image="reg/index:v4.20", catalog_pull_secrets=["s"])
    catalog = olm.catalog_source(mirrored)
    assert faults(catalog, upstream("crds/openshift/olm_catalogsources.yaml")) == []
    assert (catalog["metadata"]["name"], catalog["spec"]["secrets"]) == ("mirrored", ["s"])
    by_digest, by_tag = olm.mirror_sets("m", {"nvcr.io/nvidia": "reg/nvidia", "quay.io": ["a", "b"]})
    assert by_digest["spec"]["imageDigestMirrors"][0] == {"source": "nvcr.io/nvidia", "mirrors": ["reg/nvidia"]}
    assert by_tag["spec"]["imageTagMirrors"][1]["mirrors"] == ["a", "b"]
    assert olm.mirror_sets("m", {}) == []


MANIFEST = {
    "metadata": {"name": GPU},
    "status": {
        "defaultChannel": "v26.7",
        "channels": [
            {"name": "stable", "currentCSV": f"{GPU}.v26.7.0"},
            {
                "name": "v26.7",
                "currentCSV": f"{GPU}.v26.7.0",
                "entries": [{"name": f"{GPU}.v26.7.0"}, {"name": f"{GPU}.v26.3.3"}],
            },
        ],
    },
}


def test_the_channel_comes_from_the_package() -> None:
    assert olm.channel(MANIFEST) == ("v26.7", f"{GPU}.v26.7.0")
    assert olm.channel(MANIFEST, "stable") == ("stable", f"{GPU}.v26.7.0")
    assert olm.channel(MANIFEST, "", f"{GPU}.v26.3.3") == ("v26.7", f"{GPU}.v26.3.3")
    with pytest.raises(InputError, match=r"no channel v26.8; did you mean v26.7\?"):
        olm.channel(MANIFEST, "v26.8")
    with pytest.raises(InputError, match=r"has no gpu-operator-certified.v9"):
        olm.channel(MANIFEST, "", f"{GPU}.v9")


def csv(examples: Any) -> dict[str, Any]:
    text = examples if isinstance(examples, str) else json.dumps(examples)
    return {"metadata": {"name": f"{GPU}.v26.7.0", "annotations": {"alm-examples": text}}}


def test_a_cluster_policy_is_the_example_with_our_values_over_it() -> None:
    example = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "gpu-cluster-policy"},
        "spec": {"mig": {"strategy": "single"}, "daemonsets": {"updateStrategy": "RollingUpdate", "tolerations": [1]}},
    }
    values = {"mig": {"strategy": "mixed"}, "daemonsets": {"tolerations": [2]}}
    found = olm.custom_resource(csv([example]), "ClusterPolicy", values)
    assert found["metadata"] == {"name": "gpu-cluster-policy"}
    assert found["spec"] == {
        "mig": {"strategy": "mixed"},
        "daemonsets": {"updateStrategy": "RollingUpdate", "tolerations": [2]},
    }
    for broken in ("[", [], [{"kind": "Other"}]):
        with pytest.raises(DataError, match=r"alm-examples|no example"):
            olm.custom_resource(csv(broken), "ClusterPolicy", {})


def test_fields_that_the_api_server_would_drop() -> None:
    path = upstream("crds/gpu-operator/v26.7.0/nvidia.com_clusterpolicies.yaml")
    crd = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    values = {"mig": {"stratgy": "mixed"}, "daemonsets": {"tolerations": [{"kee": "x"}]}, "devicePlugins": {}}
    assert olm.unknown_fields(values, spec) == [
        "spec.mig.stratgy is unknown; did you mean strategy?",
        "spec.daemonsets.tolerations[0].kee is unknown; did you mean key?",
        "spec.devicePlugins is unknown; did you mean devicePlugin?",
    ]
    good = {"mig": {"strategy": "mixed"}, "devicePlugin": {"config": {"name": "x", "default": ""}}}
    assert olm.unknown_fields(good, spec) == []


@pytest.mark.parametrize(
    ("version", "cdi", "example", "values", "told"),
    [
        ("v25.10.1", {"enabled": False}, {}, {}, "cdi.enabled false"),
        ("v25.10.1", {"enabled": False}, {}, {"cdi": {"enabled": False}}, ""),
        ("v25.10.1", {"enabled": True}, {"enabled": True}, {}, ""),
        ("v25.10.1", None, {"enabled": True}, {}, "cdi.enabled unset"),
        ("v25.10.1", None, {}, {}, ""),
        ("v23.9.1", {"enabled": False}, {}, {}, ""),
    ],
)
def test_what_an_upgrade_left_behind_is_told(version: str, cdi: Any, example: Any, values: Any, told: str) -> None:
    folder = upstream("crds", "gpu-operator", version)
    path = next(folder.glob("nvidia.com_clusterpolicies*.yaml"))
    crd = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    live = {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {"cdi": cdi} if cdi else {}}
    found = olm.left_behind(live, {"spec": {"cdi": example}}, olm.schema_of(crd, "v1"), values)
    assert len(found) == bool(told)
    assert told in "".join(found)
