# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles against the real charts' values, CRDs and webhook schemas (../shared/upstream).

The key files of files/profiles are made from the charts' values.yaml. After a new release:
``python tests/unit/operators/test_contract_values.py`` writes their ``keys`` and ``images``; ``also``, by hand, is
part of the keys.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values, nic_policy, shared_device
from support import crd_schema
from support.paths import RECORDINGS, ROOT, upstream

PROFILES = ROOT / "files" / "profiles"
NAMES = ("current", "previous", "guide-2024")
OPERATORS = {"gpu_operator": "gpu-operator", "network_operator": "network-operator"}
CRDS = ("v24.10.1", "v25.10.0", "v26.1.2", "v26.4.1", "v26.7.0-rc.2")
RELEASE = {"current": "v26.7.0-rc.2", "previous": "v26.4.1", "guide-2024": "v23.10.x"}

# Subcharts of which the umbrella chart's values.yaml shows a part only.
OPEN_CHARTS = ("node-feature-discovery", "maintenance-operator-chart")
# Mappings whose keys are the user's or Kubernetes' own.
OPEN_NAMES = {
    *("resources", "nodeSelector", "annotations", "labels", "affinity", "data", "featureGates"),
    *("configDaemonNodeSelector", "configDaemonNodeSelectorExtra"),
    *("startupProbe", "livenessProbe", "readinessProbe"),
}


