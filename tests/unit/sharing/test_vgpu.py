# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vGPU: gridd.conf, tokens that stay unseen, driver versions, MachineSets, and the licence metric."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import vgpu as gpu_vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.vgpu import VgpuNode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.vgpu_io import VGpu
from support.crd_schema import cluster_policy, faults
from support.fake_api import Api, Task, arguments
from support.paths import upstream

SPEC = specs.module("vgpu")

CANARY = "CANARY0815"
BODY = {
    "service_instance_configuration": {
        "svc_port_set_list": [{"svc_port_map": [{"service": "auth", "port": 443}, {"service": "lease", "port": 8443}]}],
        "node_url_list": [{"url": "dls.example.com", "svc_port_set_idx": 0}, {"url": "192.0.2.7"}],
    }
}
TOKEN = f"aGVhZA.{base64.urlsafe_b64encode(json.dumps(BODY).encode()).decode().rstrip('=')}.{CANARY}"
RHCOS = VgpuNode("n1", {}, "Red Hat Enterprise Linux CoreOS 418.94.202506121335-0", 1)
DRIVER = {
    "repository": "nvcr.io/nvidia/vgpu",
    "image": "vgpu-guest-driver-5",
    "version": "550.163.01",
    "host_version": "550.163.02",
    "pull_secrets": ["ngc-secret"],
}
OPERATORS = ["v23.9.1", "v25.10.1", "v26.3.3", "v26.7.0"]


def crd_file(version: str, kind: str = "clusterpolicies") -> Any:
    name = f"nvidia.com_{kind}{'_crd' if version == 'v23.9.1' and kind == 'clusterpolicies' else ''}.yaml"
    return upstream("crds", "gpu-operator", version, name)


# ---- licence -------------------------------------------------------------------------------------------------------


