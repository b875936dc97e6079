# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's charts as Helm renders them, against recordings of the real ones (fixtures/recordings/charts) and the
real definitions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_crds, crds
from gpuops_sandbox import build
from support import chart_repository
from support.paths import RECORDINGS, upstream

pytestmark = pytest.mark.cluster

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OPEN = {"x-kubernetes-preserve-unknown-fields": True}


def helm(*args: str) -> str:
    done = subprocess.run([build.folder() / "helm", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def template(chart: Path, *sets: str) -> str:
    given = [word for one in sets for word in ("--set", one)]
    place = ("--namespace", "operators", "--kube-version", "1.36", "--include-crds")
    return helm("template", "release", str(chart), *place, *given)


RECORDED = {
    "gpu-operator-v26.7.0": ("gpu-operator", "v26.7.0"),
    "gpu-operator-v23.9.1": ("gpu-operator", "v23.9.1"),
    "network-operator-26.4.1": ("network-operator", "26.4.1"),
    "network-operator-23.10.0-rc.5": ("network-operator", "23.10.0"),
}
STAGING = (
    "the recorded chart is of the release's branch, and names its staging registry; the profile and the stand-in name "
    "the released images"
)
DELIBERATE: dict[str, dict[str, str]] = {
    "gpu-operator-v26.7.0": {},
    "gpu-operator-v23.9.1": {},
    "network-operator-26.4.1": {},
    "network-operator-23.10.0-rc.5": {
        "lacks Pod release-dev-plugin-test": "only `helm test` makes it, which nothing here runs",
        "images Deployment release-network-operator": STAGING,
        "images Deployment release-sriov-network-operator": STAGING,
        "images Job network-operator-scale-down": STAGING,
        "images Job network-operator-upgrade-crd": STAGING,
    },
}
"""Differences from the real charts -> why. Besides: the Network Operator's stand-in of 2024 brings no NFD, as the GPU
Operator's has it in every profile, so that its variants with NFD are not compared, nor its definitions."""
LEFT_OUT = {"network-operator-23.10.0-rc.5": {"node-feature-discovery"}}
"""Chart -> sub-charts that the stand-in does not have."""


def recorded(name: str) -> dict[str, Any]:
    text = (RECORDINGS / "charts" / f"{name}.yml").read_text(encoding="utf-8")
    return dict(yaml.load(text, Loader))


def about(item: dict[str, Any]) -> dict[str, Any]:
    """An object of a rendered chart, as the recordings have it."""
    meta, spec = item["metadata"], item.get("spec") or {}
    found = {"apiVersion": item["apiVersion"], "namespace": meta.get("namespace")}
    found |= {key: value for key, value in (meta.get("annotations") or {}).items() if key.startswith("helm.sh/")}
    if "roleRef" in item:
        found["roleRef"] = f"{item['roleRef']['kind']}/{item['roleRef']['name']}"
    found["rules"] = item.get("rules")
    if "template" in spec:
        pod = spec["template"]["spec"]
        found["serviceAccount"] = pod.get("serviceAccountName")
        found["images"] = sorted({one["image"] for one in [*pod.get("initContainers", []), *pod["containers"]]})
    return {key: value for key, value in found.items() if value is not None}


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> set[str]:
    """``lacks KIND NAME``, ``more KIND NAME``, ``KEY KIND NAME``"""
    made = {f"{item['kind']} {item['metadata']['name']}": about(item) for item in ours}
    real = {f"{item['kind']} {item['name']}": item for item in theirs}
    found = {f"lacks {one}" for one in real.keys() - made.keys()} | {f"more {one}" for one in made.keys() - real.keys()}
    for one in made.keys() & real.keys():
        there = {key: value for key, value in real[one].items() if key not in ("kind", "name")}
        keys = made[one].keys() | there.keys()
        found |= {f"{key} {one}" for key in keys if made[one].get(key) != there.get(key)}
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_the_charts_make_what_the_real_ones_make(name: str, tmp_path: Path) -> None:
    """Kinds, names, hooks and their policies, rules of roles, images, service accounts: per variant of values."""
    real, found, chart = recorded(name), set[str](), chart_repository.directory(tmp_path, *RECORDED[name])
    for variant in real["rendered"].values():
        if name in LEFT_OUT and "nfd.enabled=false" not in variant["set"]:
            continue
        shown = template(chart, *variant["set"])
        objects = [item for item in yaml.load_all(shown, Loader) if item and item["kind"] != crds.KIND]
        found |= differences(objects, variant["objects"])
    assert found == DELIBERATE[name].keys()


@pytest.mark.parametrize("name", RECORDED)
def test_the_charts_have_the_real_definitions(name: str, tmp_path: Path) -> None:
    """With their versions, in the chart and in the sub-charts that values switch on."""
    real, chart = recorded(name), chart_repository.directory(tmp_path, *RECORDED[name])
    assert [one["name"] for one in real["dependencies"] if one["name"] not in LEFT_OUT.get(name, ())] == [
        one["name"] for one in yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))["dependencies"]
    ]
    found: dict[str, tuple[str, list[str]]] = {}
    for file in sorted(chart.rglob("crds/*.yaml")):
        part = file.relative_to(chart).parts[1] if file.relative_to(chart).parts[0] == "charts" else ""
        for item in yaml.load_all(file.read_text(encoding="utf-8"), Loader):
            versions = [one["name"] for one in item["spec"]["versions"]]
            found.setdefault(item["metadata"]["name"], (part, versions))
    wanted: dict[str, tuple[str, list[str]]] = {}
    for one in real["crds"]:
        parts = one["file"].split("/")
        part = parts[1] if parts[0] == "charts" else ""
        if part not in LEFT_OUT.get(name, ()):
            wanted.setdefault(one["name"], (part, one["versions"]))
    assert found == wanted


