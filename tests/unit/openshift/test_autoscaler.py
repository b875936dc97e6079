# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Autoscaling of GPU pools on OpenShift: rules, objects, and a replay of what the real autoscaler did."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler
from support.crd_schema import faults
from support.paths import RECORDINGS, ROOT, upstream

TABLE = autoscaler.tables(yaml.safe_load((ROOT / "files/autoscaler.yml").read_text()))
RECORDED = sorted((RECORDINGS / "platform").glob("cluster-autoscaler-ocp-*.json"))
NAME = re.compile(
    r"cluster-autoscaler-ocp-(?P<version>4\.\d+|main)(-\S+-provider-(?P<provider>[a-z]+))?_(?P<what>\w+)\.json"
)
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
ALL_FIELDS: dict[str, Any] = {
    "balanceSimilarNodeGroups": True,
    "balancingIgnoredLabels": ["topology.ebs.csi.aws.com/zone"],
    "enforceNodeGroupMinSize": "Enabled",
    "expanders": ["LeastWaste", "Random"],
    "ignoreDaemonsetsUtilization": True,
    "logVerbosity": 4,
    "maxNodeProvisionTime": "30m",
    "maxPodGracePeriod": 600,
    "podPriorityThreshold": -10,
    "resourceLimits": {
        "cores": {"min": 8, "max": 2048},
        "memory": {"min": 32, "max": 32768},
        "maxNodesTotal": 24,
        "gpus": [{"type": "nvidia-h100", "min": 0, "max": 16}],
    },
    "scaleDown": {
        "enabled": True,
        "cordonNodeBeforeTerminating": "Enabled",
        "delayAfterAdd": "20m",
        "delayAfterDelete": "10s",
        "delayAfterFailure": "3m",
        "unneededTime": "5m",
        "utilizationThreshold": "0.4",
    },
    "scaleUp": {"newPodScaleUpDelay": "10s"},
    "skipNodesWithLocalStorage": False,
    "startupTaints": ["nvidia.com/driver-missing"],
}


# ---- replay --------------------------------------------------------------------------------------------------------


def event(objects: list[Any], kind: str, name: str = "") -> tuple[str, str]:
    """(reason, text after the colon) of the autoscaler's event about an object."""
    for one in objects:
        about = one.get("involvedObject", {})
        mine = one["kind"] == "Event" and one.get("reportingComponent") == "cluster-autoscaler"
        if mine and about.get("kind") == kind and name in ("", about["name"]):
            return one["reason"], one["message"].partition(": ")[2]
    return "", ""


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem[19:])
def test_every_recorded_scenario(path: Path) -> None:
    """From the MachineSet and the pods alone: node group or not, new size, events, and the words of a refusal."""
    named = NAME.fullmatch(path.name)
    assert named
    behaviour = TABLE.behaviour(named["version"], named["provider"] or "openshift")
    objects = json.loads(path.read_text())
    machine_set = next(one for one in objects if one["kind"] == "MachineSet")
    pods = [one for one in objects if one["kind"] == "Pod"]
    status = yaml.safe_load(next(one for one in objects if one["kind"] == "ConfigMap")["data"]["status"])
    before = 2 if named["what"] == "max_size_reached" else 0
    predicted = autoscaler.predict(TABLE, behaviour, machine_set, pods, before)

    group = autoscaler.group_of(status, autoscaler.group_name(machine_set))
    assert predicted.grouped == (group is not None)
    assert predicted.replicas == machine_set["spec"]["replicas"]
    reason, text = event(objects, "Pod", pods[0]["metadata"]["name"])
    reasons = {one["reason"] for one in objects if one.get("reportingComponent") == "cluster-autoscaler"}
    if not predicted.reason:
        assert not reason
    else:
        assert predicted.reason in reasons
        assert predicted.message in (text if reason == predicted.reason else json.dumps(objects))
    assert bool(predicted.message) == bool(text) or predicted.reason == "TriggeredScaleUp"

    told = autoscaler.explain(machine_set, status, text, predicted)
    if not predicted.grouped:
        assert "is not a node group" in told and predicted.why in told
    elif before or named["what"] == "scale_up_timeout":
        assert "is Unhealthy" in told
    elif predicted.reason == "NotTriggerScaleUp":
        assert predicted.message in told


