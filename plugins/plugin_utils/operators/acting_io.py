# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks an operator whether it acts on its policy, and explains one that does not. PRIVATE to the collection."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import OUTDATED, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import acting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.targets import NOT_ACTED

SETTLE = 2.0
"""Seconds from a change of the policy to the question: its operator learns of the two in different streams."""
LEAST = 60.0
"""Seconds that an operator has for its answer at least: a new one acts 17 to 19 s after its start, when it has the
lease of the one before."""
LATE = 1.0
"""Seconds between looks at what is due, and cannot be done yet."""
LOG_LINES, LONGEST = 3, 300

TITLES = {"gpu_operator": "GPU Operator", "network_operator": "Network Operator"}


class Actor:
    """An operator with its policy, the DaemonSets that it made of it, and its Deployment, as acting.py reads them.
    ``daemonsets``: those of its namespace; ``leftovers``: names of those that the run removes; ``table``: see
    acting.made_by()."""

    def __init__(
        self,
        name: str,
        policy: Json,
        daemonsets: Iterable[Json],
        deployment: Json,
        table: Sequence[Json],
        leftovers: Collection[str],
    ) -> None:
        self.title, (self.version, self.kind) = TITLES[name], POLICIES[name]
        self.policy, self.deployment, self.table, self.leftovers = policy, deployment, table, leftovers
        self.made = self.of(daemonsets)

    def of(self, daemonsets: Iterable[Json]) -> list[Json]:
        """Those of the DaemonSets that the operator made, and still writes."""
        made = acting.made_by(self.policy, self.kind, daemonsets, self.table)
        return [item for item in made if item["metadata"]["name"] not in self.leftovers]

    @property
    def key(self) -> str:
        """The same until the operator has to act again."""
        return acting.answer(self.policy, self.deployment)

    @property
    def subject(self) -> str:
        """What it is to act on."""
        return f"generation {acting.generation(self.policy)} of {self.kind} {self.policy['metadata']['name']}"