def test_values_switch_sub_charts_and_their_definitions() -> None:
    chart = chart_repository.CHARTS / "current/network-operator"
    off = {item["metadata"]["name"] for item in chart_crds.definitions(template(chart, "nfd.enabled=false"))}
    on = template(chart, "nfd.enabled=false", "sriovNetworkOperator.enabled=true")
    more = {item["metadata"]["name"] for item in chart_crds.definitions(on)} - off
    assert "sriovoperatorconfigs.sriovnetwork.openshift.io" in more
    assert not [name for name in more | off if "maintenance" in name]


REAL = {
    "current/gpu-operator/crds": "gpu-operator/v26.7.0",
    "guide-2024/gpu-operator/crds": "gpu-operator/v23.9.1",
    "current/network-operator/crds": "network-operator/v26.7.0-rc.2",
    "guide-2024/network-operator/crds": "network-operator/v23.10.x",
    "current/network-operator/charts/sriov-network-operator/crds": "network-operator/v26.7.0-rc.2",
    "current/network-operator/charts/maintenance-operator-chart/crds": "network-operator/v26.7.0-rc.2",
    "current/gpu-operator/charts/node-feature-discovery/crds": "network-operator/v26.4.1/sub",
    "current/network-operator/charts/node-feature-discovery/crds": "network-operator/v26.4.1/sub",
}


def reduced(like: dict[str, Any], real: dict[str, Any]) -> dict[str, Any]:
    """A real schema, as deep as the stand-in has it."""
    if like == OPEN:
        return OPEN
    inner = {name: reduced(one, real["properties"].get(name, {})) for name, one in like["properties"].items()}
    assert inner.keys() == real["properties"].keys() - {"apiVersion", "kind", "metadata"}
    return {"type": "object", "properties": inner}


@pytest.mark.parametrize("folder", REAL)
def test_definitions_are_the_real_ones_with_fewer_details(folder: str) -> None:
    """Names, scope, versions and the fields of spec; so that an upgrade changes them as it does in life."""
    compare(chart_repository.CHARTS / folder, REAL[folder])


def test_the_definitions_of_a_release_without_a_folder_are_the_real_ones(tmp_path: Path) -> None:
    """Else an upgrade from it has nothing to update."""
    names = compare(chart_repository.directory(tmp_path, "gpu-operator", "v26.3.3") / "crds", "gpu-operator/v26.3.3")
    assert names == {"clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com"}
    compare(chart_repository.directory(tmp_path, "network-operator", "26.4.2") / "crds", "network-operator/v26.4.1")


def compare(folder: Path, release: str) -> set[str]:
    """Compares the definitions in a folder of a stand-in with those of the real release; returns their names."""
    real: dict[str, dict[str, Any]] = {}
    for file in upstream("crds", *release.split("/")).glob("*.yaml"):
        for item in filter(None, yaml.load_all(file.read_text(encoding="utf-8"), Loader)):
            real[item["metadata"]["name"]] = item
    found = list(yaml.load_all((folder / "crds.yaml").read_text(encoding="utf-8"), Loader))
    for item in found:
        theirs, ours = real[item["metadata"]["name"]]["spec"], item["spec"]
        assert {key: ours[key] for key in ("group", "scope")} == {key: theirs[key] for key in ("group", "scope")}
        one, other = ({*(side["names"].get("shortNames") or ())} for side in (ours, theirs))  # 26.7 has one more
        assert one <= other
        assert {**ours["names"], "shortNames": None}.items() <= {**theirs["names"], "shortNames": None}.items()
        for one, other in zip(ours["versions"], theirs["versions"], strict=True):
            keys = ("name", "served", "storage", "subresources")
            assert {key: one.get(key) for key in keys} == {key: other.get(key) or None for key in keys}
            schema = one["schema"]["openAPIV3Schema"]
            if schema != {"type": "object", "properties": {"spec": OPEN}}:
                assert schema == reduced(schema, other["schema"]["openAPIV3Schema"])
    return {item["metadata"]["name"] for item in found}