def test_each_version_has_recordings_of_its_own() -> None:
    assert len(RECORDED) >= 40
    versions = {match["version"] for path in RECORDED if (match := NAME.fullmatch(path.name))}
    assert versions == {"4.18", "4.20", "main"}


# ---- from zero -----------------------------------------------------------------------------------------------------


def machine_set(notes: dict[str, str], **spec: Any) -> dict[str, Any]:
    sizes = {autoscaler.MIN_SIZE: "0", autoscaler.MAX_SIZE: "2"}
    labels = {autoscaler.ACCELERATOR: "nvidia-h100"}
    inner = {"metadata": {"labels": labels}, "taints": [GPU_TAINT], **spec}
    meta = {"name": "gpu", "namespace": autoscaler.NAMESPACE, "annotations": {**sizes, **notes}}
    return {"metadata": meta, "spec": {"replicas": 0, "template": {"metadata": {}, "spec": inner}}}


def pod(**limits: Any) -> dict[str, Any]:
    names = {"gpus": "nvidia.com/gpu", "vfs": "nvidia.com/sriov_rdma_vf"}
    resources = {"limits": {names[key]: str(value) for key, value in limits.items()}}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {"spec": {"containers": [{"image": "x", "resources": resources}], "tolerations": tolerations}}


NOTES = autoscaler.capacity_annotations(TABLE, cpu=224, memory_mib=2097152, gpus=32)


def test_both_families_say_the_same() -> None:
    assert NOTES == {
        "machine.openshift.io/vCPU": "224",
        "machine.openshift.io/memoryMb": "2097152",
        "machine.openshift.io/GPU": "32",
        "capacity.cluster-autoscaler.kubernetes.io/cpu": "224",
        "capacity.cluster-autoscaler.kubernetes.io/memory": "2097152Mi",
        "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "32",
        "capacity.cluster-autoscaler.kubernetes.io/gpu-type": "nvidia.com/gpu",
    }
    assert autoscaler.check_machine_set(TABLE, machine_set(NOTES), gpu_types=["nvidia-h100"], gpus=32) == []


@pytest.mark.parametrize(
    ("version", "provider", "old", "new"),
    [
        ("4.18", "openshift", True, False),
        ("4.14.3", "openshift", True, False),
        ("4.20", "openshift", True, True),
        ("4.23", "openshift", True, True),
        ("5.0", "openshift", True, True),
        ("5.0", "clusterapi", False, True),
        ("main", "clusterapi", False, True),
    ],
)
def test_which_family_a_version_reads(version: str, provider: str, old: bool, new: bool) -> None:
    """What we write, both, grows on all of them."""
    behaviour = TABLE.behaviour(version, provider)
    for prefix, grows in (("machine.", old), ("capacity.", new), ("", True)):
        notes = {key: value for key, value in NOTES.items() if key.startswith(prefix)}
        predicted = autoscaler.predict(TABLE, behaviour, machine_set(notes), [pod(gpus=8)])
        assert (predicted.replicas, predicted.grouped) == (int(grows), grows), (prefix, predicted)


def test_a_volume_of_another_zone_is_explained() -> None:
    groups = [{"name": "MachineSet/openshift-machine-api/gpu", "health": {"status": "Healthy"}}]
    message = "pod didn't trigger scale-up: 1 node(s) had volume node affinity conflict"
    predicted = autoscaler.Prediction(True, 0, "NotTriggerScaleUp", message, "")
    assert "Its volume is in another zone" in autoscaler.explain(
        machine_set(NOTES), {"nodeGroups": groups}, message, predicted
    )


def test_shared_gpus_need_the_advertised_count() -> None:
    behaviour = TABLE.behaviour("4.20")
    pods = [pod(gpus=1)] * 20
    whole = autoscaler.capacity_annotations(TABLE, cpu=224, memory_mib=2097152, gpus=8)
    assert autoscaler.predict(TABLE, behaviour, machine_set(NOTES), pods).replicas == 1
    assert autoscaler.predict(TABLE, behaviour, machine_set(whole), pods).replicas == 2
    found = autoscaler.check_machine_set(TABLE, machine_set(whole), gpus=32)
    assert [one.found for one in found] == ["GPU count 8, and its nodes advertise 32 nvidia.com/gpu"]


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(InputError, match=r"MIG mixed.*cannot scale from zero"):
        autoscaler.capacity_annotations(TABLE, cpu=1, memory_mib=1, gpus=None)
    for wrong in ("one", -1, 1.0, True):
        with pytest.raises(InputError, match="must be a whole number"):
            autoscaler.capacity_annotations(TABLE, cpu=1, memory_mib=1, gpus=wrong)  # type: ignore[arg-type]


