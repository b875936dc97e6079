# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stack of OCI AI Blueprints installs beside what the cluster has."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import stack

TABLE = files.load(files.FILES / "oci" / "blueprints_stack.yml")
GPU, LWS, KUEUE = (
    "nvcr.io/nvidia/gpu-operator:v26.7.0",
    "registry.k8s.io/lws/lws:v0.7.0",
    "registry.k8s.io/kueue/kueue:v0.18.2",
)
FLAG, PLACE = "bring_your_own_nvidia_gpu_operator", "existent_nvidia_gpu_operator_namespace"


def runs(image: str, namespace: str, kind: str = "deployment") -> Workload:
    return Workload(kind, namespace, namespace, (image,))


def choose(workloads: Any = (), given: Any = None, there: Any = None) -> stack.Chosen:
    return stack.choose(TABLE, workloads, given or {}, there)


def test_an_empty_cluster_gets_all_of_the_stack() -> None:
    found = choose()
    assert found.variables == {} and "the GPU Operator: the stack's own v25.3.0" in found.notes


def test_what_is_there_is_brought_along() -> None:
    found = choose(
        [runs(GPU, "gpu-operator"), runs(LWS, "lws-system"), runs(KUEUE, "kueue-system"), runs(GPU, "x", "daemonset")]
    )
    assert found.variables == {
        FLAG: "true",
        PLACE: "gpu-operator",
        "bring_your_own_lws": "true",
        "bring_your_own_kueue": "true",
        "existent_kueue_namespace": "kueue-system",
        "bring_your_own_cluster": "true",
    }
    assert "the GPU Operator: the existing one in gpu-operator" in found.notes and not found.warnings


def test_the_stacks_own_stay_on_the_next_run() -> None:
    """Also where a killed run has installed only some of them."""
    own = [runs(GPU, "gpu-operator"), runs(KUEUE, "kueue-system")]
    assert choose(own, there={"fqdn_domain_mode_selector": "nip.io"}).variables == {}
    brought = choose(own, there={FLAG: "true", PLACE: "gpu-operator"})
    assert brought.variables[FLAG] == "true"


@pytest.mark.parametrize(
    ("workloads", "given", "there", "said"),
    [
        (
            [runs(GPU, "a"), runs(GPU, "b")],
            {},
            None,
            "GPU Operator is installed 2 times: a/a, b/b. Remove all but one",
        ),
        ([runs(GPU, "a"), runs(GPU, "gpu-operator")], {}, {}, "is installed 2 times"),
        (
            [runs(LWS, "lws-system")],
            {"bring_your_own_lws": False},
            None,
            "LeaderWorkerSet is already installed .* set bring_your_own_lws",
        ),
        (
            [runs(KUEUE, "elsewhere")],
            {},
            {},
            "Kueue is already installed .elsewhere/elsewhere., and the stack would install a second",
        ),
        ([], {"bring_your_own_kueue": True}, None, "bring_your_own_kueue=true, but Kueue does not run in the cluster"),
        ([], {}, {"bring_your_own_lws": "true"}, "LeaderWorkerSet does not run in the cluster"),
        (
            [runs(GPU, "gpu-operator")],
            {FLAG: True, PLACE: "other"},
            None,
            "is other, but the GPU Operator runs in gpu-op",
        ),
    ],
)
def test_refused(workloads: Any, given: Any, there: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        choose(workloads, given, there)


def test_all_faults_at_once_and_an_old_release() -> None:
    with pytest.raises(InputError) as error:
        choose([runs(GPU, "a"), runs(GPU, "b"), runs(KUEUE, "a"), runs(KUEUE, "b")])
    assert str(error.value).count("\n- ") == 2
    old = choose([runs("registry.k8s.io/lws/lws:v0.6.1@sha256:ab", "lws-system")])
    assert old.warnings == ["LeaderWorkerSet v0.6.1 in lws-system is older than 0.7.0, which Blueprints requires"]


def test_address() -> None:
    assert stack.host("https://api.1-2-3-4.nip.io") == ("api.1-2-3-4.nip.io", 443)
    assert stack.host("https://localhost:8443/x") == ("localhost", 8443)
    for url in ("", "http://api.x", "https://"):
        with pytest.raises(InputError, match="not an https address"):
            stack.host(url)
