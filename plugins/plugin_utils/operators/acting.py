# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an operator has acted on the newest spec of its policy. PRIVATE to the collection. Pure.

A status that says ready may be of an earlier spec: neither ClusterPolicy nor NicClusterPolicy before 26.7 has an
observedGeneration, most fields change few DaemonSets or none, and a process that does nothing else renews its lease. So
the operator is asked: each of its DaemonSets gets an annotation, and loses the one by which the operator knows what it
has written. An operator that acts writes the whole DaemonSet again, and our annotation is gone; pods do not restart,
because their template is the same. The answer is kept at the policy, so that it is asked for once.

Three things prove that a generation was acted on:

- the policy has never changed, neither has the operator's Deployment, and the DaemonSets are younger: they were made of
  it;
- an earlier run had the answer for this generation, from an operator with these images;
- the answer itself.

Sources: gpu-operator v23.9.1, v26.7.0 controllers/object_controls.go (DaemonSet is written where its hash differs or is
missing; the controller watches them); network-operator v23.10.x (writes always), v25.10.0, v26.4.1, v26.7.0-rc.2
pkg/state/state_skel.go, controllers/predicate.go (the same with its revision).

Objects are policies as named.small() and DaemonSets and Deployments as rollout.workload() project them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ACTED_ON, ASKED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.operands import STATE_LABEL

WRITTEN = ("nvidia.com/last-applied-hash", "nvidia.network-operator.revision")
"""Annotations of a DaemonSet by which its operator knows what it has written."""


def generation(obj: Json) -> int:
    """How often the object's spec has changed."""
    return int(obj["metadata"].get("generation") or 0)


def made_by(policy: Json, kind: str, daemonsets: Iterable[Json], table: Sequence[Json]) -> list[Json]:
    """The DaemonSets that the policy's operator has made of it, and that each release of it writes. ``kind``: of the
    policy; ``table``: what the operator makes, from operands.yml. One that is not listed there may be of an older
    release, so that nobody writes it any more."""
    owner, listed = (kind, policy["metadata"]["name"]), {one.get("app") or one["state"] for one in table}
    return [
        item
        for item in daemonsets
        if owner in {(ref.get("kind"), ref.get("name")) for ref in item["metadata"].get("ownerReferences") or ()}
        and listed & {(item["metadata"].get("labels") or {}).get(label) for label in ("app", STATE_LABEL)}
    ]


def proven(policy: Json, made: Sequence[Json], deployment: Json) -> bool:
    """Whether it is known without asking that the operator has acted on the policy as it is. Without any DaemonSet
    there is no evidence."""
    known = policy.get("acted_on") == answer(policy, deployment) or _never_changed(policy, made, deployment)
    return bool(made) and known


def _never_changed(policy: Json, made: Iterable[Json], deployment: Json) -> bool:
    born = str(deployment["metadata"].get("creationTimestamp", ""))
    younger = all(born <= str(item["metadata"].get("creationTimestamp", "")) for item in made)
    return generation(policy) <= 1 and deployment["revision"] in ("", "1") and younger


def answer(policy: Json, deployment: Json) -> str:
    """What is kept at the policy: its generation, and the images of the operator that has acted on it."""
    return json.dumps({"generation": generation(policy), "operator": sorted(deployment["images"])}, sort_keys=True)


def note(policy: Json, deployment: Json) -> Json:
    """The merge patch of the policy that keeps the answer."""
    return {"metadata": {"annotations": {ACTED_ON: answer(policy, deployment)}}}


def question(policy: Json) -> Json:
    """The merge patch of a DaemonSet that asks its operator to write it again."""
    return {"metadata": {"annotations": {ASKED: str(generation(policy)), **dict.fromkeys(WRITTEN)}}}


def unanswered(made: Iterable[Json]) -> list[str]:
    """Names of the DaemonSets that were not written since the question. One that an older release has made may stand
    beside the new one of its state; nobody writes it any more."""
    states: dict[str, list[Json]] = {}
    for item in made:
        state = (item["metadata"].get("labels") or {}).get(STATE_LABEL) or item["metadata"]["name"]
        states.setdefault(str(state), []).append(item)
    late = (items for items in states.values() if all(item["asked"] for item in items))
    return sorted(str(item["metadata"]["name"]) for items in late for item in items)