def test_vfs_never_scale_from_zero_and_gpus_alone_do() -> None:
    behaviour, wanted = TABLE.behaviour("4.20"), pod(gpus=8, vfs=16)
    predicted = autoscaler.predict(TABLE, behaviour, machine_set(NOTES), [wanted])
    assert predicted.message == "1 Insufficient nvidia.com/sriov_rdma_vf"
    status = {"nodeGroups": [{"name": "MachineSet/openshift-machine-api/gpu", "health": {"status": "Healthy"}}]}
    told = autoscaler.explain(machine_set(NOTES), status, predicted.message, predicted)
    assert "pods that request VFs never scale a group from zero" in told
    assert autoscaler.predict(TABLE, behaviour, machine_set(NOTES), [pod(gpus=8)]).replicas == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine.openshift.io/GPU": "one"}, "the cluster-autoscaler-operator panics on it"),
        ({"machine.openshift.io/memoryMb": "2048Gi"}, "is not a number"),
        ({"machine.openshift.io/GPU": "8"}, "the two GPU counts differ: 32, 8"),
        ({"machine.openshift.io/vCPU": None}, "cpu and memory are both needed"),
        ({"capacity.cluster-autoscaler.kubernetes.io/gpu-count": None}, "no GPU is simulated"),
    ],
)
def test_annotations_that_do_not_work(change: dict[str, Any], words: str) -> None:
    notes = {key: value for key, value in {**NOTES, **change}.items() if value is not None}
    found = " ".join(one.found for one in autoscaler.check_machine_set(TABLE, machine_set(notes)))
    assert words in found


# ---- labels and zones ----------------------------------------------------------------------------------------------


def test_the_accelerator_label_at_its_level() -> None:
    good = machine_set(NOTES)
    assert not autoscaler.check_machine_set(TABLE, good, gpu_types=["nvidia-h100", "nvidia-a100"])
    found = autoscaler.check_machine_set(TABLE, good, gpu_types=["nvidia-h1000"])
    assert found[0].found == "label cluster-api/accelerator=nvidia-h100; did you mean nvidia-h1000?"
    wrong = machine_set(NOTES, metadata={"labels": {autoscaler.ACCELERATOR: "nvidia.com/gpu"}})
    assert "is not a valid label value" in autoscaler.check_machine_set(TABLE, wrong)[0].found
    low = machine_set(NOTES, metadata={})
    low["spec"]["template"]["metadata"] = {"labels": {autoscaler.ACCELERATOR: "nvidia-h100"}}
    assert "labels the Machine, not the Node" in autoscaler.check_machine_set(TABLE, low)[0].found
    with pytest.raises(InputError, match="Use for example nvidia-h100"):
        autoscaler.accelerator("nvidia.com/gpu")


def aws(labels: dict[str, str], kind: str = "AWSMachineProviderConfig", zone: str = "us-east-1a") -> dict[str, Any]:
    place = {"placement": {"availabilityZone": zone}} if kind.startswith("AWS") else {"zone": zone}
    labels = {autoscaler.ACCELERATOR: "nvidia-h100", **labels}
    return machine_set(NOTES, metadata={"labels": labels}, providerSpec={"value": {"kind": kind, **place}})


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (aws({autoscaler.ZONE: "us-east-1b"}), "topology.kubernetes.io/zone=us-east-1b"),
        (aws({"topology.ebs.csi.aws.com/zone": "us-east-1b"}), "topology.ebs.csi.aws.com/zone=us-east-1b"),
        (aws({"topology.ebs.csi.aws.com/zone": "a"}, "GCPMachineProviderSpec", "a"), "is not one of this platform"),
        (aws({autoscaler.ZONE: "us-east-1a"}), "label topology.ebs.csi.aws.com/zone is absent"),
    ],
)
def test_zone_hints_agree_with_the_machines(built: Any, words: str) -> None:
    assert words in " ".join(one.found for one in autoscaler.check_machine_set(TABLE, built, zonal=True))


