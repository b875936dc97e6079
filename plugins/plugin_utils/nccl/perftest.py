# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ib_write_bw between pairs of nodes, on all RDMA ports at once: pairing, pods, output, verdict.

PRIVATE to the collection. Bandwidths are Gb/s (1e9 bits per second) per port, one direction. A pair has a server and a
client pod, each with all GPUs and VFs of its node; rail r of one talks to rail r of the other, from the memory of the
GPU that is nearest to it. Output grammar: perftest's RESULT_FMT and REPORT_FMT (src/perftest_parameters.h).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    LAST_WORDS,
    NAME_LABEL,
    OWNED,
    PRIORITY_CLASS,
    of_run,
    run_labels,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import GIB, Fabric, least, of_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import DMABUF_KERNEL

APP = "gpuops-perftest"
PERFTEST_LABEL = "gpuops.rdma/perftest"
STAGE = "perftest"
PORT = 18515
"""Port of rail 0 for the exchange of addresses over the pod network; rail r uses PORT + r."""
NO_PROGRAM = 97
"""Exit code of our script when the image has no ib_write_bw."""
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
WORSE = 0.95
"""Part of an earlier bandwidth that must be there again."""
PATIENCE = 60
"""Seconds for which a client retries to connect to its server."""
SHARE = Fabric(cpus=8, memory_gib=16)
"""What a pod needs of its node, if the node has it; its GPUs and VFs are the shape's."""
MIB = 1 << 20
Pair = tuple[str, str]
"""(server's node, client's node)"""


@dataclass(frozen=True)
class PairTest:
    """One run over nodes of one shape."""

    suffix: str
    """Of its objects' names, see Client.suffix."""
    namespace: str
    shape: Shape
    image: str
    fabric: Fabric = SHARE
    seconds: int = 10
    size: int = MIB
    queue_pairs: int = 2
    cuda: bool = True
    priority_class: str = PRIORITY_CLASS
    dmabuf: frozenset[str] = frozenset()
    """Nodes whose GPU memory is registered through DMA-BUF; on the others nvidia_peermem registers it."""

    @property
    def files(self) -> str:
        """Name of the ConfigMap, and prefix of its pods' names."""
        return of_run(APP, self.suffix)

    @property
    def limit(self) -> int:
        """Seconds after which a pod ends itself."""
        return self.seconds + PATIENCE + 60


def share(plan: Plan, shape: str, pull_secrets: tuple[str, ...] = (), cordoned: bool = False) -> Fabric:
    """What a pod needs of a node of this shape: of cores and memory at most half of what the smallest node has.
    ``cordoned``: whether the pods start on cordoned nodes, too."""
    cpu, memory = least([node for node in plan.nodes if node.shape == shape])
    own = of_plan(plan)
    return replace(
        own,
        pull_secrets=pull_secrets,
        tolerations=(*own.tolerations, CORDON) if cordoned else own.tolerations,
        cpus=max(1, int(min(cpu / 2, SHARE.cpus))) if cpu else SHARE.cpus,
        memory_gib=max(1, int(min(memory / GIB / 2, SHARE.memory_gib))) if cpu else SHARE.memory_gib,
    )


# ---- who with whom -------------------------------------------------------------------------------------------------


