# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods of a proof belong to their run: what another one left is removed, and is in nobody's way."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import ProofPods, pod
from support.fake_api import Api


class Dead(Api):
    """Its pods stay, as on a node that does not answer."""

    def delete(self, path: str, dry_run: bool = False, **_: Any) -> bool:
        self.writes.append(path)
        return True


def test_a_pod_that_an_earlier_run_left_keeps_no_name_from_a_later_one() -> None:
    one = pod("gpuops-proof-0", "jobs", "n1", "image:1", {}, [])
    api = Dead()
    api.suffix = lambda: "old-1"  # type: ignore[method-assign]
    ProofPods(api, "jobs", print).start([copy.deepcopy(one)])  # type: ignore[arg-type]
    foreign = copy.deepcopy(one)
    del foreign["metadata"]["labels"]
    api.add({**foreign, "metadata": {**foreign["metadata"], "name": "train-0"}})
    api.suffix = lambda: "new-7"  # type: ignore[method-assign]
    api.writes.clear()
    with ProofPods(api, "jobs", print) as proof:  # type: ignore[arg-type]
        proof.start([one])
    path = "Pod/jobs/gpuops-proof-0-{}"
    assert proof.pods == ["gpuops-proof-0-new-7"]
    pods = [place for place in api.writes if place.startswith("Pod")]
    assert pods == [path.format("old-1"), path.format("new-7"), path.format("new-7")], "removed, made, removed"
    assert api.objects[path.format("new-7")]["metadata"]["labels"]["gpuops.rdma/run"] == "new"
