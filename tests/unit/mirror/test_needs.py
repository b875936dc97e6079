# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan needs: against recordings of the real operators, the real charts' values, and every mode."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NodeSystem, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import needs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Listing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import located, moved
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import blank, compose
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given
from support import plan_samples
from support.paths import RECORDINGS, upstream

TABLE = files.document("mirror.yml")
SYSTEM = NodeSystem("Ubuntu 22.04.5 LTS", "6.8.0-1028-oracle", "amd64")
REGISTRY = "mirror.example:5000/x"


def of(*objects: Any, systems: Any = (SYSTEM,), **plan: Any) -> Listing:
    return needs.listing(Plan(objects={"s": objects}, systems=tuple(systems), **plan), {}, {}, TABLE)


def recorded(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def walk(tree: Any) -> None:
        if isinstance(tree, dict) and {"kind", "metadata", "spec"} <= set(tree):
            found.append(tree)
        for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
            walk(value)

    walk(json.loads((RECORDINGS / "operators" / f"{name}.json").read_text("utf-8")))
    return found


@pytest.mark.parametrize("name", [path.stem for path in sorted((RECORDINGS / "operators").glob("*.json"))])
def test_the_real_operators_use_no_image_that_their_policy_does_not_give(name: str) -> None:
    """The driver's with the system behind it, as the real operator has made it."""
    objects = recorded(name)
    policies = [one for one in objects if one["kind"] in ("ClusterPolicy", "NicClusterPolicy")]
    made = [one for one in objects if one["kind"] == "DaemonSet" and one["metadata"].get("ownerReferences")]
    ran = {image for one in made for image in needs._of_pods(one) if image}
    assert policies and ran
    assert ran <= set(of(*policies).images), sorted(ran - set(of(*policies).images))


def triples(tree: Any, version: str, path: str = "") -> dict[str, str]:
    """Path of each part of a chart's values that names an image -> the image."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            if value.get("repository") and value.get("image"):
                found[f"{path}{key}"] = f"{value['repository']}/{value['image']}:{value.get('version') or version}"
            found.update(triples(value, version, f"{path}{key}."))
    return found


@pytest.mark.parametrize("version", ["v23.9.1", "v25.10.1", "v26.3.3", "v26.7.0"])
@pytest.mark.parametrize("driver", [True, False])
def test_every_image_of_the_real_charts_values_is_listed_or_switched_off(version: str, driver: bool) -> None:
    values = yaml.safe_load(upstream("values", "gpu-operator", f"{version}.yaml").read_text("utf-8"))
    spec = copy.deepcopy(values)
    spec["driver"]["enabled"] = driver
    every = triples(spec, version)
    for path in every:
        part = spec
        for key in path.split("."):
            part = part[key]
        part["version"] = part.get("version") or version
    found = of({"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": spec})
    left = {path for path, image in every.items() if not any(one.startswith(image) for one in found.images)}
    sandboxed = {"vgpuManager", "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin"}
    off = {path for path in every if any(spec.get(part, {}).get("enabled") is False for part in path.split("."))}
    allowed = off | sandboxed | {"ccManager", "kataManager", "vfioManager.driverManager", "vgpuManager.driverManager"}
    allowed |= set() if driver else {"driver", "driver.manager", "gds", "gdrcopy"}
    assert left <= allowed, left - allowed
    assert {"devicePlugin", "toolkit", "validator", "operator"} <= set(every) - left
    assert any("/driver:" in one and one.endswith("-ubuntu22.04") for one in found.images) is driver


@pytest.mark.parametrize(
    ("system", "gpu", "nic"),
    [
        ("Ubuntu 24.04.3 LTS", "ubuntu24.04", "ubuntu24.04"),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "rhel9.4", "rhel9.4"),
        ("Red Hat Enterprise Linux 10.0 (Coughlan)", "rhel10", "rhel10.0"),
        ("Red Hat Enterprise Linux CoreOS 418.94.202501221327-0", "rhcos4.18", "rhcos4.18"),
        ("Oracle Linux Server 8.10", "ol8", ""),
        ("Rocky Linux 9.5 (Blue Onyx)", "rocky9", ""),
        ("Talos (v1.9.0)", "", ""),
    ],
)
def test_systems_in_the_tags_of_drivers(system: str, gpu: str, nic: str) -> None:
    assert needs.os_tag(system, "ClusterPolicy", TABLE) == gpu
    assert needs.os_tag(system, "NicClusterPolicy", TABLE) == nic


def policy(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "p"}, "spec": spec}


def test_tags_that_the_operators_complete() -> None:
    driver = {"enabled": True, "repository": "r.io/n", "image": "driver", "version": "595"}
    ofed = {"repository": "r.io/m", "image": "doca-driver", "version": "26.07-1"}
    objects = policy("ClusterPolicy", driver=driver), policy("NicClusterPolicy", ofedDriver=ofed)
    other = NodeSystem("Ubuntu 24.04", "", "arm64")
    assert set(of(*objects, systems=(SYSTEM, other)).images) == {
        "r.io/n/driver:595-ubuntu22.04",
        "r.io/n/driver:595-ubuntu24.04",
        "r.io/m/doca-driver:26.07-1-ubuntu22.04-amd64",
        "r.io/m/doca-driver:26.07-1-ubuntu24.04-arm64",
    }
    precompiled = policy("ClusterPolicy", driver={**driver, "usePrecompiled": True})
    found = of(precompiled, systems=(SYSTEM, other))
    assert set(found.images) == {"r.io/n/driver:595-6.8.0-1028-oracle-ubuntu22.04"}
    assert "contains the kernel" in found.unknown[0].why
    assert [one.what for one in of(*objects, systems=()).unknown] == [
        "tag of r.io/n/driver:595",
        "tag of r.io/m/doca-driver:26.07-1",
    ]
    (strange,) = of(objects[0], systems=(NodeSystem("Talos (v1.9.0)"),)).unknown
    assert strange.what == "tag of r.io/n/driver:595 for Talos (v1.9.0)"
    digest = policy("ClusterPolicy", driver={**driver, "version": "sha256:" + "0" * 64})
    assert set(of(digest).images) == {"r.io/n/driver@sha256:" + "0" * 64}
    assert [one.what for one in of(policy("ClusterPolicy", gfd={**driver, "version": ""})).unknown] == [
        "version of r.io/n/driver"
    ]


def test_pods_of_any_kind_with_what_their_variables_and_arguments_name() -> None:
    container = {
        "name": "a",
        "image": "a/b:1",
        "env": [{"name": "SRIOV_CNI_IMAGE", "value": "c/d:2"}, {"name": "EMPTY_IMAGE", "value": ""}, {"name": "X"}],
        "args": ["--kubectl-delivery-image=e/f:3", "--image-count=4"],
    }
    job = {"kind": "Job", "metadata": {"name": "hook"}, "spec": {"template": {"spec": {"initContainers": [container]}}}}
    found = of(
        job, {"kind": "CustomResourceDefinition", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    )
    assert found.images == {f"docker.io/{one}": ["stage s: Job hook"] for one in ("a/b:1", "c/d:2", "e/f:3")}


CASES = list(itertools.product(("sriov", "shared", "host"), ("mpi", "volcano"), ("kubernetes", "oke")))


@pytest.mark.parametrize(("mode", "launcher", "platform"), CASES)
def test_with_a_registry_a_plan_asks_it_for_what_was_listed(mode: str, launcher: str, platform: str) -> None:
    """And for nothing else."""
    asked = {"mode": mode, "launcher": launcher, "platform": platform}

    def images(**more: Any) -> set[str]:
        plan = plan_samples.whole(plan_samples.cluster(), **asked, **more)
        return set(needs.listing(plan, {}, {}, TABLE).images)

    listed = images()
    assert any("nccl-tests" in one for one in listed) and any("python" in one for one in listed)
    assert {moved(one, REGISTRY) for one in listed} == images(image_registry=REGISTRY)
    assert all(moved(one, REGISTRY).startswith(REGISTRY) for one in listed)


@pytest.mark.parametrize("profile", files.profile_names())
@pytest.mark.parametrize("mode", ["sriov", "shared", "host"])
@pytest.mark.parametrize("platform", ["auto", "kubernetes"])
def test_a_plan_without_a_cluster_has_what_one_with_a_cluster_has(profile: str, mode: str, platform: str) -> None:
    asked = plan_samples.options(profile=profile, mode=mode, platform=platform, nodes=["n"], expected_nodes=4)
    data, shapes = files.profile(profile), plan_samples.SHAPES
    chosen = blank.options(asked, data, shapes)
    facts = blank.nodes(chosen, data, shapes)
    made = compose.compose(Given(chosen, blank.survey(chosen, data), facts, shapes, data, 0.0))
    if profile == "guide-2024" and mode == "shared":
        assert plan_samples.faults(made), "that release cannot, with a cluster either"
        return
    assert plan_samples.faults(made) == {} and len(made.nodes) >= 2
    assert all(release.action == "install" for release in made.releases.values())
    real = plan_samples.whole(plan_samples.cluster(), profile=profile, mode=mode)
    found, known = (set(needs.listing(one, {}, {}, TABLE).images) for one in (made, real))
    assert found == known
    assert {needs.os_tag(one.os_image, "ClusterPolicy", TABLE) for one in made.systems} - {""}


def test_operators_of_olm_and_drivers_name_what_is_not_known() -> None:
    blanked = plan_samples.options(platform="openshift")
    data = files.profile("current", "openshift")
    chosen = blank.options(blanked, data, plan_samples.SHAPES)
    facts = blank.nodes(chosen, data, plan_samples.SHAPES)
    plan = compose.compose(Given(chosen, blank.survey(chosen, data), facts, plan_samples.SHAPES, data, 0.0))
    unknown = {one.what: one.why for one in needs.listing(plan, {}, {}, TABLE).unknown}
    assert "oc-mirror" in unknown["images of the operator nfd, the default channel"]
    assert "rdma_driver_packages" in unknown["packages of the nodes' system, such as kernel headers"]


def test_what_cannot_be_rendered_is_named() -> None:
    plan = plan_samples.whole(plan_samples.cluster())
    found = needs.listing(plan, {"gpu_operator": "Cannot render"}, {"rdma_x_image": "r.io/a:1"}, TABLE)
    assert [(one.what, one.why) for one in found.unknown] == [("images of gpu-operator v26.7.2", "Cannot render")]
    assert found.images["r.io/a:1"] == ["playbooks that read rdma_x_image"]
    kinds = {need.ref: need.kind for need in found.needs}
    assert kinds["https://helm.ngc.nvidia.com/nvidia/network-operator:v26.7.1"] == "chart"
    assert "manifest" in kinds.values()


def test_known_digests_are_those_of_the_images_as_they_are_moved() -> None:
    ref, digest = next(iter(TABLE["digests"].items()))
    plan = dataclasses.replace(Plan(), image_registry=REGISTRY)
    found = needs.listing(plan, {}, {"x": moved(ref, REGISTRY), "y": ref}, TABLE)
    assert {need.ref: need.digest for need in found.needs} == {moved(ref, REGISTRY): f"sha256:{digest}", ref: ""}
    assert all(located(one) == one and len(value) == 64 for one, value in TABLE["digests"].items())
