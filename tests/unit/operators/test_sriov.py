# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the sriov stage, against the real CRDs and webhook schemas and against the program that they run."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov
from gpuops_sandbox.context import load_shapes
from gpuops_sandbox.vfhost import PROGRAM, program
from hypothesis import given
from hypothesis import strategies as st
from support import crd_schema
from support.paths import RECORDINGS, upstream

ALL = load_shapes()
SHAPES = {name: shape for name, shape in ALL.items() if shape.status == "supported"}
NAMES = sorted(SHAPES)
VF = "nvidia.com/sriov_rdma_vf"
SETS = [(name,) for name in NAMES] + list(itertools.combinations(NAMES, 2)) + [tuple(NAMES)]


def some(*names: str) -> list[Shape]:
    return [SHAPES[name] for name in names]


def objects(*names: str, **options: Any) -> dict[str, dict[str, Any]]:
    made = sriov.vf_config_objects(
        some(*names), "own", "netop", image="python:3", options=options, program_text=PROGRAM.read_text()
    )
    return {f"{obj['kind']}/{obj['metadata'].get('namespace', '')}": obj for obj in made}


def pod_spec(daemonset: dict[str, Any]) -> dict[str, Any]:
    return daemonset["spec"]["template"]["spec"]


def test_rights_are_those_that_the_program_uses() -> None:
    found = objects("BM.GPU.H100.8")
    rules = {where: found[f"Role/{where}"]["rules"] for where in ("own", "netop")}
    assert rules == {
        "own": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}],
        "netop": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]}],
    }
    account = found["ServiceAccount/own"]["metadata"]
    for where in ("own", "netop"):
        binding = found[f"RoleBinding/{where}"]
        assert binding["roleRef"]["name"] == found[f"Role/{where}"]["metadata"]["name"]
        assert [(s["name"], s["namespace"]) for s in binding["subjects"]] == [(account["name"], account["namespace"])]
    assert pod_spec(found["DaemonSet/own"])["serviceAccountName"] == account["name"]


def test_the_namespace_lets_privileged_pods_in_and_comes_first() -> None:
    made = list(objects("BM.GPU.H100.8").values())
    assert made[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert [made[0]["kind"], made[-1]["kind"]] == ["Namespace", "DaemonSet"]
    assert all(obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuops-rdma" for obj in made)


def test_paths_names_and_options_are_those_of_the_program() -> None:
    vf_config = program()
    found = objects("BM.GPU.H100.8", set_netns=True)
    spec = pod_spec(found["DaemonSet/own"])
    container = spec["containers"][0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["program"] == str(vf_config.CONFIG.parent) and vf_config.CONFIG.name in found["ConfigMap/own"]["data"]
    podinfo = next(volume for volume in spec["volumes"] if volume["name"] == "podinfo")["downwardAPI"]["items"]
    assert f"{mounts['podinfo']}/{podinfo[0]['path']}" == str(vf_config.POD_ANNOTATIONS)
    assert container["command"] == ["python3", f"{mounts['program']}/vf_config.py"]
    assert container["readinessProbe"]["exec"]["command"] == [*container["command"], "--ready"]
    config = json.loads(found["ConfigMap/own"]["data"]["config.json"])
    assert set(config["options"]) == set(vf_config.DEFAULTS) - {"shape"}
    assert {**vf_config.DEFAULTS, **sriov.PROGRAM_OPTIONS} == vf_config.DEFAULTS
    assert config["options"]["set_netns"] is True and config["options"]["network_operator_namespace"] == "netop"
    assert config["shapes"] == sriov.vf_table(some("BM.GPU.H100.8"))


def test_one_shape_is_told_to_the_program_several_are_not() -> None:
    def shape_env(*names: str) -> list[str]:
        env = pod_spec(objects(*names)["DaemonSet/own"])["containers"][0]["env"]
        return [entry["value"] for entry in env if entry["name"] == "NODE_SHAPE"]

    assert shape_env("BM.GPU.H100.8") == ["BM.GPU.H100.8"]
    assert shape_env("BM.GPU.H100.8", "BM.GPU.H200.8") == []


def test_pods_stand_on_the_shapes_nodes_despite_their_taints() -> None:
    spec = pod_spec(
        objects("BM.GPU4.8", "BM.GPU.H100.8", tolerations=[{"key": "team", "operator": "Exists"}])["DaemonSet/own"]
    )
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {
                    "key": "node.kubernetes.io/instance-type",
                    "operator": "In",
                    "values": ["BM.GPU.H100.8", "BM.GPU4.8"],
                }
            ]
        }
    ]
    assert [entry["key"] for entry in spec["tolerations"]] == ["nvidia.com/gpu", "amd.com/gpu", "team"]


def test_pods_roll_when_program_table_or_options_change() -> None:
    def digest(*names: str, **options: Any) -> str:
        template = objects(*names, **options)["DaemonSet/own"]["spec"]["template"]
        return template["metadata"]["annotations"]["gpuops.rdma/config-hash"]

    first = digest("BM.GPU.H100.8")
    assert first == digest("BM.GPU.H100.8")
    assert len({first, digest("BM.GPU.H200.8"), digest("BM.GPU.H100.8", set_netns=True)}) == 3