def groups(plan: Plan, names: Sequence[str], shapes: Mapping[str, Shape]) -> list[tuple[Shape, list[str]]]:
    """The nodes to pair, per shape. Without ``names`` all that are not excluded, of shapes with two or more. Raises
    InputError without a pair."""
    plan.require_rdma("ib_write_bw")
    known = {node.name: node for node in plan.nodes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The plan has no node {listed(unknown)}.")
    found: dict[str, list[str]] = {}
    for node in [known[name] for name in dict.fromkeys(names)] or plan.nodes:
        if names or not node.excluded:
            found.setdefault(node.shape, []).append(node.name)
    paired = [(shapes[name], members) for name, members in found.items() if len(members) > 1]
    if not paired:
        raise InputError("ib_write_bw needs two healthy nodes of one shape; the plan has no such pair.")
    return paired


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Rounds of disjoint pairs, which run in parallel; an odd node is tested last, with the first node. InputError for
    fewer than two nodes."""
    if len(nodes) < 2:
        raise InputError(f"ib_write_bw needs two nodes, not {len(nodes)}.")
    pairs = list(zip(nodes[::2], nodes[1::2]))
    return [pairs] if len(nodes) % 2 == 0 else [pairs, [(nodes[0], nodes[-1])]]


def again(outcomes: Sequence[PairOutcome], limit: Optional[float]) -> list[Pair]:
    """Pairs of a suspect node with a node that has passed, to find the faulty node of a pair; as many as good nodes
    allow. A node that has failed with a good node is not tested again."""
    good = _good(outcomes, limit)
    tried = {node for item in outcomes for node, peer in _both(item.pair) if peer in good}
    open_ = dict.fromkeys(node for item in outcomes for node in item.pair if node not in good and node not in tried)
    return list(zip(good, open_))


def _good(outcomes: Sequence[PairOutcome], limit: Optional[float]) -> list[str]:
    """Nodes that have passed with at least one partner."""
    return list(dict.fromkeys(node for item in outcomes if not faults(item, limit) for node in item.pair))


def _both(pair: Pair) -> tuple[Pair, Pair]:
    return pair, (pair[1], pair[0])


_YES, _NO = ("true", "yes", "on", "1", "y", "t"), ("false", "no", "off", "0", "n", "f")
"""What Ansible takes as a boolean, which this input was."""


def dmabuf_nodes(
    plan: Plan,
    hosts: Mapping[str, Json],
    asked: str,
    kernels: Optional[Mapping[str, str]] = None,
    loads: Optional[Collection[str]] = None,
) -> frozenset[str]:
    """The nodes to test through DMA-BUF. ``asked``: true and false hold for all nodes; auto follows the path that the
    host checks of this run found (``hosts``: their summaries), and where they found none, the plan and the node's
    kernel: nvidia_peermem only where the driver's pods load it, or the kernel (``kernels``) has no DMA-BUF. ``loads``:
    nodes whose driver's pod loads it by now, None = all."""
    word = asked.lower()
    if word not in ("auto", *_YES, *_NO):
        raise InputError(f"dmabuf must be auto, true or false, not {asked!r}.")
    if word != "auto":
        return frozenset(node.name for node in plan.nodes if word in _YES)

    def path(name: str) -> str:
        found, kernel = (hosts.get(name) or {}).get("gpudirect"), (kernels or {}).get(name, "")
        if found in ("dmabuf", "peermem"):
            return str(found)
        loaded = plan.peermem and (loads is None or name in loads)
        return "peermem" if loaded or (kernel and versions.older(kernel, DMABUF_KERNEL)) else "dmabuf"

    return frozenset(node.name for node in plan.nodes if path(node.name) == "dmabuf")


# ---- the pods ------------------------------------------------------------------------------------------------------


def options(test: PairTest) -> list[str]:
    """Options of ib_write_bw for server and client, with NCCL's GID index, traffic class and service level."""
    env = test.shape.nccl_env
    found = ["-F", "--report_gbits", "-s", str(test.size), "-q", str(test.queue_pairs), "-D", str(test.seconds)]
    found += ["-x", env.get("NCCL_IB_GID_INDEX", "3")]
    if "NCCL_IB_TC" in env:
        found.append(f"--tclass={env['NCCL_IB_TC']}")
    if env.get("NCCL_IB_SL", "0") != "0":
        found += ["-S", env["NCCL_IB_SL"]]
    return found


def script(test: PairTest) -> str:
    """Script of both pods. A port's RDMA device is found by its PCI address, for a VF by the address of its PF."""
    return f"""set -u
export CUDA_DEVICE_ORDER=PCI_BUS_ID
command -v ib_write_bw >/dev/null || {{ echo "gpuops: perftest: the image has no ib_write_bw"; exit {NO_PROGRAM}; }}
hca_of() {{
  for link in device device/physfn; do
    for path in /sys/class/infiniband/*; do
      found=$(readlink -f "$path/$link")
      [ "${{found##*/}}" != "$1" ] || {{ echo "${{path##*/}}"; return; }}
    done
  done
}}
rail() {{
  set -- ib_write_bw -d "$2" -p $(({PORT} + $1)) {shlex.join(options(test))} ${{MEMORY//GPU/$3}}
  if [ -z "$PEER" ]; then timeout {test.limit} "$@"; return; fi
  began=$SECONDS
  while :; do
    said=$(timeout {test.limit} "$@" "$PEER" 2>&1)
    code=$?
    case $said in
      *"Couldn't connect"*|*"Connection refused"*)
        [ $((SECONDS - began)) -ge {PATIENCE} ] || {{ sleep 1; continue; }} ;;
    esac
    echo "$said"
    return $code
  done
}}
folder=$(mktemp -d)
for entry in $RAILS; do
  IFS=, read -r number pci gpu <<<"$entry"
  hca=$(hca_of "$pci")
  (
    echo "gpuops: rail $number hca ${{hca:-none}} gpu $gpu"
    if [ -n "$hca" ]; then
      rail "$number" "$hca" "$gpu" 2>&1
    else
      echo "gpuops: no RDMA device for port $pci"; false
    fi
    echo "gpuops: rail $number exit $?"
  ) >"$folder/$number" &
done
wait
for entry in $RAILS; do cat "$folder/${{entry%%,*}}"; done
"""


def memory(test: PairTest, node: str) -> str:
    """ib_write_bw's options for the memory of a node's pod, GPU standing for the number; "" for host memory."""
    # ib_write_bw rejects --use_cuda_dmabuf before --use_cuda (perftest issue 336).
    return ("--use_cuda=GPU" + (" --use_cuda_dmabuf" if node in test.dmabuf else "")) if test.cuda else ""


def files(test: PairTest) -> Json:
    """Returns the ConfigMap with the pods' script."""
    meta = {"name": test.files, "namespace": test.namespace, "labels": _labels(test)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"perftest.sh": script(test)}}


