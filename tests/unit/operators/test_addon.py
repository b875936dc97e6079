# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-ons of OKE: configuration, two of a kind, and what is to be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease

WANT = Addon(
    name="NvidiaGpuOperator",
    version="v25.10.1",
    asked=False,
    configuration={"cdi.enabled": "true", "mig.strategy": "single"},
    own=(),
    namespace="gpu-operator",
    chart="gpu-operator",
    images=("gpu-operator",),
    optional=False,
)
OPTIONS = {"v25.3.4": ["cdi.enabled", "mig.strategy"], "v25.10.1": ["cdi.enabled", "mig.strategy", "toolkit.enabled"]}


def there(state: str = "ACTIVE", **more: Any) -> dict[str, Any]:
    base = {"name": "NvidiaGpuOperator", "state": state, "version": "v25.10.1", "installed": "v25.10.1", "error": ""}
    return {**base, "configuration": dict(WANT.configuration), **more}


def test_chart_values_become_texts() -> None:
    values = {"toolkit": {"enabled": False}, "devicePlugin": {"env": [{"name": "A"}], "empty": {}}, "n": 3, "no": None}
    found = addon.configuration({"n": "1", "keep": "x"}, values)
    assert found == {
        "n": "3",
        "keep": "x",
        "toolkit.enabled": "false",
        "devicePlugin.env": '[{"name": "A"}]',
        "devicePlugin.empty": "{}",
    }
    assert addon.equal('[{"a":1}]', '[{"a": 1}]') and not addon.equal(None, "x") and not addon.equal("single", "mixed")


@pytest.mark.parametrize(
    ("present", "action", "why"),
    [
        (None, "enable", "is not enabled"),
        (there("DELETED"), "enable", "is not enabled"),
        (there(), "none", "v25.10.1 with this configuration is enabled"),
        (there(configuration={"cdi.enabled": "true"}), "configure", "values differ: mig.strategy"),
        (there("FAILED", error="Boom"), "configure", "is FAILED: Boom; tried again"),
        (there("CREATING"), "wait", "from an earlier run"),
        (there("NEEDS_ATTENTION", error="pods"), "none", "is enabled"),
        (there("DELETING"), "refuse", "is being removed"),
        (there(version="v25.3.4", installed="v25.3.4"), "none", "v25.3.4 with this"),
        (there(version=""), "none", "is enabled"),
    ],
)
def test_decisions(present: Any, action: str, why: str) -> None:
    found = addon.decide(WANT, present, OPTIONS)
    assert found.action == action and why in found.why, found


def test_what_is_there_and_not_spoken_of_stays() -> None:
    found = addon.decide(WANT, there(configuration={"toolkit.enabled": "true", "cdi.enabled": "false"}), OPTIONS)
    assert found.changes == ("cdi.enabled", "mig.strategy")
    assert found.configuration == {"toolkit.enabled": "true", "cdi.enabled": "true", "mig.strategy": "single"}


def test_versions() -> None:
    older = replace(WANT, version="v24.1.0")
    assert addon.decide(older, None, OPTIONS).version == "v25.10.1", "the newest, where ours is not offered any more"
    asked = addon.decide(replace(older, asked=True), None, OPTIONS)
    assert asked.action == "refuse" and "it has v25.3.4, v25.10.1" in asked.why
    moved = addon.decide(replace(WANT, asked=True), there(version="v25.3.4"), OPTIONS)
    assert moved.action == "configure" and "v25.3.4 -> v25.10.1" in moved.why
    assert addon.decide(WANT, None, None).version == "v25.10.1", "what is not known is not refused"


def test_keys_that_the_add_on_does_not_take() -> None:
    ours = replace(WANT, configuration={**WANT.configuration, "driver.enabled": "false"})
    found = addon.decide(ours, None, OPTIONS)
    assert "driver.enabled" not in found.configuration and "does not accept driver.enabled" in found.warnings[0]
    typo = replace(WANT, configuration={"toolkit.enbled": "true"}, own=("toolkit.enbled",))
    refused = addon.decide(typo, None, OPTIONS)
    assert refused.action == "refuse" and "did you mean toolkit.enabled?" in refused.why


def deployment(namespace: str) -> Workload:
    return Workload("deployment", namespace, "gpu-operator", ("x/gpu-operator:v1",))


def helm(namespace: str) -> HelmRelease:
    return HelmRelease("mine", namespace, "gpu-operator")


@pytest.mark.parametrize(
    ("present", "releases", "workloads", "said"),
    [
        (None, [], [], ""),
        (None, [], [deployment("gpu-operator")], "would be a second one next to Deployment gpu-operator/gpu-operator"),
        (None, [helm("gpu-operator")], [], "next to Helm release gpu-operator/mine. Uninstall it first"),
        (there(), [], [deployment("gpu-operator")], ""),
        (there(), [helm("gpu-operator")], [deployment("gpu-operator")], ""),
        (there(), [helm("other")], [], "is enabled, but there is also Helm release other/mine. Remove it"),
        (
            there(),
            [],
            [deployment("gpu-operator"), deployment("olm")],
            "there is also Deployment olm/gpu-operator",
        ),
        (there("DELETED"), [helm("x")], [], "would be a second one"),
        (None, [HelmRelease("a", "b", "volcano")], [], ""),
    ],
)
def test_two_of_a_kind(present: Any, releases: Any, workloads: Any, said: str) -> None:
    found = addon.rival(WANT, present, releases, workloads)
    assert said in found and bool(said) == bool(found), found


def test_running() -> None:
    assert addon.judge("x", there())[0]
    assert addon.judge("x", None) == (False, "x is not there", False)
    assert addon.judge("x", there("FAILED", error="Boom")) == (False, "x is FAILED: Boom", True)
    assert addon.judge("x", there("NEEDS_ATTENTION", error="1 of 3"))[1:] == ("x is NEEDS_ATTENTION: 1 of 3", False)
