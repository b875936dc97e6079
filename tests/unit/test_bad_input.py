# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input on OpenShift and for shared GPUs (the reference's table 6.2), one case per entry, with what we say to it.

NoExecute taints that NFD does not tolerate are in test_gpu_taints.py; MIG under running pods,
which only a cluster shows, is in tests/integration/e2e/test_sharing.py.
"""

from __future__ import annotations

from typing import Any, Callable

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import lint, linted, reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler as openshift_autoscaler
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm, olm_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs as gpu_configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import exclusive, metrics, sharing, sharing_plan, vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import serving as gpu_serving
from support.crd_schema import faults
from support.paths import ROOT, upstream

TABLE = openshift_autoscaler.tables(yaml.safe_load((ROOT / "files/autoscaler.yml").read_text()))
SHAPES = shape_table.shapes()
GPU = "nvidia.com/gpu"
PACKAGE = {
    "metadata": {"name": "gpu-operator-certified"},
    "status": {"defaultChannel": "v26.7", "channels": [{"name": "v26.7", "currentCSV": "x.v26.7.0"}]},
}
BROKEN_YAML = "version: v1\nsharing:\n  timeSlicing:\n   resources:\n  - name: nvidia.com/gpu"


def subscribed(**more: str) -> Any:
    return olm_run.complete({"package": "gpu-operator-certified", "namespace": "n", "source": "s", **more})


def pod(limits: Any = None, requests: Any = None) -> Any:
    resources = {"limits": limits or {}, "requests": requests or {}}
    spec = {"containers": [{"name": "a", "resources": resources}]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    return lint.lint([document], linted.table(), reading.JobContext()).findings


def machines(notes: dict[str, str], labels: dict[str, str] | None = None, machine: dict[str, str] | None = None) -> Any:
    inner = {"metadata": {"labels": labels or {}}}
    meta = {"name": "gpu", "annotations": notes}
    return {"metadata": meta, "spec": {"template": {"metadata": {"labels": machine or {}}, "spec": inner}}}


ZONED = machines({}, {openshift_autoscaler.ZONE: "b", "topology.ebs.csi.aws.com/zone": "b"})
ZONED["spec"]["template"]["spec"]["providerSpec"] = {
    "value": {"kind": "AWSMachineProviderConfig", "placement": {"availabilityZone": "a"}}
}


def checked(machine_set: Any, **more: Any) -> Any:
    return openshift_autoscaler.check_machine_set(TABLE, machine_set, **more)


def autoscaler(**spec: Any) -> Any:
    return openshift_autoscaler.cluster_autoscaler(TABLE, spec)


def capacity(gpus: Any) -> dict[str, str]:
    return openshift_autoscaler.capacity_annotations(TABLE, cpu=8, memory_mib=1024, gpus=gpus)


def shared(*, default: str = "", mig_strategy: str = "", **configs: Any) -> sharing_plan.SharingPlan:
    return gpu_configs.plan([], configs, default, {}, mig_strategy)


def sliced(replicas: Any = 4, name: str = GPU, how: str = "timeSlicing") -> dict[str, Any]:
    return {"version": "v1", "sharing": {how: {"resources": [{"name": name, "replicas": replicas}]}}}


def node(shape: str, plan: sharing_plan.SharingPlan, config: str, mig: str) -> Any:
    return plan.of(sharing_plan.node_of("n", SHAPES[shape]), SHAPES[shape].gpu_id, config, mig)


def machine_autoscaler(name: str, target: str, kind: str = "MachineSet") -> Any:
    built = openshift_autoscaler.machine_autoscaler(name, target, 0, 1)
    built["spec"]["scaleTargetRef"]["kind"] = kind
    return built


def predicted(version: str, notes: dict[str, str]) -> str:
    sizes = {openshift_autoscaler.MIN_SIZE: "0", openshift_autoscaler.MAX_SIZE: "1"}
    pods = [{"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}]
    return openshift_autoscaler.predict(TABLE, TABLE.behaviour(version), machines({**notes, **sizes}), pods).why


NEW = {key: value for key, value in capacity(1).items() if key.startswith("capacity.")}
BOTH = capacity(8)
H100, L40S = "BM.GPU.H100.8", "BM.GPU.L40S.4"
CASES: list[tuple[str, Callable[[], Any], str]] = [
    ("olm: missing source", lambda: subscribed(source=""), "no source"),
    (
        "olm: second OperatorGroup",
        lambda: olm.group_for([{"metadata": {"name": name}} for name in "ab"], subscribed()),
        "2 OperatorGroups (a, b): OLM does nothing there (MultipleOperatorGroup)",
    ),
    ("olm: channel not in the manifest", lambda: olm.channel(PACKAGE, "v26.8"), "did you mean v26.7?"),
    ("olm: approval auto", lambda: subscribed(approval="auto"), "did you mean Automatic?"),
    ("pod: request is not limit", lambda: pod({GPU: 1}, {GPU: 2}), "requests 2, limits 1"),
    ("pod: fraction", lambda: pod({GPU: "0.5"}), "0.5 is not a whole number"),
    ("pod: no limit", lambda: pod(None, {GPU: 1}), "no limit"),
    ("taint: effect NoSched", lambda: pod_gpu.taint("a=b:NoSched"), "did you mean NoSchedule?"),
    ("taint: no key", lambda: pod_gpu.taint({"effect": "NoSchedule"}), "has no key"),
    (
        "accelerator: wrong level",
        lambda: checked(machines({}, {}, {openshift_autoscaler.ACCELERATOR: "h100"})),
        "labels the Machine, not the Node",
    ),
    ("accelerator: slash", lambda: openshift_autoscaler.accelerator(GPU), "cannot be an accelerator's name"),
    (
        "accelerator: not a type",
        lambda: checked(machines(BOTH, {openshift_autoscaler.ACCELERATOR: "h100"}), gpu_types=["nvidia-h100"]),
        "known: nvidia-h100",
    ),
    ("autoscaler: uneededTime", lambda: autoscaler(scaleDown={"uneededTime": "5m"}), "did you mean unneededTime?"),
    ("autoscaler: 20 minutes", lambda: autoscaler(scaleDown={"delayAfterAdd": "20 minutes"}), "a duration such as 20m"),
    (
        "autoscaler: gpus max 0",
        lambda: autoscaler(resourceLimits={"gpus": [{"type": "h100", "min": 0, "max": 0}]}),
        "max at least 1",
    ),
    (
        "autoscaler: type nvidia.com/gpu",
        lambda: autoscaler(resourceLimits={"gpus": [{"type": GPU, "min": 0, "max": 1}]}),
        "a value of the label",
    ),
    (
        "machine autoscaler: min > max",
        lambda: openshift_autoscaler.machine_autoscaler("a", "gpu", 2, 1),
        "not more than max",
    ),
    ("machine autoscaler: max 0", lambda: openshift_autoscaler.machine_autoscaler("a", "gpu", 0, 0), "max at least 1"),
    (
        "machine autoscaler: no such set",
        lambda: openshift_autoscaler.check_owners([machine_autoscaler("a", "gpus")], ["gpu"]),
        "did you mean gpu?",
    ),
    (
        "machine autoscaler: two owners",
        lambda: openshift_autoscaler.check_owners([machine_autoscaler(name, "gpu") for name in "ab"], ["gpu"]),
        "already belongs to MachineAutoscaler/a",
    ),
    (
        "machine autoscaler: kind Machine",
        lambda: openshift_autoscaler.check_owners([machine_autoscaler("a", "gpu", "Machine")], ["gpu"]),
        "scaleTargetRef.kind Machine",
    ),
    ("from zero: one", lambda: checked(machines({**BOTH, "machine.openshift.io/GPU": "one"})), "panics on it"),
    (
        "from zero: GPU alone",
        lambda: checked(machines({"machine.openshift.io/GPU": "8"})),
        "cpu and memory are both needed",
    ),
    ("from zero: new keys on 4.18", lambda: predicted("4.18", NEW), "without annotation machine.openshift.io/vCPU"),
    ("from zero: slices left out", lambda: checked(machines(BOTH), gpus=32), "its nodes advertise 32"),
    ("zone: not the provider's", lambda: checked(ZONED), "a, as in its providerSpec"),
    (
        "zone: EBS label elsewhere",
        lambda: checked(_elsewhere()),
        "is not one of this platform (GCPMachineProviderSpec)",
    ),
    ("slicing: replicas 1", lambda: shared(a=sliced(1)), "at least 2"),
    ("slicing: replicas 0", lambda: shared(a=sliced(0)), "at least 2"),
    ("slicing: default key absent", lambda: shared(default="b", a=sliced()), "the default selects"),
    ("slicing: broken YAML", lambda: shared(a=BROKEN_YAML), "in line 5"),
    ("slicing: unknown resource", lambda: shared(a=sliced(2, "nvidia.com/gpus")), "'nvidia.com/gpus'"),
    ("mig: unknown profile", lambda: node(H100, shared(), "", "all-1g.5gb"), "does not fit a100-h100-80gb"),
    ("mig: Single", lambda: shared(a={"flags": {"migStrategy": "Single"}}), "did you mean single?"),
    ("mig: no such GPU", lambda: node(L40S, shared(), "", "all-1g.10gb"), "which has no MIG"),
    ("mps: with MIG", lambda: node(H100, shared(a=sliced(how="mps")), "a", "all-1g.10gb"), "does not work on MIG"),
    (
        "mps: with time slicing",
        lambda: shared(a={"sharing": {**sliced()["sharing"], **sliced(how="mps")["sharing"]}}),
        "exclude each other",
    ),
    ("serving: more GPUs than a node has", lambda: served(gpus=16), "16 GPUs per node, but the nodes offer 8"),
    ("serving: no shm", lambda: served(shm_gib=0), "shm_gib must be at least 1"),
    ("serving: heads", lambda: served(gpus=7), "does not divide the 64 attention heads"),
    ("multi-node: RWO claim", lambda: served(nodes=2, modes=["ReadWriteOnce"]), "ReadWriteMany or ReadOnlyMany"),
    (
        "multi-node: env of tensor parallel",
        lambda: served(nodes=2, env={"TENSOR_PARALLEL_SIZE": "8"}),
        "env TENSOR_PARALLEL_SIZE: set rdma_serving_tensor",
    ),
    ("multi-node: size 0", lambda: served(nodes=0), "both must be at least 1"),
    ("vgpu: guest newer than host", lambda: driven(host_version="550.90.05"), "must not be newer than the host's"),
    ("vgpu: RHCOS of another suffix", lambda: driven(version="550.163.01-rhcos4.17"), "run rhcos4.18"),
    (
        "vgpu: no pull secret",
        lambda: "; ".join(vgpu.pull_secret_faults(vgpu.driver(DRIVER, [VGPU]), {"ngc": None})),
        "the pull secret ngc does not exist",
    ),
    ("vgpu: FeatureType 3", lambda: vgpu.gridd({"feature_type": 3}), "feature type 3 is unknown"),
    (
        "vgpu: proxy line",
        lambda: vgpu.gridd({"proxy": "http://proxy:3128", "proxy_port": 3128}),
        "must be a host name or address without scheme",
    ),
    (
        "vgpu: label of time slicing",
        lambda: "; ".join(vgpu.node_faults([vgpu.VgpuNode("n", {sharing.CONFIG_LABEL: "a"}, "", 1)])),
        "a vGPU can be neither shared nor partitioned",
    ),
    (
        "vgpu: time slicing on its nodes",
        lambda: exclusive.check({"time_slicing": ["n"], "vgpu": ["n"]}, {}),
        "exactly one GPU, which is not shared",
    ),
    (
        "dashboard: no label",
        lambda: metrics.dashboard_object({}, True, labels={}),
        "the console would not show it",
    ),
]
DRIVER = {"repository": "nvcr.io/nvidia/vgpu", "image": "vgpu-guest-driver", "version": "550.163.01"}
DRIVER["pull_secrets"] = ["ngc"]  # type: ignore[assignment]
VGPU = vgpu.VgpuNode("n", {"feature.node.kubernetes.io/system-os_release.OPENSHIFT_VERSION": "4.18"}, "", 1)
MODELS = gpu_serving.models(yaml.safe_load((ROOT / "files/models.yml").read_text()))


def served(modes: Any = (), **change: Any) -> Any:
    given = {"name": "m", "namespace": "n", "model": "llama-3.1-70b", "image": "i", "claim": "c", "gpus": 8}
    several = {"vfs": 16, "network": "n/rdma"} if change.get("nodes", 1) > 1 else {}
    serving = gpu_serving.Serving(**{**given, **several, **change})
    return gpu_serving.check(serving, MODELS["llama-3.1-70b"], 80.0, 8, modes)


def driven(**change: Any) -> Any:
    return vgpu.driver({**DRIVER, **change}, [VGPU])


def _elsewhere() -> Any:
    built = machines({}, {"topology.ebs.csi.aws.com/zone": "a"})
    built["spec"]["template"]["spec"]["providerSpec"] = {"value": {"kind": "GCPMachineProviderSpec", "zone": "a"}}
    return built


@pytest.mark.parametrize(("bad", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_input_is_named(bad: Callable[[], Any], words: str) -> None:
    try:
        found = bad()
    except RdmaError as error:
        found = str(error)
    told = found if isinstance(found, str) else " ".join(f"{one.found} {one.expected} {one.remedy}" for one in found)
    assert words in told


def test_a_cluster_autoscaler_of_another_name_cannot_be_written() -> None:
    assert autoscaler()["metadata"]["name"] == "default"


def test_a_licence_is_a_secret_with_metadata_not_a_config_map() -> None:
    for version in ("v25.10.1", "v26.7.0"):
        crd = yaml.load(
            upstream(f"crds/gpu-operator/{version}/nvidia.com_clusterpolicies.yaml").read_text(),
            Loader=yaml.CSafeLoader,
        )
        made = vgpu.license_object("a", "n", "FeatureType=1\n", "a.b.c", vgpu.knows_secret(crd, version))
        assert (made["kind"], set(made)) == ("Secret", {"apiVersion", "kind", "metadata", "type", "data"})


def test_several_nodes_are_never_served_by_knative() -> None:
    given = {"name": "m", "namespace": "n", "model": "llama-3.1-70b", "image": "i", "claim": "c", "nodes": 2}
    made = gpu_serving.objects(gpu_serving.Serving(**given, gpus=8, engine="kserve"))[-1]  # type: ignore[arg-type]
    assert made["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "RawDeployment"


def test_tolerations_replaced_instead_of_merged() -> None:
    there = [{"key": "team", "operator": "Exists"}]
    assert pod_gpu.merged(there, pod_gpu.taints(["nvidia.com/gpu:NoSchedule"]))[:1] == there


def test_an_empty_cluster_policy_is_no_cluster_policy() -> None:
    """The definition itself refuses it; we write the example of the version with our values over it."""
    empty = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "x"}, "spec": {}}
    path = upstream("crds/gpu-operator/v26.7.0/nvidia.com_clusterpolicies.yaml")
    assert "'operator' is a required property" in " ".join(faults(empty, path))


@pytest.mark.parametrize("version", ["v23.9.1", "v25.10.1", "v26.3.3", "v26.7.0"])
def test_what_we_patch_into_a_cluster_policy_exists_in_every_version(version: str) -> None:
    name = "nvidia.com_clusterpolicies_crd.yaml" if version == "v23.9.1" else "nvidia.com_clusterpolicies.yaml"
    crd = yaml.load(upstream(f"crds/gpu-operator/{version}/{name}").read_text(), Loader=yaml.CSafeLoader)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    layouts = {"mine": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]}
    plan = gpu_configs.plan([], {"a": sliced()}, "a", layouts, "mixed")
    tolerations = {"daemonsets": {"tolerations": pod_gpu.merged([], pod_gpu.taints(["a=b:NoExecute"]))}}
    assert olm.unknown_fields({**plan.policy_spec("x"), **tolerations}, schema) == []


def test_the_text_in_the_config_map_is_read_as_it_was_meant() -> None:
    plan = gpu_configs.plan([], {"a": sliced(), "b": sharing.shared("mps", 2)}, "a", {}, "")
    data = gpu_configs.objects(plan, "x", "n")[0]["data"]
    assert {key: yaml.safe_load(text) for key, text in data.items()} == plan.configs
    assert shared(**data).configs == plan.configs