def test_unknown_option_and_refused_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown option set_netnz; known are .*set_netns"):
        objects("BM.GPU.H100.8", set_netnz=True)
    refused = next(shape for shape in ALL.values() if shape.status == "refused")
    with pytest.raises(InputError, match=refused.name):
        sriov.vf_table([refused])
    with pytest.raises(InputError, match="no shape"):
        sriov.device_plugin_config([], VF)


# The device plugin's configuration.


def selectors_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    found = config["resourceList"][0]["selectors"]
    return found if isinstance(found, list) else [found]


def takes(selector: dict[str, Any], vf_id: str, pf: str) -> bool:
    """What the device plugin does with a VF of this id whose PF has this address."""
    vendor, _, device = vf_id.partition(":")
    root = selector.get("rootDevices")
    return vendor in selector["vendors"] and device in selector["devices"] and (root is None or pf in root)


@pytest.mark.parametrize("release", ["v23.10.x", "v24.10.1", "v25.10.0", "v26.1.2", "v26.4.1"])
def test_device_plugin_config_passes_the_webhook_schemas(release: str) -> None:
    folder = ("schemas", "network-operator", release)
    outer, inner = (
        jsonschema.validators.validator_for(schema)(schema)
        for name in ("sriov_network_device_plugin.json", "net_device.json")
        if (schema := json.loads(upstream(*folder, name).read_text()))
    )
    outer.check_schema(outer.schema)
    inner.check_schema(inner.schema)
    for names in SETS:
        config = sriov.device_plugin_config(some(*names), VF)
        outer.validate(config)
        for entry in config["resourceList"]:
            inner.validate({"selectors": entry["selectors"]})
            assert set(entry) <= {"resourceName", "resourcePrefix", "selectors"}
        assert "'" not in json.dumps(config), "the operator's ConfigMap template wraps it in single quotes"


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_every_rdma_vf_is_taken_and_no_vf_of_a_management_nic(names: tuple[str, ...]) -> None:
    selectors = selectors_of(sriov.device_plugin_config(some(*names), VF))
    chart = sriov.chart_resources(some(*names), VF)
    for shape in some(*names):
        for pf in shape.pfs:
            assert sum(takes(selector, shape.vf_id, pf.pci) for selector in selectors) == 1
            assert takes(chart[0], shape.vf_id, pf.pci)
        for nic in shape.vcn:
            assert not any(takes(selector, nic.vf_id, nic.pci) for selector in [*selectors, *chart])


def test_addresses_only_where_the_id_is_not_enough() -> None:
    def by_address(*names: str) -> list[bool]:
        return ["rootDevices" in selector for selector in selectors_of(sriov.device_plugin_config(some(*names), VF))]

    assert by_address("BM.GPU.A100-v2.8") == [False]
    assert by_address("BM.GPU4.8") == [True]
    assert by_address("BM.GPU.H100.8") == [True]
    assert by_address("BM.GPU.A100-v2.8", "BM.GPU4.8") == [True], "one configuration reaches both shapes' nodes"
    assert all(by_address(name) == [True] for name in NAMES if SHAPES[name].vcn_shares_vf_id)


def test_a_management_nic_where_another_shape_has_an_rdma_port_is_refused() -> None:
    h100 = SHAPES["BM.GPU.H100.8"]
    rival = replace(h100, name="BM.RIVAL", vcn=(replace(h100.vcn[0], pci=h100.pfs[3].pci, vf_id=h100.vf_id),))
    with pytest.raises(InputError, match=f"{h100.pfs[3].pci} of BM.RIVAL"):
        sriov.device_plugin_config([h100, rival], VF)


@pytest.mark.parametrize("name", ["nvidia.com/rdma-vf", "sriov_rdma_vf", "nvidia.com/", "nvidia.com/vf_"])
def test_resource_names_that_a_webhook_refuses(name: str) -> None:
    with pytest.raises(InputError, match="VF resource"):
        sriov.device_plugin_config(some("BM.GPU.H100.8"), name)


def test_old_chart_has_its_prefix_built_in() -> None:
    with pytest.raises(InputError, match=r"only offer nvidia\.com"):
        sriov.chart_resources(some("BM.GPU.H100.8"), "openshift.io/rdma")


# Network attachment, pool, annotation.


def test_network_attachment() -> None:
    nad = sriov.network_attachment("rdma-vf", "jobs", VF, "gpuops-rdma", 4220)
    for release in ("v26.4.1", "v23.10.x"):
        crd = upstream("crds", "network-operator", release, "k8s.cni.cncf.io_networkattachmentdefinitions_crd.yaml")
        assert crd_schema.faults(nad, crd) == []
        assert crd_schema.faults({**nad, "spec": {**nad["spec"], "conf": ""}}, crd) != []
    assert nad["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": VF}
    config = json.loads(nad["spec"]["config"])
    assert [plugin["type"] for plugin in config["plugins"]] == ["sriov", "tuning", "rdma", "sbr"]
    assert config["plugins"][0]["ipam"] == {"type": "nv-ipam", "poolName": "gpuops-rdma"}
    assert config["plugins"][1]["mtu"] == 4220
    assert config["plugins"][1]["sysctl"]["net.ipv4.conf.all.rp_filter"] == "0"
    plain = json.loads(sriov.network_attachment("n", "j", VF, "p", None, pool_type="cidrpool")["spec"]["config"])
    assert "mtu" not in plain["plugins"][1] and plain["plugins"][0]["ipam"]["poolType"] == "cidrpool"


