# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a user's job from the fabric: its objects against shape, mode and cluster. PRIVATE to the collection.

files/workload_rules.yml has the rules, rules.py their conditions. A rule whose facts are unknown is not applied, and
named in the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, dicts, mapping, sequence
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, named, reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.faults import Fault
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import Job, JobContext
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.rules import CONDITIONS, FACTS

DOCUMENT, KIND, ABSENT = "workload.document", "workload.kind", "workload.absent"
EFFECTS = ("tcp", "gpudirect", "schedule", "crash", "bandwidth")

# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkloadRule:
    """One entry of files/workload_rules.yml, which says what the fields mean."""

    id: str
    effect: str
    what: str
    why: str
    remedy: str
    reference: str
    needs: tuple[str, ...] = ()
    severity: str = "error"


@dataclass(frozen=True)
class WorkloadRules:
    rules: tuple[WorkloadRule, ...]
    limits: Json


def table(document: Json) -> WorkloadRules:
    """The rules of files/workload_rules.yml. DataError if one has no condition, or a condition no rule."""
    limits = document["limits"]
    rules = tuple(
        WorkloadRule(**{**one, "what": one["what"].format(**limits), "needs": tuple(one.get("needs", ()))})
        for one in document["rules"]
    )
    ids = {rule.id for rule in rules} - {DOCUMENT, KIND}
    odd = {_function(name) for name in ids} ^ set(CONDITIONS)
    odd |= {rule.id for rule in rules if rule.effect not in EFFECTS or not set(rule.needs) <= set(FACTS)}
    if odd or len(ids) + 2 != len(rules):
        raise DataError(
            f"files/workload_rules.yml: these rules do not have exactly one valid condition: {', '.join(sorted(odd))}."
        )
    return WorkloadRules(rules, limits)


def _function(rule: str) -> str:
    return rule.partition(".")[2].replace("-", "_")