def test_azure_labels_zones_with_their_region() -> None:
    built = aws({}, "AzureMachineProviderSpec", "2")
    assert autoscaler.zone_hints(TABLE, built) == {}
    built["spec"]["template"]["spec"]["providerSpec"]["value"]["location"] = "eastus"
    hints = {autoscaler.ZONE: "eastus-2", "topology.disk.csi.azure.com/zone": "eastus-2"}
    assert autoscaler.zone_hints(TABLE, built) == hints


def test_a_count_that_the_platform_writes_is_a_warning() -> None:
    notes = {**NOTES, "machine.openshift.io/GPU": "8"}
    own, platforms = machine_set(notes), aws({})
    platforms["metadata"]["annotations"] = notes
    for built, severity in ((own, "error"), (platforms, "warning")):
        (found,) = [one for one in autoscaler.check_machine_set(TABLE, built) if one.id == "autoscaler.capacity"]
        assert found.severity == severity


def test_a_zone_bound_pod_scales_the_set_of_its_zone() -> None:
    here, there = ({autoscaler.ZONE: f"us-east-1{one}"} for one in "ab")
    wanted = pod(gpus=1)
    wanted["spec"]["nodeSelector"] = here
    for labels, size in ((here, 1), (there, 0), ({}, 0)):
        assert autoscaler.predict(TABLE, TABLE.behaviour("4.18"), aws(labels), [wanted]).replicas == size
    # Only OpenShift's provider takes all labels of the template.
    assert autoscaler.predict(TABLE, TABLE.behaviour("main", "clusterapi"), aws(here), [wanted]).replicas == 0


def test_the_patch_of_a_machine_set() -> None:
    patch = autoscaler.machine_set_patch(
        NOTES, accelerator_name="nvidia-h100", labels={autoscaler.ZONE: "a"}, taints=[GPU_TAINT]
    )
    built = {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", **copy.deepcopy(patch)}
    built["metadata"]["name"] = "gpu"
    built["spec"].update(replicas=0, selector={"matchLabels": {"a": "b"}})
    assert faults(built, upstream("crds/openshift/machinesets.yaml")) == []
    assert autoscaler.check_machine_set(TABLE, built, gpu_types=["nvidia-h100"]) == []


# ---- ClusterAutoscaler, MachineAutoscaler --------------------------------------------------------------------------


def refused(spec: Any, **more: Any) -> str:
    with pytest.raises(InputError) as error:
        autoscaler.cluster_autoscaler(TABLE, spec, **more)
    return str(error.value)


def test_every_field_of_the_crd_passes() -> None:
    path = upstream("crds/openshift/clusterautoscaler.yaml")
    fields = autoscaler.crd_fields(yaml.safe_load(path.read_text()))
    assert set(fields) == set(TABLE.fields)
    built = autoscaler.cluster_autoscaler(TABLE, ALL_FIELDS, crd_fields=fields, rollout_s=900, boot_s=600)
    ignored = [*ALL_FIELDS["balancingIgnoredLabels"], autoscaler.SET_LABEL]
    assert built["spec"] == {**ALL_FIELDS, "balancingIgnoredLabels": ignored}
    assert faults(built, path) == []


def test_a_field_that_this_cluster_does_not_have_yet() -> None:
    older = [one for one in TABLE.fields if one not in ("startupTaints", "scaleDown.cordonNodeBeforeTerminating")]
    text = refused(ALL_FIELDS, crd_fields=older)
    assert "spec.startupTaints is not in this cluster's CRD" in text
    assert "spec.scaleDown.cordonNodeBeforeTerminating is not in this cluster's CRD" in text
    newer = {"scaleDown": {"enabled": True, "somethingNew": 1}}
    assert "somethingNew is unknown" in refused(newer, crd_fields=list(TABLE.fields))
    fields = [*TABLE.fields, "scaleDown.somethingNew"]
    assert autoscaler.cluster_autoscaler(TABLE, newer, crd_fields=fields)["spec"]["scaleDown"]["somethingNew"] == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scaleDown": {"uneededTime": "5m"}}, "spec.scaleDown.uneededTime is unknown; did you mean unneededTime?"),
        ({"scaleDown": {"delayAfterAdd": "20 minutes"}}, "must be a duration such as 20m, not '20 minutes'"),
        ({"maxNodeProvisionTime": "15 min"}, "must be a duration"),
        ({"resourceLimits": {"gpus": [{"type": "nvidia-h100", "min": 0, "max": 0}]}}, "max at least 1"),
        (
            {"resourceLimits": {"gpus": [{"type": "nvidia.com/gpu", "min": 0, "max": 8}]}},
            "a value of the label",
        ),
        ({"resourceLimits": {"gpus": [{"type": "x", "min": 9, "max": 8}]}}, "min 9 is more than max 8"),
        ({"resourceLimits": {"gpus": [{"type": "x", "max": 8}]}}, "needs type, min and max"),
        ({"resourceLimits": {"cores": {"min": 9, "max": 8}}}, "spec.resourceLimits.cores: min 9"),
        ({"expanders": ["random"]}, "'random'; did you mean Random?"),
        ({"scaleDown": {"utilizationThreshold": 0.4}}, "must be a string"),
        ({"scaledown": {}}, "spec.scaledown is unknown; did you mean scaleDown?"),
        ({"scaleDown": []}, "spec.scaleDown must be a mapping"),
        ({"balanceSimilarNodeGroups": "yes"}, "must be true or false"),
    ],
)
def test_what_would_be_pruned_rejected_or_panic(spec: Any, words: str) -> None:
    assert words in refused(spec)