def test_ip_pool_is_one_that_the_crd_takes() -> None:
    pool = sriov.ip_pool("gpuops-rdma", "netop", "192.168.0.0/16", 100, 16, shapes=some("BM.GPU.H100.8"))
    crd = upstream("crds", "nv-ipam", "005-nv-ipam.nvidia.com_ippools.yaml")
    assert crd_schema.faults(pool, crd) == []
    assert crd_schema.faults({**pool, "spec": {**pool["spec"], "blockSize": 1}}, crd) != []
    assert pool["spec"]["perNodeBlockSize"] == 32 and pool["spec"]["gateway"] == "192.168.0.1"
    assert "nodeSelector" not in sriov.ip_pool("p", "n", "192.168.0.0/16", 1, 16)["spec"]


@given(
    nodes=st.integers(1, 6000), vfs=st.integers(1, 16), prefix=st.integers(12, 30), extra=st.none() | st.integers(1, 64)
)
def test_ip_pool_has_a_block_for_each_node_or_names_a_size_that_has(
    nodes: int, vfs: int, prefix: int, extra: int | None
) -> None:
    block = None if extra is None else vfs + extra

    def spec(subnet: str) -> dict[str, Any]:
        return sriov.ip_pool("p", "n", subnet, nodes, vfs, block=block)["spec"]

    try:
        made = spec(f"10.0.0.0/{prefix}")
    except InputError as error:
        would_do = int(str(error).partition("A /")[2].split(" ")[0])
        assert would_do < prefix and str(nodes) in str(error)
        spec(f"10.0.0.0/{would_do}")
        with pytest.raises(InputError):
            spec(f"10.0.0.0/{would_do + 1}")
    else:
        assert made["perNodeBlockSize"] >= vfs + 1, "the gateway is taken out of the first block"
        assert made["perNodeBlockSize"] * nodes <= 2 ** (32 - prefix) - 2


def test_ip_pool_that_is_too_small_says_what_would_do() -> None:
    with pytest.raises(InputError) as caught:
        sriov.ip_pool("gpuops-rdma", "netop", "192.168.0.0/24", 8, 16)
    assert "room for 7 nodes with 32 addresses each, 8 nodes need 256" in str(caught.value)
    assert "A /23 would do, for example 192.168.0.0/23" in str(caught.value)
    with pytest.raises(InputError, match=r"A /14 would do, for example 172\.16\.0\.0/14"):
        sriov.ip_pool("gpuops-rdma", "netop", "192.168.0.0/16", 5000, 16)
    with pytest.raises(InputError, match="16 addresses per node for 16 VFs and the gateway"):
        sriov.ip_pool("gpuops-rdma", "netop", "192.168.0.0/16", 5, 16, block=16)
    with pytest.raises(InputError, match="has host bits set"):
        sriov.ip_pool("gpuops-rdma", "netop", "192.168.0.1/16", 5, 16)


@given(name=st.sampled_from(NAMES))
def test_the_program_makes_as_many_vfs_as_the_shape_has(name: str) -> None:
    table = sriov.vf_table([SHAPES[name]])[name]
    assert SHAPES[name].vf_count == len(table["pfs"]) * table["vfs"]


def test_cni_daemonset_leaves_the_copying_to_the_images() -> None:
    daemonset = sriov.cni_daemonset("own", some("BM.GPU.H100.8"), "sriov:1", "rdma:1", bin_dir="/var/lib/cni/bin")
    spec = pod_spec(daemonset)
    assert [(c["name"], c["image"], "command" in c) for c in spec["containers"]] == [
        ("sriov", "sriov:1", False),
        ("rdma", "rdma:1", False),
    ]
    assert {c["volumeMounts"][0]["mountPath"] for c in spec["containers"]} == {"/host/opt/cni/bin"}
    assert spec["volumes"][0]["hostPath"]["path"] == "/var/lib/cni/bin"
    assert (
        daemonset["spec"]["selector"]["matchLabels"].items()
        <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    )


def test_device_plugin_pods_are_found_by_the_labels_of_both_generations() -> None:
    wanted = sriov.PROGRAM_OPTIONS["plugin_selector"].partition("(")[2].rstrip(")").split(",")
    for name in ("network-operator-v23.10.x_guide.json", "network-operator-v26.4.1_sriov.json"):
        found = {
            obj["metadata"]["name"]: obj["spec"]["template"]["metadata"]["labels"].get("app") in wanted
            for obj in json.loads((RECORDINGS / "operators" / name).read_text())
            if obj["kind"] == "DaemonSet"
        }
        assert [ds for ds, hit in found.items() if hit] == [ds for ds in found if ds.endswith("sriov-device-plugin")]
