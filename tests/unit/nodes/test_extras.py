# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, annotations and limits of users' policies are on every pod that this collection makes; labels that are none
are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import PodExtras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects as host_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import run as host_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import pod as proof_pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import quantity
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from support import plan_samples as samples
from support.fake_api import Api

ASKED = {"pod_labels": {"team": "ml"}, "pod_annotations": {"example.test/cost": "17 / h"}, "pod_limits": True}
EXTRAS = PodExtras(ASKED["pod_labels"], ASKED["pod_annotations"], limits=True)  # type: ignore[arg-type]


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """All pods and pod templates in an object."""
    if isinstance(value, dict):
        if isinstance((value.get("spec") or {}), dict) and (value.get("spec") or {}).get("containers"):
            yield value
        for one in value.values():
            yield from templates(one)
    elif isinstance(value, list):
        for one in value:
            yield from templates(one)


def ours(**asked: Any) -> list[Any]:
    """Every object with pods of a run with these inputs."""
    plan = samples.whole(samples.cluster(), **asked)
    found: list[Any] = [obj for group in plan.objects.values() for obj in group]
    test = choice.job_of(plan, plan.tests[0], "all_reduce")
    for launcher in nccl_job.LAUNCHERS:
        objects = nccl_job.objects(test, launcher)
        found += objects
        found += [extras.dressed(obj, plan.pod_extras) for obj in scan_job.workers_only(objects, 60)]
    for daemon in (host_objects.PROBE, host_objects.PEERMEM):
        found += host_run.for_plan(Api(), plan, daemon, print).objects  # type: ignore[arg-type]
    shape = samples.SHAPES[samples.H100]
    pair = perftest.PairTest("r", "gpuops-nccl", shape, "image:1", perftest.share(plan, shape.name))
    return [*found, perftest.pod(pair, 0, "10.140.0.1")]


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
def test_every_pod_of_a_run_carries_what_the_user_asks_for(profile: str) -> None:
    pods = [pod for obj in ours(**ASKED, profile=profile) for pod in templates(obj)]
    assert len(pods) > 8
    for pod in pods:
        meta, containers = pod["metadata"], pod["spec"]["containers"]
        assert meta["labels"]["team"] == "ml" and meta["annotations"]["example.test/cost"] == "17 / h"
        for resources in (one["resources"] for one in containers):
            for name, least in extras.LEAST.items():
                assert quantity(resources["limits"][name]) >= quantity(least)
            assert all(resources["requests"].get(name) == value for name, value in resources["limits"].items())
    plain = [pod for obj in ours(profile=profile) for pod in templates(obj)]
    assert not any(
        {"cpu", "memory"} & set(one["resources"].get("limits", {})) for pod in plain for one in containers_of(pod)
    )
    networks = [pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks") for pod in pods]
    assert [one for one in networks if one], "what the collection sets stays"


def containers_of(pod: Any) -> list[Any]:
    return list(pod["spec"]["containers"])


def test_a_pod_keeps_what_it_has_and_a_proof_is_a_pod_like_others() -> None:
    pod = proof_pod("a", "b", "", "image", {"nvidia.com/gpu": "2"}, [])
    dressed = extras.dressed(pod, EXTRAS)
    (container,) = dressed["spec"]["containers"]
    wanted = {"nvidia.com/gpu": "2", "cpu": "500m", "memory": "512Mi"}
    assert container["resources"]["limits"] == wanted
    assert dressed["metadata"]["labels"] == {"team": "ml", "app.kubernetes.io/name": "gpuops-proof"}
    assert extras.dressed(dressed, EXTRAS) == dressed, "twice is once"
    assert extras.dressed(pod, PodExtras()) is pod


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("rdma_pod_labels", {"team": "a b"}, "team: 'a b' is not a valid value of a label"),
        ("rdma_pod_labels", {"team": "x" * 64}, "is not a valid value of a label"),
        ("rdma_pod_labels", {"te am": "x"}, "'te am' is not a valid name of a label"),
        ("rdma_pod_labels", {"": "x"}, "'' is not a valid name of a label"),
        ("rdma_pod_labels", {"Example.test/team": "x"}, "prefix that is not a DNS name: 'Example.test'"),
        ("rdma_pod_labels", {"/team": "x"}, "prefix that is not a DNS name: ''"),
        ("rdma_pod_labels", {"team": True}, "team: True is not a string: quote it"),
        ("rdma_pod_labels", {"team": 7}, "team: 7 is not a string: quote it"),
        ("rdma_pod_labels", {"team": None}, "team: None is not a string: quote it"),
        ("rdma_pod_labels", {"gpuops.rdma/test": "x"}, "is set by this collection"),
        ("rdma_pod_labels", {"volcano.sh/job-name": "x"}, "is set by this collection or by a batch system"),
        ("rdma_pod_annotations", {"team": ["x"]}, "team: ['x'] is not a string"),
        ("rdma_pod_annotations", {"a b": "x"}, "'a b' is not a valid name of a label or annotation"),
        ("rdma_pod_annotations", {"k8s.v1.cni.cncf.io/networks": "x"}, "is set by this collection"),
        ("rdma_pod_annotations", {"a": "x" * 262144}, "262145 bytes in total, but Kubernetes accepts 262144"),
    ],
)
def test_what_is_no_label_is_refused_by_name_before_the_cluster_is_asked(name: str, values: Any, words: str) -> None:
    with pytest.raises(InputError, match="Nothing was done") as refused:
        samples.options(**{name.removeprefix("rdma_"): values})
    assert name in str(refused.value) and words in str(refused.value)


def test_labels_that_kubernetes_takes_are_taken() -> None:
    good = {"a": "", "A_b.c-d": "X_1.y-z", "example.test/x": "x" * 63}
    assert extras.faulty("rdma_pod_labels", good) == []
    assert extras.faulty("rdma_pod_annotations", {"example.test/x": "any text: {}\n"}) == []