def test_gridd_conf_has_a_line_per_setting() -> None:
    assert gpu_vgpu.gridd({"feature_type": 1}) == "FeatureType=1\n"
    found = gpu_vgpu.gridd({"feature_type": 4, "proxy": "proxy.example.com", "proxy_port": 3128})
    assert found == "FeatureType=4\nProxyServerAddress=proxy.example.com\nProxyServerPort=3128\n"
    assert "ServerAddress=192.0.2.1\nServerPort=7070\n" in gpu_vgpu.gridd({"server": "192.0.2.1", "server_port": 7070})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_type": 3}, "feature type 3 is unknown; known: 0 (unlicensed), 1"),
        ({"proxy": "http://proxy:3128", "proxy_port": 3128}, "must be a host name or address without scheme"),
        ({"proxy": "proxy", "proxy_port": 0}, "proxy needs proxy_port"),
        ({"proxy_port": 3128}, "needs proxy"),
        ({"proxy": "proxy", "proxy_port": 99999}, "is not a port number"),
        ({"server": "a\nFeatureType=0"}, "must be a host name"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        gpu_vgpu.gridd(settings)
    assert words in str(refused.value)


def test_a_proxys_password_is_not_repeated() -> None:
    with pytest.raises(InputError) as refused:
        gpu_vgpu.gridd({"proxy": f"user:{CANARY}@proxy", "proxy_port": 1})
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("text", ["", None, CANARY, f"{CANARY}.x", f"a.b.{CANARY} x", f"{CANARY}\n.{CANARY}.c"])
def test_no_message_has_a_part_of_a_token(text: Any) -> None:
    with pytest.raises(InputError) as refused:
        gpu_vgpu.token(text)
    assert CANARY not in str(refused.value)


def test_a_token_names_its_servers() -> None:
    assert gpu_vgpu.token(f"  {TOKEN}\n") == TOKEN
    assert gpu_vgpu.servers(TOKEN) == ["dls.example.com:8443", "192.0.2.7:8443"]
    for text in ("a.b.c", "", "a", f"a.{base64.b64encode(b'[]').decode()}.c"):
        assert gpu_vgpu.servers(text) == []


@pytest.mark.parametrize("as_secret", [True, False])
def test_the_licence_has_both_keys_and_a_secret_is_not_shown(as_secret: bool) -> None:
    obj = gpu_vgpu.license_object("l", "ns", "FeatureType=1\n", TOKEN, as_secret)
    assert obj["kind"] == ("Secret" if as_secret else "ConfigMap")
    assert set(obj["data"]) == {"gridd.conf", "client_configuration_token.tok"}
    assert "metadata" in obj
    assert "metaData" not in obj
    if as_secret:
        assert base64.b64decode(obj["data"]["client_configuration_token.tok"]).decode() == TOKEN
        assert CANARY not in json.dumps(objects.visible(obj))


@pytest.mark.parametrize("version", OPERATORS)
def test_the_kind_follows_from_the_operators_definition(version: str) -> None:
    crd = yaml.load(crd_file(version).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert gpu_vgpu.knows_secret(crd) is (version != "v23.9.1")


def test_without_a_schema_the_operators_release_decides() -> None:
    bare = {"spec": {"versions": [{"name": "v1"}]}}
    assert [gpu_vgpu.knows_secret(bare, one) for one in ("v25.3.4", "v25.10.0", "26.7.0", "")] == [
        False,
        True,
        True,
        True,
    ]


# ---- driver --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "image", "ocp", "tag"),
    [
        ({}, "Red Hat Enterprise Linux CoreOS 418.94.202506121335-0", "", "rhcos4.18"),
        ({}, "Red Hat Enterprise Linux CoreOS 9.6.20251015-1", "4.20.6", "rhcos4.20"),
        ({"feature.node.kubernetes.io/system-os_release.OPENSHIFT_VERSION": "4.19"}, "x", "", "rhcos4.19"),
        (
            {
                "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
                "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04",
            },
            "Ubuntu 22.04",
            "4.18.1",
            "",
        ),
    ],
)
def test_the_nodes_system(labels: dict[str, str], image: str, ocp: str, tag: str) -> None:
    assert gpu_vgpu.os_tag(labels, image, ocp) == tag


def test_the_operator_adds_the_system_to_the_tag() -> None:
    for version in ("550.163.01", "550.163.01-rhcos4.18"):
        found = gpu_vgpu.driver({**DRIVER, "version": version}, [RHCOS])
        assert found.version == "550.163.01"
        assert found.tags == ("nvcr.io/nvidia/vgpu/vgpu-guest-driver-5:550.163.01-rhcos4.18",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "550.163.03"}, "guest driver 550.163.03 must not be newer than the host's (the host) 550.163.02"),
        ({"version": "535.183.01"}, "both must have the same branch"),
        ({"version": "550.163.01-rhcos4.17"}, "version is for rhcos4.17, but n1 run rhcos4.18"),
        ({"version": "17.6"}, "must be that of the guest driver"),
        ({"host_version": "17.6"}, "not a driver version"),
        ({"image": "vgpu/guest:1"}, "must be a name without path"),
        ({"repository": "https://nvcr.io"}, "must be a registry and its path"),
        ({"repository": ""}, "must be a registry and its path"),
    ],
)
def test_what_no_node_could_load_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        gpu_vgpu.driver({**DRIVER, **change}, [RHCOS])
    assert words in str(refused.value)


def test_nodes_that_tell_their_hosts_driver_are_believed() -> None:
    node = VgpuNode("n2", {gpu_vgpu.HOST_LABEL: "550.127.05"}, "", 1)
    with pytest.raises(InputError, match=r"newer than the host's \(n2\) 550\.127\.05"):
        gpu_vgpu.driver({**DRIVER, "host_version": ""}, [node])


def test_pull_secrets_must_be_there_and_be_one() -> None:
    found = gpu_vgpu.driver(DRIVER, [RHCOS])
    assert gpu_vgpu.pull_secret_faults(found, {"ngc-secret": "kubernetes.io/dockerconfigjson"}) == []
    assert "does not exist" in gpu_vgpu.pull_secret_faults(found, {"ngc-secret": None})[0]
    assert "of type Opaque" in gpu_vgpu.pull_secret_faults(found, {"ngc-secret": "Opaque"})[0]


@pytest.mark.parametrize("version", OPERATORS)
def test_the_policy_is_valid_for_each_operator(version: str) -> None:
    driver = gpu_vgpu.driver(DRIVER, [RHCOS])
    spec = gpu_vgpu.policy_spec(driver, "l", version != "v23.9.1")
    licensing = {key: value for key, value in spec["driver"]["licensingConfig"].items() if value is not None}
    obj = cluster_policy({"driver": {**spec["driver"], "licensingConfig": licensing}})
    assert faults(obj, crd_file(version)) == []
    if version != "v23.9.1":
        own = gpu_vgpu.nvidia_driver(driver, "gpuops-vgpu", "licences", True, {gpu_vgpu.VGPU_LABEL: "true"})
        assert own["spec"]["licensingConfig"]["secretName"] == "licences"
        assert faults(own, crd_file(version, "nvidiadrivers")) == []


