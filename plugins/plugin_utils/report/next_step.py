# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next step of a report: one command that is safe after this run. PRIVATE to the collection.

It writes no more than the run did, is not the same command again, and names the run's cluster.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import UNACTED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import INPUT, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.causes import HOST, NCCL, Evidence, SharedCause

COMMAND = "ansible-playbook gpuops.rdma.site"
SCAN = "ansible-playbook gpuops.rdma.nccl_scan"
VERIFY = "ansible-playbook gpuops.rdma.verify"
RENDER = "ansible-playbook gpuops.rdma.workload_render"
PERFTEST = "ansible-playbook gpuops.rdma.perftest"
READS, MEASURES, WRITES = range(3)
"""Levels of a command: it writes nothing to the cluster; it creates only pods that measure; it changes the cluster."""
BEFORE = ("control_node", "plan", "preflight")
"""Stages that end before the nodes are looked at."""
_READING = {"bundle", "compare", "discover", "inputs", "verify", "verify_evidence", "workload_lint", "workload_render"}
_MEASURING = {"health", "host_checks", "nccl_scan", "perftest", "workload_prove"}
_READING_TAGS = {*BEFORE[1:], "report"}
_MEASURING_TAGS = {*_READING_TAGS, "host_checks", "nccl_test"}
_CHANGING = re.compile(
    r"\b(?:kubectl|helm|oci)\b.* (?:delete|patch|apply|label|annotate|taint|cordon|uncordon|drain|scale|edit|replace|"
    r"create|restart|uninstall|install|upgrade|rollback|disable|enable|update|set|terminate)\b"
)
_PREDICTING = " --check --diff"
_PLAYBOOK = re.compile(r"\bansible-playbook (?:\S*/)?(?:gpuops\.rdma\.)?([\w-]+)")
_SIBLING = re.compile(r"ansible-playbook gpuops\.rdma\.(?!site\b)\w+")
"""Another playbook of the collection. It has this name wherever the run's own playbook is, which may be the user's."""
_A_COMMAND = r"((?:kubectl|helm|oci) (?:(?!, (?:and|or|then) )[^;)])*)"
_IN_ERROR = re.compile(rf"(?:: |\b[Ss]ee ){_A_COMMAND}")
"""A command in the error of a stage; a playbook's would be this run's own."""
_BACK = re.compile(r"To go back(?:, (give the charts [^:]+))?: (ansible-playbook gpuops\.rdma\.rollback .*=true)")
"""What a wave that stopped offers (upgrade/wave_run.py): the charts that it needs, the command."""
_DEFINITION = re.compile(r"\(CRD\) is from another release .*kubectl describe crd ([\w.-]+\w)")
"""The definition in a refusal of the API server (kube/client.py)."""
_COMMAND = re.compile(rf"(?:.*(?:: | \(|\b[Ss]ee ))?({_A_COMMAND[1:-1]}|ansible-playbook [^;)]*)")
"""A command in a remedy, possibly in brackets or after its condition."""
_INPUT = re.compile(r"\brdma_\w+")
_ASKED = re.compile(r"\b(rdma_[\w.]*\w)(?:=([\w./:-]*[\w/]))?")
"""An input, possibly a part of it, with the value that it is to have."""
_ASKING = re.compile(r"\b(?:[Ss]et|[Cc]orrect) (rdma_[\w.]*\w(?:=[\w./:-]*[\w/])?)")
"""The same in the error of a stage, as what to do."""
_REJECTED = re.compile(r"\b(rdma_[\w.]*\w)(?: is |\) is |\): )")
"""An input that the error of a stage rejects without a value to set."""
_VALUE = "VALUE"
_SHOWN_BY = tuple(
    (re.compile(pattern), command)
    for pattern, command in (
        (r"\bValidatingAdmissionPolicy '?([\w.-]+)", "kubectl describe validatingadmissionpolicies {0}"),
        (r"\bwebhook \"?[\w.-]+", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide"),
        (r"\bexceeded quota: ", "kubectl get resourcequotas -A"),
        (r"\(HTTP 401\)|\bCannot log in to the cluster\b", "kubectl auth whoami"),
        (r"\bthe chart repository (\S+) cannot be reached", "curl -fsSI {0}/index.yaml"),
        (r"\bcannot be fetched from (oci://\S+): ", "helm show chart {0}"),
    )
)
"""What a fault speaks of -> what shows its cause."""
_OBJECT = re.compile(r"([A-Z]\w+) (?:([\w.-]+)/)?([\w.-]+)")
"""A finding's subject: an object of the cluster."""
_MANY = 8
"""Maximum number of nodes named on a command line."""
_WARNINGS = "kubectl get events -A --field-selector type=Warning --sort-by=.lastTimestamp"


class _Whole(str):
    """A step that has the inventory and inputs of the run already."""


@dataclass(frozen=True)
class Started:
    """How a run was started. ``site``: what runs site.yml, or the user's own playbook, with this run's inventory and
    inputs. ``ran``: what was run, with its tags; "" = ``site``. ``kubeconfig``, ``context``: those of the run."""

    site: str = COMMAND
    ran: str = ""
    kubeconfig: str = ""
    context: str = ""
    left_out: tuple[str, ...] = ()
    """Names of inputs that the commands lack, since they are secrets."""

    @property
    def again(self) -> str:
        """The command of this run."""
        return self.ran or self.site


ALONE = Started()
"""Without an inventory."""


@dataclass(frozen=True)
class ReportState:
    """What a report has found. ``causes``: of the nodes' faults, the one to act on first at the beginning; ``first``:
    errors of the cluster that come before all nodes' faults; ``predicted``: the file with what a run in check mode
    would change, "" if it would change nothing, None for a real run."""

    plan: Plan
    verdict: str
    stages: Sequence[Json]
    table: Sequence[Json]
    causes: Sequence[SharedCause]
    cluster: Sequence[Json]
    nccl: Sequence[Json]
    deselected: bool
    judged: bool
    first: Sequence[Json] = ()
    predicted: Optional[str] = None


def level(command: str) -> int:
    """READS, MEASURES or WRITES."""
    found = _PLAYBOOK.search(command)
    if not found:
        return WRITES if _CHANGING.search(command) else READS
    words = command.split()
    tags = {tag for word, after in zip(words, words[1:]) if word in ("-t", "--tags") for tag in after.split(",")}
    name = found.group(1)
    if {"--check", "-C"} & set(words) or name in _READING or (tags and tags <= _READING_TAGS):
        return READS
    return MEASURES if name in _MEASURING or (tags and tags <= _MEASURING_TAGS) else WRITES


def next_step(seen: ReportState, started: Started) -> str:
    """The next step as one command, possibly after what must be corrected first; "" if there is none.

    It is that of the first cause, as the verdict's sentence; on the nodes that passed, a job of the user's own. Steps
    that are no command are in the findings.
    """
    for step in _passed(seen) if seen.verdict == "pass" else _steps(seen, started):
        if whole := _fitted(step, started):
            return whole
    return ""


def _fitted(step: str, started: Started) -> str:
    """The step with this run's inventory and inputs; "" if it is this run again, or would write more than it did.
    site.yml then predicts what it would change."""
    whole = step if isinstance(step, _Whole) else with_inputs(step, started.site)
    if level(whole) > level(started.again):
        whole = f"{whole}{_PREDICTING}" if COMMAND in step and level(whole) == WRITES else ""
    if whole in ("", started.again):
        return ""
    return _addressed(whole, started) + (noted(started.left_out) if "ansible-playbook" in whole else "")


def noted(left_out: Sequence[str]) -> str:
    """What ends a command that lacks inputs: a comment of the shell with their names."""
    return f"  # add again, not shown here: {', '.join(left_out)}" if left_out else ""


def with_inputs(text: str, command: str) -> str:
    """The command with this run's inventory and inputs."""
    other = _SIBLING.search(text)
    if other:
        _program, _playbook, *inputs = command.split(" ", 2)
        return text.replace(other[0], " ".join([other[0], *inputs]), 1)
    return text.replace(COMMAND, command, 1)


def _addressed(text: str, started: Started) -> str:
    """kubectl and helm for the run's cluster, where it was given by an input."""
    for program, context in (("kubectl", "--context"), ("helm", "--kube-context")):
        given = {"--kubeconfig": started.kubeconfig, context: started.context}
        words = [part for name, value in given.items() if value for part in (name, value)]
        text = re.sub(rf"\b{program} ", f"{shlex.join([program, *words])} ".replace("\\", r"\\"), text, count=1)
    return text


def render_command(plan: Plan) -> str:
    """What renders a job for the nodes of the plan, without this run's inputs; of several shapes for the first. ""
    without a test, and without RDMA."""
    shapes = list(dict.fromkeys(test.shape for test in plan.tests))
    if not shapes or plan.sockets:
        return ""
    return RENDER if len(shapes) == 1 else f"{RENDER} -e rdma_shape={shapes[0]}"


def again(stage: str, names: Sequence[str]) -> str:
    """The stage again, for these nodes."""
    narrow = f" -e rdma_nodes={','.join(names)}" if len(names) <= _MANY else ""
    return f"{COMMAND} --tags {stage}{narrow}"


def _passed(seen: ReportState) -> Iterator[str]:
    yield render_command(seen.plan)


def _steps(seen: ReportState, started: Started) -> Iterator[str]:
    """Steps in the order in which they are tried. The error of a failed stage holds what to fix first."""
    failed = next((stage for stage in seen.stages if stage["status"] == "failed"), None)
    rejected = [item for item in seen.cluster if item["id"] == INPUT]
    if rejected and (failed is None or failed["name"] in BEFORE):
        yield _shown_by(rejected[0]["found"])
        wrong = list(dict.fromkeys(item["subject"] for item in rejected))
        yield _corrected(f"correct {listed(wrong)}", dict.fromkeys(wrong, _VALUE), started)
    if failed:
        yield from _after_failure(seen, failed, started)
    yield from filter(None, map(command_of, seen.first))
    for severity, verdict in (("error", "fail"), ("unknown", "incomplete")):
        yield from _of_causes([one for one in seen.causes if one.first.verdict == verdict])
        yield from (command_of(item) for item in seen.cluster if item["severity"] == severity)
    yield from _after_correction(seen, [item for item in seen.cluster if item["severity"] == "error"], started)
    bad = [item for item in seen.nccl if item["verdict"]["verdict"] != "pass"]
    if bad and "nccl_scan" in bad[0]["verdict"]["reason"]:
        yield SCAN
    if bad and bad[0].get("log"):
        yield f"less {bad[0]['log']}"
    if seen.predicted:
        yield f"less {seen.predicted}"
    if seen.causes:
        yield f"kubectl describe node {seen.causes[0].first.node}"
    if not seen.judged and failed is None and seen.predicted is None:
        yield f"{COMMAND}{_PREDICTING}"
    if failed is None:
        yield f"{COMMAND} --tags nccl_test" if seen.deselected else ""
        yield VERIFY if seen.predicted == "" else COMMAND
    yield _WARNINGS


def _after_failure(seen: ReportState, failed: Json, started: Started) -> Iterator[str]:
    """The command that the failed stage's first finding, or its error, gives; else what to correct, or what shows the
    cause."""
    yield _older_definition(seen.plan, seen.stages, failed)
    mine = [item for item in seen.cluster if item["severity"] == "error" and of_stage(item, failed["name"])]
    given = _COMMAND.match(mine[0].get("remedy") or "") if mine else None
    if given:
        yield _trimmed(given.group(1))
    yield from _after_correction(seen, mine, started)
    yield from (command_of(item) for item in seen.cluster if item["id"] == UNACTED)
    error = " ".join(failed.get("error", "").split())
    for charts, back in _BACK.findall(error):
        yield f"{charts}, then: {back}" if charts else back
    asked = _ASKING.findall(error)
    yield _corrected(f"set {listed(asked)}", _inputs(asked), started)
    for name in _REJECTED.findall(error)[:1]:
        yield _corrected(f"correct {name}", {name: _VALUE}, started)
    found = _IN_ERROR.search(error)
    if found:
        yield _trimmed(found.group(1))
    yield _shown_by(error)
    if failed["name"] == "nodes":
        yield next((f"kubectl describe node {node.name}" for node in seen.plan.nodes if f" {node.name}: " in error), "")
    if failed["name"] in BEFORE:
        yield "kubectl get nodes -o wide"
    else:
        yield f"kubectl -n {_namespace(seen.plan, failed['name'])} get events --sort-by=.lastTimestamp"


def _after_correction(seen: ReportState, errors: Sequence[Json], started: Started) -> Iterator[str]:
    """This run again, with the inputs that the findings ask for first; without any, what shows the first cause."""
    asked = list(dict.fromkeys(filter(None, map(_correction, errors))))
    inputs = _inputs(re.split(r",? or |, ", text)[0] for text in asked)
    yield _corrected("; ".join(asked[:3]), inputs, started)
    for item in errors[:1]:
        yield _shown_by(item["found"])
        yield _about(item["subject"], seen)


def _shown_by(text: str) -> str:
    """The command that shows the cause that a text speaks of; "" without one."""
    for pattern, command in _SHOWN_BY:
        if found := pattern.search(text):
            return command.format(*(group.rstrip("/.") for group in found.groups()))
    return ""


def _about(subject: str, seen: ReportState) -> str:
    """The command that shows the object, or the node, that a finding is about; "" for another subject."""
    if subject in {node.name for node in seen.plan.nodes}:
        return f"kubectl describe node {subject}"
    found = _OBJECT.fullmatch(subject)
    if not found:
        return ""
    kind, place, name = found.groups()
    return f"kubectl {f'-n {place} ' if place else ''}describe {kind.lower()} {name}"


def _inputs(texts: Iterable[str]) -> dict[str, str]:
    """Input -> the value that it is to have, of texts that ask for some."""
    return {name: value or _VALUE for text in texts for name, value in _ASKED.findall(text)}


def of_stage(item: Json, stage: str) -> bool:
    """Whether the finding is the failed stage's: preflight tells those of the plan too."""
    return bool(item["stage"] == stage or (stage == "preflight" and item["stage"] in BEFORE))


def _correction(item: Json) -> str:
    """What a finding asks for, in words; without a remedy, the input that it says to set, else those that it names."""
    remedy = re.split(r";|: (?=ansible-playbook |kubectl |helm |oci )", str(item.get("remedy") or ""))[0].rstrip(". ")
    if remedy:
        return remedy
    if asked := _ASKING.search(str(item["found"])):
        return f"set {asked[1]}"
    names = list(dict.fromkeys(_INPUT.findall(item["found"])))
    return f"set {' or '.join(names)} for {item['subject']}" if names else ""


def _corrected(first: str, inputs: Mapping[str, str], started: Started) -> str:
    """What to do first, then this run with these inputs, a place for each value that is not known; "" without any."""
    values = {name: value for name, value in inputs.items() if name.partition(".")[0] in INPUTS}
    if not values:
        return ""
    words = shlex.split(started.again)
    dropped = {
        number
        for number, (option, given) in enumerate(zip(words, words[1:]))
        if option == "-e" and any(given.startswith(f"{name}=") and " " not in given for name in values)
    }
    kept = [word for number, word in enumerate(words) if number not in dropped and number - 1 not in dropped]
    return _Whole(f"{first}, then: {' '.join([shlex.join(kept), *_options(values, _given(words))])}")


def _given(words: Sequence[str]) -> Json:
    """The inputs that a command gives as JSON."""
    found: Json = {}
    for option, given in zip(words, words[1:]):
        if option == "-e" and given.startswith("{"):
            with contextlib.suppress(ValueError):
                found.update(json.loads(given))
    return found


def _options(values: Mapping[str, str], given: Json) -> Iterator[str]:
    """The options that set inputs, or parts of them: one for all parts of an input, also those that the command has
    ``given`` already, as the last option holds."""
    whole: Json = {}
    for name, value in values.items():
        *path, last = name.split(".")
        place = whole
        for part in path:
            place = place.setdefault(part, {})
            if isinstance(place, str):  # the whole input is to be set, too
                break
        else:
            place.setdefault(last, value)
    for name, value in whole.items():
        _fill(value, given.get(name))
        plain = isinstance(value, str) and "dict" not in (INPUTS[name]["type"], INPUTS[name].get("elements"))
        yield f"-e {name}={value}" if plain else f"-e {shlex.quote(_written({name: value}))}"


def _fill(wanted: Any, given: Any) -> None:
    """Adds the parts that only ``given`` has, as JSON."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        for key, value in given.items():
            _fill(wanted.setdefault(key, json.dumps(value)), value)


def _written(value: Any) -> str:
    """As JSON, with the words of ``value`` as they are."""
    if isinstance(value, str):
        return value
    return f"{{{', '.join(f'{json.dumps(key)}: {_written(one)}' for key, one in value.items())}}}"


def _older_definition(plan: Plan, stages: Sequence[Json], failed: Json) -> str:
    """Where an object was refused by an older definition, the stage whose release brings it; "" if that stage was part
    of this run."""
    found = _DEFINITION.search(" ".join(failed.get("error", "").split()))
    owner = next((stage for stage, names in plan.crds.items() if found and found.group(1) in names), "")
    owner = "network_operator" if owner == "policy" else owner
    ran = {stage["name"] for stage in stages if stage["status"] == "ok"}
    return f"{COMMAND} --tags {owner},{failed['name']}" if owner and owner not in ran else ""


def _namespace(plan: Plan, stage: str) -> str:
    """Where a stage's pods are."""
    names, batch = plan.namespaces, plan.releases.get("batch")
    of_stage = {"gpu_operator": names.gpu_operator, "network_operator": names.network_operator}
    of_stage.update({"batch": batch.namespace} if batch else {})
    return of_stage.get(stage, names.job if stage in ("nccl_test", "nccl_scan", "perftest") else names.own)


def _trimmed(text: str) -> str:
    return text.strip().rstrip(".,")


def command_of(item: Json) -> str:
    """The command for a finding of the cluster. After a scan the links are looked at first."""
    if item["id"] == "scan.fabric":
        return f"look at the switches and links of {item.get('subject', '').partition('/')[2]}, then: {SCAN}"
    return _command(str(item.get("remedy") or ""), item["stage"])


def _command(remedy: str, stage: str) -> str:
    """The command in a remedy, else the stage again; "" without a remedy."""
    if found := _COMMAND.match(remedy):
        return _trimmed(found.group(1))
    if remedy and stage in ("nccl_scan", "perftest"):
        return SCAN if stage == "nccl_scan" else PERFTEST
    return f"{COMMAND} --tags {stage}" if remedy and stage not in ("", "plan", "report") else ""


def _of_causes(shared: Sequence[SharedCause]) -> Iterator[str]:
    """Commands of the first cause, then of the others: within a cause those that its remedies give come before those
    that only check again. Nodes that need the same stage share a command."""
    for one in shared:
        mine = [item for cause in one.causes[:1] for item in cause.evidence if _serious(item, cause.verdict)]
        for item in sorted(mine, key=lambda item: not _COMMAND.match(item.remedy)):
            yield _for_nodes(item, one, shared)


def _serious(item: Evidence, verdict: str) -> bool:
    return item.severity != "warning" or verdict == "fail"


def _for_nodes(item: Evidence, one: SharedCause, shared: Sequence[SharedCause]) -> str:
    """The command for a piece of evidence. What is repaired by hand comes before the check of it."""
    command, stage = _command(item.remedy, item.stage), item.stage
    given = bool(_COMMAND.match(item.remedy))
    if (command == f"{COMMAND} --tags host_checks" and given) or item.id in ("scan.node", "scan.rail"):
        return again("host_checks", _needing(stage, shared))
    checked = again(stage, _needing(stage, shared))
    if command and not given and item.source in (HOST, NCCL):
        by_hand = item.remedy.partition(";")[0].strip().rstrip(".")
        return f"{by_hand}, then: {checked if item.source == HOST else command}"
    repeated = (f"{COMMAND} --tags {stage}", again(stage, [one.first.node]))
    return checked if command in repeated else command


def _needing(stage: str, shared: Sequence[SharedCause]) -> list[str]:
    """Nodes with a finding of that stage."""
    return [cause.node for one in shared for cause in one.causes if any(item.stage == stage for item in cause.evidence)]