def pod(test: PairTest, number: int, node: str, peer: str = "") -> Json:
    """The server pod of pair ``number``, or its client with ``peer``, the server's address."""
    shape, role = test.shape, "client" if peer else "server"
    rails = " ".join(f"{pf.rail},{pf.pci},{pf.gpu}" for pf in shape.pfs)
    env = {"PEER": peer, "RAILS": rails, "MEMORY": memory(test, node)}
    alone = test.fabric.mode.on_host(shape)
    own = replace(test.fabric, gpus=shape.gpu_count, vfs=shape.vf_count, host_network=alone)
    meta: Json = {"name": f"{test.files}-{number}-{role}", "namespace": test.namespace, "labels": _labels(test)}
    if own.annotations():
        meta["annotations"] = own.annotations()
    container = {
        "name": "perftest",
        "image": test.image,
        "command": ["/bin/bash", "/etc/gpuops/perftest.sh"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": own.resources(),
        "securityContext": own.security(),
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [{"name": "files", "mountPath": "/etc/gpuops"}, *own.mounts()],
    }
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "activeDeadlineSeconds": test.limit + 600,
        "terminationGracePeriodSeconds": 2,
        "priorityClassName": test.priority_class,
        **own.admission(),
        **own.net(),
        "affinity": _on(node),
        "volumes": [{"name": "files", "configMap": {"name": test.files}}, *own.volumes()],
        "containers": [container],
    }
    return extras.dressed({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, own.extras)


def _on(node: str) -> Json:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _labels(test: PairTest) -> dict[str, str]:
    return {**OWNED, NAME_LABEL: APP, PERFTEST_LABEL: test.suffix, **run_labels(test.suffix)}


# ---- the output ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rail:
    """One port's result; ``gbits`` is the average in Gb/s, or None with the reason in ``error``."""

    rail: int
    hca: str
    gpu: int
    gbits: Optional[float] = None
    error: str = ""


@dataclass(frozen=True)
class PairOutcome:
    """Results of a pair's client; ``why`` is the reason if there is no output at all."""

    pair: Pair
    rails: tuple[Rail, ...] = ()
    why: str = ""


_HEAD = re.compile(r"^gpuops: rail (\d+) hca (\S+) gpu (\d+)$")
_END = re.compile(r"^gpuops: rail (\d+) exit (\d+)$")
_UNIT = re.compile(r"#bytes\s+#iterations\s+BW peak\[(MB|Gb)/sec\]\s+BW average\[(?:MB|Gb)/sec\]")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+\.\d+)\s+(\d+\.\d+)\s+(\d+\.\d+)(?:\s+\d+\.\d+)*\s*$")
_TROUBLE = re.compile(
    r"couldn't|could not|unable to|failed|fail to|failure|error|unrecognized option|cannot|not found|no RDMA device|"
    r"has no|not supported|refused|timed out|invalid",
    re.IGNORECASE,
)

_NO_SERVER = re.compile(r"couldn't connect|refused|exchange data|from socket", re.IGNORECASE)
"""What a client says of a server that is not there, or has gone."""

_MEMORY = re.compile(r"allocate MR|create MR|DMA-BUF|init memory", re.IGNORECASE)
"""ib_write_bw's errors when it cannot register GPU memory."""


