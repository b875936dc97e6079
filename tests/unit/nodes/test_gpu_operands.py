# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a DaemonSet or pod of the GPU Operator carries of the policy's shared settings."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands

OPERANDS = {one["part"]: one for one in files.load(files.FILES / "operands.yml")["gpu_operator"]}
PLUGIN = OPERANDS["device-plugin"]


def policy(config: str = "", default: str = "", strategy: str = "", **plugin: Any) -> Any:
    found = {"config": {"name": config, "default": default}} if config else {}
    return {"devicePlugin": {**found, **plugin}, **({"mig": {"strategy": strategy}} if strategy else {})}


def made(spec: Any) -> Any:
    """As the operator makes its pods of ``spec``."""
    config, strategy = spec["devicePlugin"].get("config"), spec.get("mig", {}).get("strategy")
    env = [{"name": "MIG_STRATEGY", "value": strategy}] if strategy else []
    env += [{"name": "DEFAULT_CONFIG", "value": config["default"]}] if config else []
    volumes: list[Any] = [{"name": "api", "projected": {"sources": []}}]
    volumes += [{"name": config["name"], "configMap": {"name": config["name"]}}] if config else []
    return rollout.template({"containers": [{"name": "c", "image": "i", "env": env}], "volumes": volumes})


STATES = {
    "nothing": policy(),
    "ours": policy("ours"),
    "ours with a default": policy("ours", "slices"),
    "of others": policy("theirs"),
    "single": policy(strategy="single"),
    "mixed": policy("ours", "slices", "mixed"),
}


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("now", STATES)
def test_pods_are_of_the_policy_whose_settings_they_carry(before: str, now: str) -> None:
    lacks = gpu_operands.settings(PLUGIN, STATES[now], made(STATES[before]))
    assert (lacks == "") == (before == now), lacks


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("nothing", "ours", "devicePlugin.config.name ours"),
        ("ours", "nothing", "devicePlugin.config.name (none)"),
        ("ours", "ours with a default", "devicePlugin.config.default slices"),
        ("single", "nothing", "mig.strategy (none)"),
        ("ours with a default", "mixed", "mig.strategy mixed"),
    ],
)
def test_what_they_lack_is_named_with_its_value(before: str, now: str, words: str) -> None:
    assert gpu_operands.settings(PLUGIN, STATES[now], made(STATES[before])) == words


def test_a_variable_that_the_policy_sets_by_hand_is_left_to_it() -> None:
    by_hand = policy(env=[{"name": "MIG_STRATEGY", "value": "mixed"}])
    assert gpu_operands.settings(PLUGIN, by_hand, made(STATES["mixed"])) == "devicePlugin.config.name (none)"
    assert gpu_operands.settings(PLUGIN, by_hand, made(policy(strategy="mixed"))) == ""


def test_an_operand_without_such_settings_carries_them_all() -> None:
    assert gpu_operands.settings(OPERANDS["toolkit"], STATES["mixed"], made(STATES["nothing"])) == ""
    assert gpu_operands.settings({}, STATES["mixed"], made(STATES["nothing"])) == ""


def test_every_toleration_of_the_policy_is_there() -> None:
    gpu, team = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, {"key": "team", "value": "a"}
    there = rollout.template({"tolerations": [gpu, {**team, "operator": "Equal"}]})
    assert gpu_operands.tolerations({"daemonsets": {"tolerations": [gpu, team]}}, there) == ""
    assert gpu_operands.tolerations({}, there) == ""
    spec = {"daemonsets": {"tolerations": [gpu, {"key": "other", "operator": "Exists", "effect": "NoExecute"}]}}
    assert gpu_operands.tolerations(spec, there) == "the toleration other:NoExecute"
    assert gpu_operands.tolerations({"daemonsets": {"tolerations": [{"operator": "Exists"}]}}, there) == (
        "the toleration of every taint"
    )