def test_bystanders_are_nodes_that_would_get_the_driver_too() -> None:
    label = "nvidia.com/gpu.deploy.driver"
    nodes = [
        VgpuNode("a"),
        VgpuNode("b", {label: "false"}),
        VgpuNode("c", {label: "pre-installed"}),
        VgpuNode("d", {label: "true"}),
    ]
    assert gpu_vgpu.bystanders(nodes, ["a"]) == ["d"]


# ---- MachineSets ---------------------------------------------------------------------------------------------------

BASE = {
    "apiVersion": "machine.openshift.io/v1beta1",
    "kind": "MachineSet",
    "metadata": {
        "name": "worker",
        "namespace": "openshift-machine-api",
        "labels": {"machine.openshift.io/cluster-api-cluster": "c1"},
        "resourceVersion": "7",
    },
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"machine.openshift.io/cluster-api-machineset": "worker"}},
        "template": {
            "metadata": {"labels": {"machine.openshift.io/cluster-api-machineset": "worker"}},
            "spec": {
                "metadata": {"labels": {"zone": "a"}},
                "providerSpec": {"value": {"kind": gpu_vgpu.VSPHERE, "template": "rhcos", "numCPUs": 16}},
            },
        },
    },
    "status": {"replicas": 3},
}
PROFILES = [{"name": "q48", "template": "rhcos-48q", "replicas": 2}, {"name": "q8", "template": "rhcos-8q"}]


def test_each_profile_is_a_copy_with_its_template() -> None:
    gpu_vgpu.check_profiles(BASE, PROFILES)
    first, second = (gpu_vgpu.copied(BASE, one) for one in PROFILES)
    value = first["spec"]["template"]["spec"]["providerSpec"]["value"]
    assert value == {"kind": gpu_vgpu.VSPHERE, "template": "rhcos-48q", "numCPUs": 16}
    assert "template" not in {key for key in first["spec"]["template"]["spec"] if key != "providerSpec"}
    labels = first["spec"]["template"]["spec"]["metadata"]["labels"]
    assert labels == {"zone": "a", gpu_vgpu.VGPU_LABEL: "true", gpu_vgpu.PROFILE_LABEL: "q48"}
    assert first["spec"]["selector"]["matchLabels"] == first["spec"]["template"]["metadata"]["labels"]
    assert (first["spec"]["replicas"], second["spec"]["replicas"]) == (2, 0)
    assert "status" not in first
    assert "resourceVersion" not in first["metadata"]
    for one in (first, second):
        assert faults(one, upstream("crds", "openshift", "machinesets.yaml")) == []
    assert BASE["metadata"]["name"] == "worker"


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ([{"name": "a", "templates": "t"}], "profiles[0].templates is unknown; did you mean template?"),
        ([{"name": "a"}], "profiles[0].template is missing"),
        ([{"name": "A_1", "template": "t"}], "must be lower case"),
        ([{"name": "a", "template": "t"}, {"name": "b", "template": "t"}], "template t is used twice"),
        ([{"name": "a", "template": "t"}, {"name": "a", "template": "u"}], "name a is used twice"),
        ([{"name": "a", "template": "t", "replicas": -1}], "must be a whole number from 0"),
    ],
)
def test_wrong_profiles_are_refused_with_their_place(profiles: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        gpu_vgpu.check_profiles(BASE, profiles)
    assert words in str(refused.value)


def test_only_vsphere_has_vgpu_templates() -> None:
    other = json.loads(json.dumps(BASE))
    other["spec"]["template"]["spec"]["providerSpec"]["value"]["kind"] = "AWSMachineProviderConfig"
    with pytest.raises(InputError, match="must be VSphereMachineProviderSpec"):
        gpu_vgpu.check_profiles(other, PROFILES)


# ---- evidence ------------------------------------------------------------------------------------------------------


def text(*values: Any) -> str:
    """As dcgm-exporter writes it."""
    head = f"# HELP {gpu_vgpu.METRIC} vGPU License status\n# TYPE {gpu_vgpu.METRIC} gauge\n"
    lines = [
        f'{gpu_vgpu.METRIC}{{gpu="{n}",UUID="GPU-{n}",modelName="NVIDIA L40S-48Q",Hostname="vm"}} {value}\n'
        for n, value in enumerate(values)
    ]
    return head + "".join(lines) + 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 30\n'


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        (text(1), ""),
        (text(0), "vgpu.unlicensed"),
        (text(), "vgpu.no-sample"),
        ("", "vgpu.no-sample"),
        (text("x"), "vgpu.no-sample"),
        (text("NaN"), "vgpu.unlicensed"),
        (text(1, 1), "vgpu.gpus"),
    ],
)
def test_only_one_sample_of_one_passes(read: str, rule: str) -> None:
    found = gpu_vgpu.judge([RHCOS], {"n1": gpu_vgpu.samples(read)})
    assert [one.id for one in found] == ([rule] if rule else [])