def bandwidth(lines: Iterable[str]) -> Optional[float]:
    """Average bandwidth of the last row of ib_write_bw's table, Gb/s; None without a row. perftest's MB is 2^20 bytes,
    its Gb 1e9 bits."""
    unit, found = "", None
    for line in lines:
        head = _UNIT.search(line)
        if head:
            unit = head[1]
            continue
        row = _ROW.match(line)
        if row and unit:
            average = float(row[4])
            found = average if unit == "Gb" else average * MIB * 8 / 1e9
    return found


def trouble(lines: Iterable[str]) -> str:
    """The first line that reports an error, cut at 200 characters; "" without one."""
    return next((" ".join(line.split())[:200] for line in lines if _TROUBLE.search(line)), "")


def parse(text: str) -> tuple[Rail, ...]:
    """The results in a client's log. A port without its end mark has an error, whatever it printed."""
    rails: list[Rail] = []
    head: Optional[re.Match[str]] = None
    held: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins, ends = _HEAD.match(line), _END.match(line)
        if ends and head and ends[1] == head[1]:
            rails.append(_rail(head, held, int(ends[2])))
            head, held = None, []
        elif begins:
            rails += [_torn(head)] if head else []
            head, held = begins, []
        elif head:
            held.append(line)
    return (*rails, *([_torn(head)] if head else []))


def outcome(pair: Pair, text: str, shape: Shape) -> PairOutcome:
    """The outcome in a client's log; ports of the shape that are not in it have an error."""
    rails = parse(text)
    if not rails:
        return PairOutcome(pair, (), trouble(text.splitlines()) or "its client printed nothing")
    missing = {pf.rail for pf in shape.pfs} - {item.rail for item in rails}
    return PairOutcome(pair, (*rails, *(Rail(rail, "", 0, None, "not in the output") for rail in sorted(missing))))


def server_outcome(pair: Pair, text: str, shape: Shape) -> PairOutcome:
    """The outcome of a pair whose server ended before its client, by the server's log."""
    found = outcome(pair, text, shape)
    errors = [_of_server(pair, rail.error or "it ended early") for rail in found.rails]
    rails = tuple(replace(rail, gbits=None, error=error) for rail, error in zip(found.rails, errors))
    return replace(found, rails=rails, why=found.why and _of_server(pair, found.why))


def with_server(client: PairOutcome, text: str) -> PairOutcome:
    """The client's outcome with the error of the server's log where the client knows only that the server has gone."""
    errors = {rail.rail: rail.error for rail in parse(text) if rail.error}
    rails = tuple(
        replace(rail, error=_of_server(client.pair, errors[rail.rail]))
        if rail.rail in errors and _NO_SERVER.search(rail.error)
        else rail
        for rail in client.rails
    )
    return replace(client, rails=rails)


def _of_server(pair: Pair, error: str) -> str:
    return f"its server on {pair[0]}: {error}"


def _rail(head: re.Match[str], lines: Sequence[str], code: int) -> Rail:
    number, hca, gpu = int(head[1]), head[2], int(head[3])
    value = bandwidth(lines)
    if code == 0 and value is not None:
        return Rail(number, hca, gpu, value)
    why = trouble(lines) or (f"ib_write_bw ended with {code}" if code else "ib_write_bw printed no result")
    return Rail(number, hca, gpu, None, why)


def _torn(head: re.Match[str]) -> Rail:
    return Rail(int(head[1]), head[2], int(head[3]), None, "the output ends in the middle")


# ---- the verdict ---------------------------------------------------------------------------------------------------


def threshold(
    table: Json, shape: Shape, before: Optional[Mapping[str, Optional[float]]] = None
) -> tuple[Optional[float], str]:
    """(Gb/s per port, source) from files/perftest.yml, or a little below what was measured ``before`` (Gb/s by shape)
    where that is more; (None, reason) if neither has the shape."""
    measured = float((before or {}).get(shape.name) or 0)
    earlier = (measured * WORSE, f"{1 - WORSE:.0%} below the {measured:.1f} Gb/s of an earlier measurement")
    for row in table["thresholds"]:
        if shape.name in row["shapes"]:
            return max((float(row["gbits"]), str(row["source"])), earlier)
    return earlier if measured else (None, f"the bandwidth per port of {shape.name} is unknown")


def faults(outcome: PairOutcome, limit: Optional[float]) -> dict[int, str]:
    """Rail -> its fault; {-1: reason} for a pair without output."""
    if outcome.why or not outcome.rails:
        return {-1: outcome.why or "no output"}
    found = {}
    for item in outcome.rails:
        if item.gbits is None:
            found[item.rail] = item.error
        elif limit is not None and item.gbits < limit:
            found[item.rail] = f"{item.gbits:.1f} Gb/s"
    return found