def test_delays_are_longer_than_what_they_wait_for() -> None:
    made = autoscaler.cluster_autoscaler(TABLE, {"scaleDown": {}}, rollout_s=1199)
    assert made["spec"]["scaleDown"] == {"enabled": True, "delayAfterAdd": "20m"}
    assert autoscaler.cluster_autoscaler(TABLE, {})["spec"] == {"scaleDown": {"enabled": True, "delayAfterAdd": "20m"}}
    assert "the node would be removed before its GPUs are ready" in refused({"scaleDown": {}}, rollout_s=1200)
    assert "the group would be Unhealthy" in refused({"maxNodeProvisionTime": "15m"}, boot_s=1000)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("10s", 10), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert autoscaler.duration(text) == seconds


def test_a_machine_autoscaler() -> None:
    built = autoscaler.machine_autoscaler("gpu", "gpu", 0, 4)
    assert faults(built, upstream("crds/openshift/machineautoscaler.yaml")) == []
    for low, high in ((2, 1), (0, 0), (-1, 3)):
        with pytest.raises(InputError, match=f"min {low}, max {high}"):
            autoscaler.machine_autoscaler("gpu", "gpu", low, high)


def test_owners_of_machine_sets() -> None:
    one, two = (autoscaler.machine_autoscaler(name, "gpu", 0, 4) for name in ("a", "b"))
    lost = autoscaler.machine_autoscaler("c", "gpus", 0, 4)
    machine = autoscaler.machine_autoscaler("d", "gpu-x", 0, 4)
    machine["spec"]["scaleTargetRef"]["kind"] = "Machine"
    turned = {**one, "metadata": {"name": "e"}, "spec": {**one["spec"], "minReplicas": 5}}
    turned["spec"]["scaleTargetRef"] = {"kind": "MachineSet", "name": "other"}
    found = {
        f.subject[-1]: f.found for f in autoscaler.check_owners([one, two, lost, machine, turned], ["gpu", "other"])
    }
    assert "already belongs to MachineAutoscaler/a" in found["b"]
    assert "there is no MachineSet gpus; did you mean gpu?" in found["c"]
    assert found["d"] == "scaleTargetRef.kind Machine"
    assert found["e"] == "min 5 is more than max 4"
    assert "a" not in found


def test_versions_and_tables_that_are_not_known() -> None:
    for version, provider in (("4.11", "openshift"), ("4.18", "clusterapi")):
        with pytest.raises(InputError, match="is not supported"):
            TABLE.behaviour(version, provider)
    with pytest.raises(InputError, match="not a version"):
        TABLE.behaviour("stable")
    with pytest.raises(DataError):
        autoscaler.tables({"families": {}})