def test_a_node_that_was_not_read_fails() -> None:
    found = gpu_vgpu.judge([RHCOS, VgpuNode("n2")], {"n1": gpu_vgpu.samples(text(1))})
    assert [(one.id, one.subject) for one in found] == [("vgpu.no-sample", "n2")]


def test_a_vgpu_node_offers_one_gpu_and_shares_nothing() -> None:
    assert gpu_vgpu.node_faults([RHCOS]) == []
    assert "offers 4" in gpu_vgpu.node_faults([VgpuNode("n", {}, "", 4)])[0]
    for label, value in (("nvidia.com/device-plugin.config", "time-slicing"), ("nvidia.com/mig.config", "all-1g.10gb")):
        assert (
            "can be neither shared nor partitioned" in gpu_vgpu.node_faults([VgpuNode("n", {label: value}, "", 1)])[0]
        )
    assert gpu_vgpu.node_faults([VgpuNode("n", {"nvidia.com/mig.config": "all-disabled"}, "", 1)]) == []
    assert [one.id for one in gpu_vgpu.allocatable([RHCOS, VgpuNode("n", {}, "", 0)])] == ["vgpu.allocatable"]


# ---- the action ----------------------------------------------------------------------------------------------------


def test_a_diff_of_the_licence_hides_a_config_map_too() -> None:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import writer
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import vgpu_io

    obj = objects.owned(gpu_vgpu.license_object("l", "ns", "FeatureType=1\n", TOKEN, False))
    hidden = vgpu_io._hidden(writer._change("update", "ConfigMap ns/l", obj, obj))
    assert hidden is not None
    assert CANARY not in json.dumps(hidden)
    assert set(hidden["diff"]["after"]["data"]) == {"gridd.conf", "client_configuration_token.tok"}


def test_the_policy_gets_back_what_it_said() -> None:
    """Names that were not there go, as a merge patch takes them away by null."""
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes

    before = {"enabled": False, "image": "driver", "licensingConfig": None}
    live = {"enabled": True, "image": "vgpu", "licensingConfig": {"secretName": "l"}}
    assert gpu_nodes.put_back(before, live) == before
    own = {"licensingConfig": {"configMapName": "mine"}}
    now = {"licensingConfig": {"secretName": "l", "nlsEnabled": True}}
    assert gpu_nodes.put_back(own, now) == {
        "licensingConfig": {"configMapName": "mine", "secretName": None, "nlsEnabled": None}
    }
    assert gpu_nodes.put_back({"labels": {}}, {"labels": {"release": "x"}}) == {"labels": {"release": None}}


def test_the_first_gpu_nodes_of_a_cluster_may_be_vgpu_nodes() -> None:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes

    operator = {"kind": "Deployment", "metadata": {"name": "gpu-operator", "namespace": "nvidia-gpu-operator"}}
    client: Any = Api(operator)
    assert gpu_nodes.operator_namespace(client, before_nodes=True) == "nvidia-gpu-operator"
    with pytest.raises(InputError, match="The GPU Operator is not installed, or its device plugin is disabled"):
        gpu_nodes.operator_namespace(client)


def test_machines_whose_gpus_are_in_use_do_not_go() -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    pod = {
        "kind": "Pod",
        "metadata": {"namespace": "a", "name": "b"},
        "spec": {"nodeName": "n", "containers": [{"resources": limits}]},
    }
    meta = {"name": "n", "labels": {gpu_vgpu.PROFILE_LABEL: "q8"}}
    node = {"kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
    api = Api(pod, node)
    use = VGpu(Task(api), arguments(SPEC, {"state": "absent", "profiles": [{"name": "q8", "template": "t"}]}))
    with pytest.raises(InputError, match="in use, on n by a/b"):
        use.apply(gpu_vgpu.Setup(as_secret=True, by_crd=False))
    assert api.writes == []
