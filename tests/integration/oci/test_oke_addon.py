# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-ons of OKE against the fake: enabled, configured, waited for, refused; and what a plan says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import addon, oke_addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import compose_addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey
from support import oci_site, plan_samples
from support.fake_addons import Addons
from support.fake_oci import FakeOci


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake, self.addons, self.lines = fake, Addons(fake), []
        self.cluster = oci_site.cluster(fake)["id"]
        access = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.asked: dict[str, Any] = {"oci": {"cluster": self.cluster, **access}}
        self.survey = Survey()

    def reach(self) -> oke_addon.Addons:
        session = oci_session.Session(self.asked["oci"], oci.retry.NoneRetryStrategy())
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        return oke_addon.Addons(
            compose_addon.oke(plan_samples.options(**self.asked)), self.lines.append, session, **clocks
        )

    def release(self, stage: str = "gpu_operator", **asked: Any) -> Release:
        options = plan_samples.options(**{**self.asked, **asked})
        survey = replace(self.survey, addons=compose_addon.look(options, self.lines.append))
        return compose_addon.release(stage, options, survey, files.profile(options.profile), Tolerated())

    def run(self, stage: str = "gpu_operator", seconds: float = 900, **asked: Any) -> Release:
        release, reach = self.release(stage, **asked), self.reach()
        options = plan_samples.options(**{**self.asked, **asked})
        offer = compose_addon.look(options, self.lines.append)
        for want in release.addons:
            decision = addon.resolve(want, offer, self.survey.releases, self.survey.workloads)
            if decision.changing:
                reach.act(want.name, decision)
            reach.wait([want.name], seconds)
        return release


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_enabled_in_order_and_again(site: Site) -> None:
    planned = site.release()
    assert (planned.action, planned.name, planned.namespace) == ("enable", "NvidiaGpuOperator", "gpu-operator")
    assert planned.values["disableNvidiaGpuPlugin"] == "true" and planned.version == "v25.10.1"
    assert not site.addons.changes, "a plan changes nothing"
    site.run()
    site.run("network_operator")
    assert site.addons.changes == [
        f"enable {x}" for x in ("NodeFeatureDiscovery", "NvidiaGpuOperator", "NvidiaNetworkOperator")
    ]
    assert site.run().action == "none" and len(site.addons.changes) == 3
    found = site.addons.find(site.cluster, "NvidiaGpuOperator")
    assert found and {"key": "cdi.enabled", "value": "true"} in found["configurations"]


def test_what_oracles_stack_has_enabled_is_adopted(site: Site) -> None:
    """Its configuration stays, but for what ours asks otherwise; its version too."""
    site.addons.seconds = 0
    keys = {"disableNvidiaGpuPlugin": "true", "mig.strategy": "mixed", "dcgmExporter.enabled": "true"}
    pairs = [{"key": key, "value": value} for key, value in keys.items()]
    for name, version in (("NodeFeatureDiscovery", "v0.17.2"), ("NvidiaGpuOperator", "v25.3.4")):
        entry = {"name": name, "lifecycleState": "ACTIVE", "version": version, "currentInstalledVersion": version}
        entry.update({"configurations": pairs if "Gpu" in name else []})
        site.fake.addons.setdefault(site.cluster, []).append(entry)
    there = Workload("deployment", "gpu-operator", "gpu-operator", ("x/gpu-operator:v25.3.4",))
    site.survey = Survey(workloads=(there,))
    release = site.run()
    assert release.action == "configure" and "mig.strategy" in release.why and release.version == "v25.3.4"
    found = site.addons.find(site.cluster, "NvidiaGpuOperator")
    assert found and {"key": "dcgmExporter.enabled", "value": "true"} in found["configurations"]
    assert site.release().action == "none"


def test_a_killed_run_is_waited_for(site: Site) -> None:
    with pytest.raises(DeadlinePassed, match="NodeFeatureDiscovery is CREATING"):
        site.run(seconds=5)
    assert site.release().action in ("wait", "enable")
    site.run()
    assert site.addons.changes == ["enable NodeFeatureDiscovery", "enable NvidiaGpuOperator"]


@pytest.mark.parametrize("state", ["NEEDS_ATTENTION", "FAILED"])
def test_one_that_does_not_come_up_is_told_with_its_error(site: Site, state: str) -> None:
    site.addons.stuck["NvidiaGpuOperator"] = (state, "1 of 3 pods are ready")
    with pytest.raises(
        Unrecoverable, match=rf"NvidiaGpuOperator is {state}: AddonError 1 of 3 pods.*oci ce cluster-addon get"
    ):
        site.run()
    site.addons.stuck.clear()
    site.fake.addons[site.cluster][-1]["lifecycleState"] = "FAILED"
    site.run()
    assert site.addons.changes[-1] == "configure NvidiaGpuOperator"


def test_two_operators_are_refused(site: Site) -> None:
    site.survey = Survey(releases=(HelmRelease("gpu-operator", "gpu-operator", "gpu-operator"),))
    found = site.release()
    assert found.action == "refuse" and "would be a second one next to Helm release gpu-operator/gpu-op" in found.why


def test_somebody_elses_nfd_stays_the_only_one(site: Site) -> None:
    image = "registry.k8s.io/nfd/node-feature-discovery:v0.17"
    site.survey = Survey(workloads=(Workload("deployment", "nfd", "nfd-master", (image,)),))
    site.run()
    assert site.addons.changes == ["enable NvidiaGpuOperator"]
    found = site.addons.find(site.cluster, "NvidiaGpuOperator")
    assert found and {"key": "skipNodeFeatureDiscoveryDependencyCheck", "value": "true"} in found["configurations"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"oci": {}}, "needs the OCID of the cluster: set rdma_oci_cluster"),
        (
            {"oci": {"cluster": "ocid1.instance.oc1.x.y"}},
            "rdma_oci_cluster must be the OCID of a cluster, not of an instance",
        ),
        ({"oci": {"cluster": "x", "password": "y"}}, "unknown keys password; known: cluster, auth_type"),
        ({"charts": {"gpu_operator": "mine.tgz"}}, "has no chart: rdma_charts.gpu_operator may only have a version"),
        ({"image_registry": "mirror.example"}, "images from Oracle's registry. Leave out rdma_image_registry"),
        ({"profile": "guide-2024"}, "older than OKE's add-ons"),
    ],
)
def test_bad_input(site: Site, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        site.release(**asked)


def test_a_key_or_a_version_that_the_add_on_does_not_have(site: Site) -> None:
    found = site.release(gpu_operator_values="toolkit.enbled=true")
    assert found.action == "refuse" and "did you mean toolkit.enabled?" in found.why
    found = site.release(charts={"gpu_operator": {"version": "v24.1.0"}})
    assert found.action == "refuse" and "it has v25.3.4, v25.10.1" in found.why


def test_options_that_may_not_be_read_are_no_obstacle(site: Site) -> None:
    site.fake.fail("GET /20180222/addonOptions", 404, "NotAuthorizedOrNotFound", "Authorization failed.", times=9)
    assert site.release().action == "enable" and "are unknown" in site.lines[0]