def key_paths(values: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        open_one = isinstance(value, dict) and (not value or key in OPEN_NAMES or path in OPEN_CHARTS)
        if open_one:
            found.append(f"{path}.*")
        elif isinstance(value, dict):
            found += key_paths(value, f"{path}.")
        else:
            found.append(path)
    return sorted(found)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def load_values(path: Path) -> Any:
    """A chart's values.yaml; of a candidate as the release has it, which names other registries (releases.md)."""
    text = path.read_text(encoding="utf-8")
    if "-rc." not in path.name:
        return yaml.safe_load(text)
    found = yaml.safe_load(text.replace("nvcr.io/nvstaging/mellanox", "nvcr.io/nvidia/mellanox"))
    found["operator"]["repository"] = "nvcr.io/nvidia/cloud-native"
    return found


def key_files() -> list[Path]:
    return sorted(path for path in PROFILES.glob("keys-*.yml") if path.name != "keys-rules.yml")


def upstream_values(key_file: Path) -> Path:
    chart, _sep, version = key_file.name.removeprefix("keys-").removesuffix(".yml").partition("-v")
    return upstream("values", chart, f"v{version}.yaml")


def all_keys(path: Path) -> list[str]:
    return sorted({*load(path)["also"], *key_paths(load_values(upstream_values(path)))})


def all_images(path: Path) -> dict[str, str]:
    """Where the chart takes its images from, but for the staging registry, which the published charts do not name."""
    found: dict[str, str] = {}
    release = upstream_values(path).name.removesuffix(".yaml")

    def walk(tree: Any, prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            elif isinstance(value, str) and chart_values._LOCATION.fullmatch(value) and "nvstaging" not in value:
                found[f"{prefix}{key}"] = value.replace(f":network-operator-{release}", ":network-operator-{version}")

    walk(load_values(upstream_values(path)), "")
    return dict(sorted(found.items()))


def profile(name: str) -> dict[str, Any]:
    return copy.deepcopy(files.profile(name))


def defaults_of(name: str, operator: str) -> dict[str, Any]:
    return load_values(upstream_values(PROFILES / profile(name)[operator]["keys"]))


def rendered(name: str, operator: str, **more: Any) -> dict[str, Any]:
    return chart_values.values(profile(name), operator, **more).values


@pytest.mark.parametrize("path", key_files(), ids=lambda path: path.stem)
def test_key_files_hold_the_charts_own_keys(path: Path) -> None:
    assert load(path)["keys"] == all_keys(path)
    assert load(path)["images"] == all_images(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_mirror_reaches_every_image_that_the_values_name(name: str) -> None:
    document = profile(name)
    moved = chart_values.mirrored(document, "mirror.example:5000/x")
    for operator in OPERATORS:
        ours = chart_values.values(moved, operator).values
        parts = chart_values.merge(defaults_of(name, operator), ours)
        parts.pop("kataManager", None)  # artefacts of a part that is off
        merged = json.dumps(parts)
        assert not [host for host in ("nvcr.io/nvidia", "ghcr.io/", "quay.io/") if f'"{host}' in merged]
    assert moved["test_image"]["image"].startswith("mirror.example:5000/x/")
    assert moved["vf_config_image"] == "mirror.example:5000/x/library/python:3.12-slim"
    policy = json.dumps(nic_policy.nic_cluster_policy(moved, CONFIG))
    assert "nvcr.io" not in policy and policy.count("mirror.example:5000/x/nvidia/mellanox") in (0, 4)
    assert "nvcr.io" not in json.dumps(moved["network_operator"]["releases"])
    assert moved["gpu_operator"]["repo"] == document["gpu_operator"]["repo"], "charts are rdma_charts' business"
    assert chart_values.mirrored(document, "") is document


@pytest.mark.parametrize("version", ["25.10.0", "26.1.2", "26.4.1"])
def test_a_mirrors_tags_are_those_of_the_chart_that_is_installed(version: str) -> None:
    """Not of the profile's: a release on the way between majors has another version."""
    moved = chart_values.mirrored(profile("current"), "mirror.example/x")
    ours = chart_values.values(moved, "network_operator", version=version).values
    real = load(upstream("values", "network-operator", f"v{version}.yaml"))["sriov-network-operator"]["images"]
    set_by_us = ours["sriov-network-operator"]["images"]
    assert {key: set_by_us[key] for key in real} == {
        key: image.replace(image.partition("/")[0], "mirror.example/x", 1) for key, image in real.items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_key_that_we_set_is_a_key_of_the_chart(name: str, operator: str) -> None:
    document = profile(name)
    ours = document[operator]["values"]
    # Given as overrides, the profile's own values go through the same checks as a user's.
    assert chart_values.values(document, operator, ours).values == chart_values.merge(ours, {})


@pytest.mark.parametrize("name", NAMES)
def test_no_staging_image_would_run(name: str) -> None:
    """v23.10.x's own data name nvstaging; what is switched on must not."""
    document = profile(name)
    assert "nvstaging" not in json.dumps(document["network_operator"]) + json.dumps(document["cni"])
    merged = chart_values.merge(defaults_of(name, "network_operator"), rendered(name, "network_operator"))
    running = {key: part for key, part in merged.items() if not isinstance(part, dict) or part.get("deploy", True)}
    if not merged["sriovNetworkOperator"]["enabled"]:
        running.pop("sriov-network-operator")
    running.pop("ofedDriver", None)
    assert "nvstaging" not in json.dumps(running)
    assert "ofedDriver" not in merged or merged["ofedDriver"]["deploy"] is False


UPSTREAM_NAMES = {
    "sriov_device_plugin": "SriovDevicePlugin",
    "nv_ipam": "nvIpam",
    "cni_plugins": "CniPlugins",
    "multus": "Multus",
    "ofed_driver": "Mofed",
    "rdma_shared_device_plugin": "RdmaSharedDevicePlugin",
}


@pytest.mark.parametrize("version", ["v24.10.1", "v25.10.0", "v26.1.2", "v26.4.1"])
def test_images_of_the_policy_are_those_of_the_release(version: str) -> None:
    released = load(upstream("values", "network-operator", f"{version}.release.yaml"))
    table = profile("current")["network_operator"]["releases"][version]
    expected = {name: released[key] for name, key in UPSTREAM_NAMES.items()}
    assert table == {name: f"{one['repository']}/{one['image']}:{one['version']}" for name, one in expected.items()}


@pytest.mark.parametrize("version", CRDS)
def test_the_policy_fits_the_definition_of_each_release(version: str) -> None:
    document = profile("current")
    more = {"ofedDriver": document["network_operator"]["ofed_driver"]}
    images = nic_policy.policy_images(document, images_of(version), nic_policy.policy_spec(document, more=more), {})
    policy = nic_policy.nic_cluster_policy(document, CONFIG, images=images, more=more)
    assert policy is not None
    crd = upstream("crds", "network-operator", version, "mellanox.com_nicclusterpolicies.yaml")
    assert crd_schema.faults(policy, crd) == []


def images_of(version: str) -> str:
    """The release of a candidate, whose images are of the staging registry."""
    return version.partition("-rc.")[0]


def test_the_releases_of_the_profiles_are_listed() -> None:
    for name in NAMES:
        document = profile(name)
        assert document["gpu_operator"]["version"] in document["gpu_operator"]["releases"]
    current = profile("current")["network_operator"]
    assert set(current["releases"][current["version"]]) == set(UPSTREAM_NAMES) == set(nic_policy.COMPONENTS)


def test_cni_images_of_the_guide_are_those_of_releases() -> None:
    cni = profile("guide-2024")["cni"]
    folder = upstream("values", "network-operator")
    sriov = load(folder / "v23.10.x.release.yaml")["SriovCni"]
    rdma = load(folder / "v24.10.1.release.yaml")["rdmaCni"]
    assert cni["sriov_image"] == f"{sriov['repository']}/{sriov['image']}:{sriov['version']}"
    assert cni["rdma_image"] == f"{rdma['repository']}/{rdma['image']}:{rdma['version']}"


CONFIG = {
    "resourceList": [
        {
            "resourcePrefix": "nvidia.com",
            "resourceName": "sriov_rdma_vf",
            "selectors": {
                "vendors": ["15b3"],
                "devices": ["101e"],
                "drivers": ["mlx5_core"],
                "rootDevices": ["0000:0c:00.0"],
                "isRdma": True,
            },
        }
    ]
}


def validate(value: Any, schema: dict[str, Any]) -> None:
    import jsonschema

    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize("multus", [True, False])
def test_policy_fits_the_real_crd(multus: bool) -> None:
    policy = nic_policy.nic_cluster_policy(
        profile("current"),
        CONFIG,
        multus=multus,
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        node_affinity={
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        },
    )
    assert policy is not None
    crd = upstream("crds", "network-operator", RELEASE["current"], "mellanox.com_nicclusterpolicies.yaml")
    assert crd_schema.faults(policy, crd) == []
    assert policy["metadata"]["name"] == "nic-cluster-policy"
    assert ("secondaryNetwork" in policy["spec"]) is multus
    policy["spec"]["nvIpam"]["enableWebhok"] = False
    assert "enableWebhok" in crd_schema.faults(policy, crd)[0]


def test_the_ofed_driver_of_the_profile_fits_the_definition() -> None:
    driver = profile("current")["network_operator"]["ofed_driver"]
    policy = nic_policy.nic_cluster_policy(profile("current"), CONFIG, more={"ofedDriver": driver})
    assert policy is not None
    crd = upstream("crds", "network-operator", RELEASE["current"], "mellanox.com_nicclusterpolicies.yaml")
    assert crd_schema.faults(policy, crd) == []
    assert policy["spec"]["ofedDriver"]["image"] == "doca-driver"
    policy["spec"]["ofedDriver"]["startUpProbe"] = {}
    assert "startUpProbe" in crd_schema.faults(policy, crd)[0]


@pytest.mark.parametrize("release", RELEASE.values())
def test_device_plugin_configuration_fits_the_webhooks_schemas(release: str) -> None:
    policy = nic_policy.nic_cluster_policy(profile("current"), CONFIG)
    assert policy is not None
    config = json.loads(policy["spec"]["sriovDevicePlugin"]["config"])
    folder = upstream("schemas", "network-operator", release)
    validate(config, load(folder / "sriov_network_device_plugin.json"))
    for resource in config["resourceList"]:
        validate(resource, load(folder / "net_device.json"))


@pytest.mark.parametrize("release", CRDS)
def test_the_shared_device_fits_schema_and_definition(release: str) -> None:
    config = shared_device.config([shape_table.shapes()["BM.GPU.H100.8"]], "rdma/rdma_shared_device_a")
    document = profile("current")
    images = nic_policy.policy_images(document, images_of(release), nic_policy.policy_spec(document, shared=True), {})
    policy = nic_policy.nic_cluster_policy(document, config, shared=True, images=images)
    assert policy is not None and set(policy["spec"]) == {"rdmaSharedDevicePlugin"}
    found = json.loads(policy["spec"]["rdmaSharedDevicePlugin"]["config"])
    validate(found, load(upstream("schemas", "network-operator", release) / "rdma_shared_device_plugin.json"))
    crd = upstream("crds", "network-operator", release, "mellanox.com_nicclusterpolicies.yaml")
    assert crd_schema.faults(policy, crd) == []


def test_guide_leaves_the_policy_to_its_chart() -> None:
    assert nic_policy.nic_cluster_policy(profile("guide-2024"), CONFIG) is None
    assert rendered("guide-2024", "network_operator")["deployCR"] is True


@pytest.mark.parametrize(
    ("name", "release"), [("current", "v26.7.0"), ("previous", "v26.3.3"), ("guide-2024", "v23.9.1")]
)
def test_gpu_operator_values_fit_the_cluster_policy(name: str, release: str) -> None:
    """The chart copies its sections into ClusterPolicy by name; with our values over its defaults they must fit."""
    ours = rendered(name, "gpu_operator")
    merged = chart_values.merge(defaults_of(name, "gpu_operator"), ours)
    crd = next(upstream("crds", "gpu-operator", release).glob("nvidia.com_clusterpolicies*"))
    spec = {section: {key: merged[section][key] for key in part} for section, part in ours.items()}
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "x"}, "spec": spec}
    found = [fault for fault in crd_schema.faults(policy, crd) if "is a required property" not in fault]
    assert found == []


def recorded(name: str) -> list[Any]:
    files = {
        "current": ("gpu-operator-v26.7.0_default.json", "network-operator-v26.4.1_sriov.json"),
        "guide-2024": ("gpu-operator-v23.9.1_guide.json", "network-operator-v23.10.x_guide.json"),
    }[name if name == "guide-2024" else "current"]
    folder = RECORDINGS / "operators"
    return [item for file in files for item in json.loads((folder / file).read_text())]


@pytest.mark.parametrize("name", NAMES)
def test_namespaces_are_those_of_the_recordings(name: str) -> None:
    spaces = {item["metadata"].get("namespace", "") for item in recorded(name)}
    assert set(profile(name)["namespaces"].values()) <= spaces


def test_the_guides_device_plugin_is_found_by_its_label() -> None:
    label, value = profile("guide-2024")["network_operator"]["plugin_restart"].split("=")
    daemonsets = [item for item in recorded("guide-2024") if item["kind"] == "DaemonSet"]
    found = [item for item in daemonsets if item["spec"]["template"]["metadata"]["labels"].get(label) == value]
    assert [item["metadata"]["name"] for item in found] == ["sriov-device-plugin"]


def write_key_files() -> None:
    for path in key_files():
        text = path.read_text(encoding="utf-8").split("\nkeys:")[0]
        listed = "".join(f"  - {item}\n" for item in all_keys(path))
        images = "".join(f"  {key}: {value}\n" for key, value in all_images(path).items())
        path.write_text(f"{text}\nkeys:\n{listed}images:\n{images}", encoding="utf-8")


if __name__ == "__main__":
    write_key_files()