class Acting:
    """Of one operator during one wait. ``patience``: seconds after the question until an operator counts as one that
    does not act, LEAST or more."""

    def __init__(self, client: Client, patience: float) -> None:
        self.client, self.patience = client, max(patience, LEAST)
        self._key, self._words, self._done = "", "", ""
        self._seen = self._asked = self._due = math.inf
        self._since = ""

    def behind(self, actor: Actor) -> Optional[Status]:
        """Without asking: why it is not known that the operator has acted on its policy; None where it is."""
        if acting.proven(actor.policy, actor.made, actor.deployment):
            return None
        return Status(WAITING, f"the {actor.title} has not been seen to act on {actor.subject} yet", OUTDATED)

    def left(self, actor: Actor) -> Optional[Status]:
        """Why an operator that was asked has not answered; None if it has, or was not asked."""
        if not (late := acting.unanswered(actor.made)):
            return None
        why = f"the {actor.title} was asked to act on {actor.subject} and has not written {listed(late, 3)} since"
        return Status(WAITING, why, OUTDATED)

    def answered(self, actor: Actor) -> Optional[Status]:
        """Asks the operator, once for each generation; None when it has answered. While it has made no DaemonSet there
        is nothing to ask by, and it may be about to make them: that is awaited like all else."""
        if self._done == actor.key or acting.proven(actor.policy, actor.made, actor.deployment):
            self._due = math.inf
            return None
        self._begin(actor.key)
        why = f"the {actor.title} has yet to act on {actor.subject}"
        if not actor.made:
            return self._late(actor, f"the {actor.title} has made no DaemonSet for {actor.subject} yet", self._seen)
        if self._asked == math.inf:
            if self._wait(self._seen + SETTLE) or self._others(actor.deployment):
                return Status(WAITING, why, OUTDATED)
            self._ask(actor)
        elif not acting.unanswered(actor.made) and self._confirmed(actor):
            self.client.patch(self._policy_path(actor), acting.note(actor.policy, actor.deployment))
            self._done, self._due = actor.key, math.inf
            return None
        return self._late(actor, why, self._asked)

    def unreported(self, actor: Actor, why: str) -> Status:
        """The status of an operator that has not written the policy's status yet."""
        self._begin(why)
        self._since = str(actor.policy["metadata"].get("creationTimestamp", ""))
        return self._late(actor, why, self._seen, "it has reported no status")

    def pause(self) -> float:
        """Seconds until there is something to do or to say though nothing changes in the cluster."""
        return max(LATE, self._due - time.monotonic())

    def _begin(self, key: str) -> None:
        """Starts anew where there is something else to act on."""
        if self._key != key:
            self._key, self._seen, self._asked, self._words = key, time.monotonic(), math.inf, ""
            self._since = self._now()

    def _wait(self, until: float) -> bool:
        """Whether this time is still to come; then it is when something is due."""
        late = time.monotonic() < until
        self._due = until if late else math.inf
        return late

    def _now(self) -> str:
        return moment.stamp(self.client.now())

    def _ask(self, actor: Actor) -> None:
        self._asked, self._since, self._words = time.monotonic(), self._now(), ""
        for item in actor.made:
            path = self.client.path_of({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": item["metadata"]})
            try:
                self.client.patch(path, acting.question(actor.policy))
            except NotFound:
                continue  # the operator has removed it meanwhile

    def _policy_path(self, actor: Actor) -> str:
        return self.client.path(actor.version, actor.kind, name=actor.policy["metadata"]["name"])

    def _confirmed(self, actor: Actor) -> bool:
        """Whether the DaemonSets as they are now have the answer, and the watch has these: it may lack the question."""
        path = self.client.path("apps/v1", "DaemonSet", actor.deployment["metadata"]["namespace"])
        read = actor.of(self.client.projected(path, rollout.workload))
        known = {item["metadata"]["name"]: acting.generation(item) for item in actor.made}
        seen = all(known.get(item["metadata"]["name"], 0) >= acting.generation(item) for item in read)
        return seen and not acting.unanswered(read)

    def _pods(self, deployment: Json) -> list[Json]:
        labels = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
        path = self.client.path("v1", "Pod", deployment["metadata"]["namespace"])
        found = self.client.list(path, label_selector=objects.label_selector(labels)) if labels else []
        return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True)

    def _others(self, deployment: Json) -> bool:
        """Whether pods of the operator are still ending: an older one would answer in the place of the new one."""
        ending = any(pod["metadata"].get("deletionTimestamp") for pod in self._pods(deployment))
        self._due = time.monotonic() + LATE if ending else math.inf
        return ending

    def _late(self, actor: Actor, why: str, begun: float, lacks: str = "") -> Status:
        """Waiting for ``patience`` seconds from ``begun``, then with all that is known of the operator's process: for
        good where there are DaemonSets that it does not write."""
        if self._wait(begun + self.patience):
            return Status(WAITING, why, OUTDATED)
        if not self._words:
            late = acting.unanswered(actor.made)
            missing = lacks or ("its answer has not been seen" if actor.made else "it has made no DaemonSet")
            what = f"not written again: {listed(late, 3)}" if late else missing
            who, log = self._process(actor.deployment)
            self._words = f"the {actor.title} {NOT_ACTED} {self._since} on {actor.subject} ({who}); {what}; {log}"
        return Status(WAITING, self._words, OUTDATED, bool(actor.made))

    def _process(self, deployment: Json) -> tuple[str, str]:
        """The operator's pod with its lease, and what it printed last."""
        pods = self._pods(deployment)
        if not pods:
            return f"Deployment {deployment['metadata']['name']} has no pod", "so there is no log"
        meta = pods[0]["metadata"]
        return f"pod {meta['name']}, {self._lease(meta)}", f"last lines of its log: {self._log(meta)}"

    def _lease(self, pod: Json) -> str:
        try:
            leases = self.client.list(self.client.path("coordination.k8s.io/v1", "Lease", pod["namespace"]))
        except ClusterError as error:
            return f"its lease cannot be read ({error})"
        for lease in leases:
            spec = lease.get("spec") or {}
            if str(spec.get("holderIdentity", "")).startswith(pod["name"]):
                return f"lease {lease['metadata']['name']} renewed {spec.get('renewTime', 'never')}"
        return "which holds no lease"

    def _log(self, pod: Json) -> str:
        try:
            lines = self.client.log_lines(pod["namespace"], pod["name"], tail=LOG_LINES)
            return _short(hidden(line) for line in lines) or "it is empty"
        except ClusterError as error:
            return f"it cannot be read ({error})"


def _short(lines: Iterable[str]) -> str:
    return " | ".join(line.strip() for line in lines)[-LONGEST:]