def judge(
    outcomes: Sequence[PairOutcome], shape: Shape, table: Json, before: Optional[Mapping[str, Optional[float]]] = None
) -> Json:
    """``{verdict, reason, threshold, source, worst, findings}`` of all pairs, including those of ``again``.

    ``verdict``: pass, fail, incomplete (a pair without output), unjudged (all ports ran, but there is no threshold).
    A node is reported if its rail fails with two partners; if only one was possible, both nodes are, with a note.
    """
    limit, source = threshold(table, shape, before)
    findings = _findings(outcomes, limit, len(shape.pfs))
    values = [rail.gbits for item in outcomes for rail in item.rails if rail.gbits is not None]
    worst = min(values, default=None)
    severities = {item.severity for item in findings}
    count = len({node for item in outcomes for node in item.pair})
    if "error" in severities:
        bad = list(dict.fromkeys(item.subject for item in findings if item.severity == "error"))
        verdict, reason = "fail", f"{len(bad)} of {count} nodes: {listed(bad)}: {findings[0].found}"
    elif "unknown" in severities:
        verdict, reason = "incomplete", f"{findings[0].subject}: {findings[0].found}"
    elif limit is None:
        verdict, reason = "unjudged", source
    else:
        verdict = "pass"
        reason = f"{count} nodes, all {len(shape.pfs)} ports, slowest {worst or 0:.1f} Gb/s of {limit:g} at least"
    return {
        "verdict": verdict,
        "reason": reason,
        "threshold": limit,
        "source": source,
        "worst": worst,
        "findings": findings,
    }


def _findings(outcomes: Sequence[PairOutcome], limit: Optional[float], ports: int) -> list[Finding]:
    good = _good(outcomes, limit)
    tries: dict[str, dict[str, dict[int, str]]] = {}
    for item in outcomes:
        for node, peer in _both(item.pair):
            if node not in good:
                tries.setdefault(node, {})[peer] = faults(item, limit)
    findings = []
    for node, found in tries.items():
        with_good = {peer: rails for peer, rails in found.items() if peer in good}
        findings.append(_finding(node, with_good or found, bool(with_good), limit, ports))
    return sorted(findings, key=lambda item: item.severity != "error")


def _finding(
    node: str, tries: Mapping[str, Mapping[int, str]], sure: bool, limit: Optional[float], ports: int
) -> Finding:
    expected = f"at least {limit:g} Gb/s on each of {ports} ports" if limit else f"a result on each of {ports} ports"
    peers = " and ".join(tries)
    rails = {rail: why for found in tries.values() for rail, why in found.items()}
    if -1 in rails:
        return finding("perftest.none", node, f"with {peers}: {rails[-1]}", expected=expected)
    memory = next((why for why in rails.values() if _MEMORY.search(why)), "")
    if memory:
        return finding("perftest.memory", node, f"with {peers}: {memory}", expected=expected)
    shown = listed([f"rail {rail}: {rails[rail]}" for rail in sorted(rails)], separator="; ")
    doubt = "" if sure else "; a third node that passes is needed to find out which of the two is faulty"
    return finding("perftest.rail", node, f"with {peers}: {shown}{doubt}", expected=expected)


ORDER = ("fail", "incomplete", "unjudged", "pass")
"""Verdicts, the worst first."""


def predicted(would: Sequence[str]) -> Json:
    """The task's result in check mode. ``would``: the pairs that it would run."""
    return {"changed": True, "verdict": "unjudged", "reason": "check mode: no pod was created", "would": list(would)}


def result(tests: Sequence[Json], required: bool) -> Json:
    """The task's result: the worst verdict of all shapes, and each shape's without its pairs. ``required``: failed
    unless it is a pass."""
    worst = min(tests, key=lambda test: ORDER.index(test["verdict"]))
    verdict, reason = worst["verdict"], f"{worst['shape']}: {worst['reason']}"
    shown = [{key: value for key, value in test.items() if key != "pairs"} for test in tests]
    slowest = {test["shape"]: test.get("worst") for test in tests}
    failed = required and verdict != "pass"
    more = {"failed": True, "msg": f"ib_write_bw: {verdict}: {reason}"} if failed else {}
    return {"changed": True, "verdict": verdict, "reason": reason, "tests": shown, "slowest": slowest, **more}