# ---- all documents ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LintResult:
    """``unchecked``: rule -> the facts that it lacks. ``jobs``: names of the objects that were judged; ``ignored``: of
    those without pods."""

    findings: tuple[Finding, ...]
    jobs: tuple[str, ...]
    ignored: tuple[str, ...]
    unchecked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing was found; what was not checked does not count."""
        return not self.findings


def lint(documents: Sequence[Any], rules: WorkloadRules, around: JobContext) -> LintResult:
    """All faults of the documents, which may be several of a file. What they contain besides jobs (ConfigMaps,
    networks, runtimes, queues, namespaces) counts as being in the cluster. InputError if no document is a job."""
    flat = list(_flat(documents))
    around = _with_own(flat, around)
    by_id = {rule.id: rule for rule in rules.rules}
    found: list[Finding] = []
    jobs, ignored = [], []
    for document in flat:
        name = _named(document)
        if kinds.kind_of(document) is None:
            made = _unread(document)
            if made:
                found.append(_finding(by_id[made[0]], name, made[1]))
            else:
                ignored.append(name)
            continue
        jobs.append(name)
        try:
            job = reading.read(document, around)
        except InputError as error:
            found.append(_finding(by_id[DOCUMENT], name, Fault(str(error).partition(": ")[2] or str(error))))
            continue
        found += _judged(job, rules)
    if not jobs and not found:
        known = ", ".join(dict.fromkeys(kind.kind for kind in kinds.KINDS))
        shown = listed(ignored) or "there is none"
        raise InputError(f"Nothing to lint: no job among {len(flat)} documents ({shown}). Known kinds: {known}.")
    lacking = {rule.id: tuple(one for one in rule.needs if not around.known(one)) for rule in rules.rules}
    lacking[ABSENT] = (*lacking[ABSENT], *around.unread)
    return LintResult(
        tuple(found), tuple(jobs), tuple(ignored), {name: facts for name, facts in lacking.items() if facts}
    )


def _judged(job: Job, rules: WorkloadRules) -> Iterator[Finding]:
    for rule in rules.rules:
        condition = CONDITIONS.get(_function(rule.id))
        if condition and all(job.around.known(fact) for fact in rule.needs):
            for fault in condition(job, rules.limits):
                yield _finding(rule, job.name, fault)


def _finding(rule: WorkloadRule, name: str, fault: Fault) -> Finding:
    return finding(
        rule.id,
        name,
        fault.found,
        expected=fault.expected,
        remedy=fault.remedy or None,
        severity=fault.severity,
    )


def _flat(documents: Iterable[Any]) -> Iterator[Any]:
    for one in documents:
        if (
            isinstance(one, Mapping)
            and str(one.get("kind", "")).endswith("List")
            and isinstance(one.get("items"), list)
        ):
            yield from _flat(one["items"])
        elif one is not None:
            yield one


def _named(document: Any) -> str:
    return kinds.reference(document) if isinstance(document, dict) else f"a document that is {type(document).__name__}"


def _unread(document: Any) -> Optional[tuple[str, Fault]]:
    """What cannot be judged: no object, a version that is not read, or pods in a kind that is not known. None for an
    object without pods."""
    if not isinstance(document, dict) or not document.get("kind"):
        return DOCUMENT, Fault(
            "it is not a Kubernetes object, because it has no kind", "apiVersion, kind, metadata, spec"
        )
    api, kind = str(document.get("apiVersion") or ""), str(document["kind"])
    group = api.rpartition("/")[0]
    known = kinds.BY_NAME.get((group, kind))
    if known:
        return DOCUMENT, Fault(f"apiVersion {api} is not read", " or ".join(f"{group}/{v}" for v in known.versions))
    if any(one.kind == kind for one in kinds.KINDS):
        known_apis = ", ".join(one.api_version for one in kinds.KINDS if one.kind == kind)
        return DOCUMENT, Fault(f"apiVersion {api or '(none)'} has no {kind}", known_apis)
    if _has_containers(document.get("spec")):
        return KIND, Fault(f"{api} {kind} has containers, but its kind is not supported")
    return None


def _has_containers(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("containers"), list) or any(_has_containers(one) for one in value.values())
    return isinstance(value, list) and any(_has_containers(one) for one in value)


def _with_own(documents: Sequence[Any], around: JobContext) -> JobContext:
    """``around`` with what the documents themselves bring."""
    maps, runtimes = dict(around.config_maps), dict(around.runtimes)
    networks = None if around.networks is None else dict(around.networks)
    spaces = None if around.namespaces is None else dict(around.namespaces)
    queues = None if around.queues is None else dict(around.queues)
    served = None if around.served is None else dict(around.served)
    present = None if around.objects is None else dict(around.objects)
    claims = dict(around.claims)
    covered = {}
    objects = [one for one in documents if isinstance(one, dict)]
    for one in objects:
        kind, meta = str(one.get("kind")), mapping(one.get("metadata"))
        place = f"{meta.get('namespace') or 'default'}/{meta.get('name')}"
        key = named.key(kind, str(meta.get("name")), str(meta.get("namespace") or "default"))
        if kind in named.VERSIONS and present is not None:
            present[key] = True
        if kind in (named.CLAIM, named.TEMPLATE):
            claims[key] = named.claimed_gpus(one)
        for made in named.made_by(one):
            claims[made] = 0
            if present is not None:
                present[made] = True
        if kind == "ConfigMap":
            maps[place] = mapping(one.get("data"))
        elif kind == "TrainingRuntime":
            runtimes[f"{kind}/{place}"] = one
        elif kind == "ClusterTrainingRuntime":
            runtimes[f"{kind}/{meta.get('name')}"] = one
        elif kind == "NetworkAttachmentDefinition" and networks is not None:
            networks[place] = resource_of(one)
        elif kind == "Namespace" and spaces is not None:
            spaces[str(meta.get("name"))] = mapping(meta.get("labels"))
        elif kind == "CustomResourceDefinition" and served is not None:
            served.update(dict.fromkeys(reading.served_by(one), True))
        elif kind == "ClusterQueue":
            covered[str(meta.get("name"))] = covered_by(one)
    for one in objects:
        if one.get("kind") == "LocalQueue" and queues is not None:
            meta = mapping(one.get("metadata"))
            target = str(mapping(one.get("spec")).get("clusterQueue"))
            queues[f"{meta.get('namespace') or 'default'}/{meta.get('name')}"] = covered.get(target, ())
    return dataclasses.replace(
        around,
        config_maps=maps,
        runtimes=runtimes,
        networks=networks,
        namespaces=spaces,
        queues=queues,
        served=served,
        objects=present,
        claims=claims,
    )


def resource_of(network: Json) -> str:
    """The resource that a NetworkAttachmentDefinition is for; "" without one."""
    return str(
        mapping(mapping(network.get("metadata")).get("annotations")).get("k8s.v1.cni.cncf.io/resourceName") or ""
    )


def covered_by(queue: Json) -> tuple[str, ...]:
    """Resources that a ClusterQueue covers."""
    groups = dicts(mapping(queue.get("spec")).get("resourceGroups"))
    return tuple(str(name) for one in groups for name in sequence(one.get("coveredResources")))
