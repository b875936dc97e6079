# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the traffic of a running job went over RDMA, with GPUDirect, on all rails. PRIVATE to the collection.

NCCL's INFO lines in the pods' logs show all of it. What a line shows may convict; what no line shows does only where
the log is whole: lines are lost, torn, or printed by some ranks only. Without lines the ports' counters of the nodes
show traffic per rail, but not what it is or whose memory it came from, so that they can convict and never acquit.
Whatever was not seen is ``unknown``, by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape, dicts, is_int, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed, short_host
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.starts import HostStarts, Start
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import NETWORKS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.pod_gpu import is_gpu

MOVED = 1_000_000
"""Bytes that a rail must have moved in each direction between two readings to count as used: more than keepalives."""
BYTES = {"tx_bytes_phy": 1, "rx_bytes_phy": 1, "port_xmit_data": 4, "port_rcv_data": 4}
"""Counter of a port -> bytes of one; InfiniBand counts words of four."""
COUNTERS = (("tx_bytes_phy", "rx_bytes_phy"), ("port_xmit_data", "port_rcv_data"))
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"


@dataclass(frozen=True)
class LoggedPod:
    """A pod of the job as it was when its log was read."""

    name: str
    node: str = ""
    host: str = ""
    """Name under which its processes print: its own, or the node's on the host network."""
    gpus: int = 0
    rails: Optional[int] = None
    """RDMA devices that it has; None = unknown."""
    restarts: int = 0
    trouble: str = ""
    """Why nothing can be said of it: being deleted, waiting, replaced; "" = none."""
    debug: str = ""
    """Where NCCL's output goes instead of the log; "" = into it."""
    ended: bool = False
    """Its controller deleted it when the job ended: only another pod's log can show its traffic."""


@dataclass(frozen=True)
class Row:
    """What was seen of one pod. ``by``: log, counters, or "" for nothing."""

    pod: str
    node: str
    verdict: str = UNKNOWN
    by: str = ""
    net: str = ""
    rails: int = 0
    wanted: Optional[int] = None
    gpudirect: Optional[bool] = None
    why: str = ""
    earlier: tuple[str, ...] = ()
    """Verdicts on the starts of its ranks before the last, which decides."""


@dataclass(frozen=True)
class Counters:
    """The RDMA ports of nodes, read twice. ``read``: node -> ``counters`` of its host document; ``unread``: node -> why
    there are none."""

    read: Mapping[str, Json] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobProof:
    verdict: str
    reason: str
    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = field(default_factory=tuple)


# ---- pods ------------------------------------------------------------------------------------------------------------


def seen(pod: Json, vf_resource: str, shape: Optional[Shape], lost: str = "", shared: bool = False) -> LoggedPod:
    """A Pod object, read. ``lost``: why its log is not that of this pod, or could not be read. ``shared``: whether one
    ``vf_resource`` stands for all ports of the node; so does one without a network, since VFs need them."""
    spec, status, meta = mapping(pod.get("spec")), mapping(pod.get("status")), mapping(pod.get("metadata"))
    asks = kinds.asks(spec)
    on_host = spec.get("hostNetwork") is True
    name, node = str(meta.get("name")), str(spec.get("nodeName") or "")
    states = dicts(status.get("containerStatuses"))
    variables = {key: value for one in dicts(spec.get("containers")) for key, value in reading.variables(one).items()}
    gpus = _gpus(spec)
    vfs, attached = asks.get(vf_resource, 0), NETWORKS in mapping(meta.get("annotations"))
    of_node = shared or not attached if vfs else on_host
    return LoggedPod(
        name=name,
        node=node,
        host=node if on_host else str(spec.get("hostname") or name),
        gpus=gpus,
        rails=_ports(shape, gpus) if of_node else vfs or None,
        restarts=sum(one["restartCount"] for one in states if is_int(one.get("restartCount"))),
        trouble=lost or _trouble(meta, status),
        debug=_file(variables.get("NCCL_DEBUG_FILE", "")),
    )


def _ports(shape: Optional[Shape], gpus: int) -> Optional[int]:
    """Ports of the node that belong to so many of its GPUs; None without a shape."""
    if shape is None or not shape.pfs or not shape.gpu_count:
        return None
    return max(1, len(shape.pfs) * min(gpus, shape.gpu_count) // shape.gpu_count)


def _trouble(meta: Json, status: Json) -> str:
    phase = str(status.get("phase") or "Unknown")
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if phase not in ("Running", "Succeeded", "Failed"):
        waiting = [mapping(mapping(one.get("state")).get("waiting")) for one in dicts(status.get("containerStatuses"))]
        reasons = [str(one["reason"]) for one in waiting if one.get("reason")]
        return f"it is {phase}{f' ({listed(reasons, 2)})' if reasons else ''}"
    return ""


def wanted(job: Json) -> Optional[int]:
    """Number of pods with GPUs that the job's templates ask for; None where something else decides it: a runtime, the
    nodes, or Ray's autoscaler."""
    spec = mapping(job.get("spec"))
    if mapping(spec.get("rayClusterSpec", spec)).get("enableInTreeAutoscaling"):
        return None
    numbers = [one.replicas for one in kinds.templates(job) if _gpus(one.spec) and not one.partial]
    return sum(one or 0 for one in numbers) if numbers and None not in numbers else None


def deleted(job: Json, pods: Sequence[Json], logs: Mapping[str, Sequence[HostStarts]]) -> list[Json]:
    """The pods with GPUs that went when the job ended, as its templates made them; [] while a pod of it runs.

    The MPI Operator and Volcano delete workers and leave the launcher, whose log has the lines of all ranks. On the
    host network these name nodes, so that the nodes without a pod of the job are the workers'.
    """
    found = kinds.templates(job)
    phases = {str(mapping(one.get("status")).get("phase")) for one in pods}
    if kinds.LAUNCHER not in [one.role for one in found] or not phases <= {"Succeeded", "Failed"}:
        return []
    there = {str(one["metadata"]["name"]) for one in pods}
    gone = [
        (name, one)
        for one in found
        for index in range(one.replicas or 0)
        if _gpus(one.spec) and (name := f"{job['metadata']['name']}-{one.name}-{index}".lower()) not in there
    ]
    ranks = [spec for one in pods if _gpus(spec := mapping(one.get("spec")))]
    hosts = sorted(_hosts(logs) - {str(spec.get("nodeName")) for spec in ranks})
    on_host = sum(1 for _name, one in gone if one.spec.get("hostNetwork") is True)
    # of more hosts than pods nobody knows whose is whose
    nodes = iter(hosts if len(hosts) <= on_host else ())
    made = []
    for name, one in gone:
        place = {"nodeName": next(nodes, "")} if one.spec.get("hostNetwork") is True else {}
        meta = {"name": name, "annotations": one.annotations}
        made.append({"metadata": meta, "spec": {**one.spec, **place}, "status": {"phase": "Succeeded"}})
    return made


def names(node: Json) -> tuple[str, tuple[str, ...]]:
    """A Node's name, and the others under which its processes may print: OKE names nodes by address, and NCCL prints
    what the system is called."""
    meta, status = mapping(node.get("metadata")), mapping(node.get("status"))
    labels = mapping(meta.get("labels"))
    found = [str(labels[key]) for key in ("kubernetes.io/hostname", "hostname") if labels.get(key)]
    found += [str(one["address"]) for one in dicts(status.get("addresses")) if one.get("address")]
    name = str(meta.get("name"))
    return name, tuple(dict.fromkeys(one for full in found for one in (full, short_host(full)) if one != name))


def strange(logs: Mapping[str, Sequence[HostStarts]], pods: Sequence[Json]) -> bool:
    """Whether logs name hosts that are neither pods nor the nodes of pods."""
    known = {str(mapping(one.get("metadata")).get("name")) for one in pods}
    known |= {str(mapping(one.get("spec")).get("nodeName")) for one in pods}
    return any(host not in known and short_host(host) not in known for host in _hosts(logs))


def by_node(
    logs: Mapping[str, Sequence[HostStarts]], nodes: Sequence[tuple[str, tuple[str, ...]]]
) -> dict[str, Sequence[HostStarts]]:
    """The logs with nodes' names where a host is called by another. ``nodes``: of ``names``. A name that two
    nodes have is left."""
    owners: dict[str, set[str]] = {}
    for name, others in nodes:
        for one in (name, *others):
            owners.setdefault(one, set()).add(name)
    of = {one: next(iter(own)) for one, own in owners.items() if len(own) == 1}

    def named(host: str) -> str:
        return of.get(host) or of.get(short_host(host)) or host

    return {pod: [dataclasses.replace(one, host=named(one.host)) for one in hosts] for pod, hosts in logs.items()}


def _hosts(logs: Mapping[str, Sequence[HostStarts]]) -> set[str]:
    return {one.host for hosts in logs.values() for one in hosts}


def _gpus(spec: Json) -> int:
    return sum(count for key, count in kinds.asks(spec).items() if is_gpu(key))


def _file(value: str) -> str:
    return "" if value in ("", "/dev/stderr", "/dev/stdout", "stderr", "stdout") else value


# ---- the job ---------------------------------------------------------------------------------------------------------


def prove(
    job: str,
    pods: Sequence[LoggedPod],
    logs: Mapping[str, Sequence[HostStarts]],
    counters: Counters,
    shape: Optional[Shape],
    ending: str = "",
    number: Optional[int] = None,
) -> JobProof:
    """The verdict: ``fail`` if a pod's traffic is shown to have missed the fabric, ``pass`` if all of it is shown to
    have taken it, else ``unknown``. ``logs``: pod -> the hosts that its log names; ``ending``: why the job cannot be
    judged, such as a namespace that is terminating; ``number``: of pods with GPUs that it must have, if known."""
    ranks = [one for one in pods if one.gpus]
    if not ranks:
        none = "its only pod has no GPU" if len(pods) == 1 else f"none of its {len(pods)} pods has a GPU"
        why = f"{none}; those of a job that has ended may be deleted"
        return _nothing(job, why)
    evidence = dict(_by_pod(ranks, logs))
    stale = _stale(evidence)
    rows, found = [], []
    for one in ranks:
        row, faults = _judged(one, evidence.get(one.name), stale.get(one.name, ""), counters, shape)
        rows.append(row)
        found += faults
    if ending:
        found.append(finding("prove.ending", job, ending, expected="a job that still runs"))
    elif number is not None and len(ranks) < number:
        found.append(finding("prove.pods", job, f"{len(ranks)} of its {number} pods with GPUs exist", expected="all"))
    elif len(ranks) == 1:
        found.append(finding("prove.one-pod", job, "it has one pod with GPUs, so it does not need the fabric"))
    verdict = FAIL if FAIL in [row.verdict for row in rows] else UNKNOWN if found else PASS
    return JobProof(verdict, _reason(verdict, rows, found), tuple(rows), tuple(found))


def silent(pods: Sequence[LoggedPod], logs: Mapping[str, Sequence[HostStarts]]) -> list[str]:
    """Nodes of pods with GPUs whose traffic the logs do not show, or in part: their counters are worth reading."""
    ranks = [one for one in pods if one.gpus and not one.ended]
    evidence = dict(_by_pod(ranks, logs))
    unclear = [
        one for one in ranks if one.name not in evidence or _by_log(one, evidence[one.name])[0].verdict == UNKNOWN
    ]
    return sorted({one.node for one in unclear if one.node})


def _nothing(job: str, why: str) -> JobProof:
    return JobProof(UNKNOWN, why, (), (finding("prove.pods", job, why, expected="running pods with GPUs"),))


def _reason(verdict: str, rows: Sequence[Row], found: Sequence[Finding]) -> str:
    if verdict == PASS:
        rails = sorted({row.rails for row in rows})
        return f"NET/IB with GPUDirect RDMA on {listed(str(one) for one in rails)} rails of each of {len(rows)} pods"
    worst = [one for one in found if (one.severity == "error") == (verdict == FAIL)]
    return f"{worst[0].subject}: {worst[0].found}" + (f", and {len(worst) - 1} more" if len(worst) > 1 else "")


def _by_pod(pods: Sequence[LoggedPod], logs: Mapping[str, Sequence[HostStarts]]) -> Iterator[tuple[str, HostStarts]]:
    """(pod, its host's evidence). A launcher's log has the lines of all hosts; a rank's own log those of its own, under
    whatever name."""
    known: dict[str, str] = {}
    for one in pods:
        known.update({name: one.name for name in (one.name, one.host, short_host(one.host)) if name})
    best: dict[str, HostStarts] = {}
    for printer, hosts in logs.items():
        for host in hosts:
            alone = printer if len(hosts) == 1 and any(one.name == printer for one in pods) else ""
            pod = alone or known.get(host.host) or known.get(short_host(host.host), "")
            if pod and (pod not in best or host.last.ranks >= best[pod].last.ranks):
                best[pod] = host
    yield from best.items()


def _stale(evidence: Mapping[str, HostStarts]) -> dict[str, str]:
    """Pod -> why the last start in its log is not the job's last, by the communicators that all ranks share, or by the
    number of starts where NCCL prints none of their ids."""
    earlier = {one for host in evidence.values() for start in host.starts[:-1] for one in start.comms}
    behind = any(host.last.comms & earlier for host in evidence.values())
    most = max((len(host.starts) for host in evidence.values()), default=1)
    found = {}
    for pod, host in evidence.items():
        others = {one for name, other in evidence.items() if name != pod for one in other.last.comms}
        if host.mixed:
            found[pod] = host.mixed
        elif host.last.comms & earlier:
            found[pod] = "other pods' ranks have started again since, and its log does not show that"
        elif host.last.comms and others and not behind and not host.last.comms & others:
            found[pod] = "no other pod's last start shares a communicator with its last start"
        elif not host.last.comms and len(host.starts) < most:
            found[pod] = f"its log shows {len(host.starts)} starts of its ranks, another pod's log {most}"
    return found


def _judged(
    pod: LoggedPod, host: Optional[HostStarts], stale: str, counters: Counters, shape: Optional[Shape]
) -> tuple[Row, list[Finding]]:
    row, found = (None, []) if host is None else _by_log(pod, host)
    if row is not None and stale:
        # the evidence is that of another start
        found = [finding("prove.start", pod.name, stale, expected="the lines of every pod's last start")]
        row = dataclasses.replace(row, verdict=UNKNOWN)
    if (row is None or row.verdict == UNKNOWN) and pod.node in counters.read and not pod.ended:
        counted, faults = _by_counters(pod, counters.read[pod.node], shape)
        if row is None or not (host and host.shows) or counted.verdict == FAIL:
            row, found = dataclasses.replace(counted, earlier=row.earlier if row else ()), faults
    elif not (host and host.shows):
        # What became of the pod says enough.
        found = found if pod.trouble or stale else [_silent(pod, host, counters.unread.get(pod.node, ""))]
    row = row or Row(pod.name, pod.node, wanted=pod.rails)
    if pod.restarts:
        what = f"it has restarted {pod.restarts} times; its log is that of the last start only"
        found.append(finding("prove.restarted", pod.name, what, expected="no restart"))
    if pod.trouble:
        found.append(finding("prove.gone", pod.name, pod.trouble, expected="a running pod"))
    verdict = UNKNOWN if row.verdict == PASS and found else row.verdict
    return dataclasses.replace(row, verdict=verdict, why=row.why or "; ".join(one.found for one in found)), found


def _by_log(pod: LoggedPod, host: HostStarts) -> tuple[Row, list[Finding]]:
    """By the last start, with the verdicts on those before it."""
    earlier = tuple(_of_start(pod, host, one)[0].verdict for one in host.starts[:-1])
    row, found = _of_start(pod, host, host.last)
    return dataclasses.replace(row, earlier=earlier), found


def _of_start(pod: LoggedPod, host: HostStarts, start: Start) -> tuple[Row, list[Finding]]:
    """What is seen may convict; what is not seen does only where nothing else is missing."""
    row = Row(pod.name, pod.node, wanted=pod.rails)
    if not start.net and not start.used:
        return row, []
    found = list(_faults(pod, start)) if start.named or start.ranks <= pod.gpus else []
    lost = _lost(pod, start)
    if lost and not any(one.severity == "error" for one in found):
        torn = f"; {host.torn} lines of NCCL are torn or overwritten" if host.torn else ""
        found.append(finding("prove.info", pod.name, lost + torn, expected="the lines of all ranks"))
    wrong = any(one.severity == "error" for one in found)
    verdict = FAIL if wrong else UNKNOWN if found else PASS
    rails, direct = len(start.used), start.direct
    return dataclasses.replace(row, verdict=verdict, by="log", net=start.net, rails=rails, gpudirect=direct), found


def _faults(pod: LoggedPod, start: Start) -> Iterator[Finding]:
    if start.net == "Socket":
        yield finding("prove.socket", pod.name, "NCCL used TCP (NET/Socket)", expected="NET/IB")
        return
    if start.net != "IB":
        what = f"NCCL used {start.net}, which is not supported"
        yield finding("prove.network", pod.name, what, expected="NET/IB")
        return
    if start.off and start.off_sure:
        what = f"GPUDirect RDMA was off on {listed(start.off)}: data was copied through host memory"
        yield finding("prove.no-gdr", pod.name, what, expected="GDRDMA")
    if pod.rails is None:
        what = f"channels went over {len(start.used)} HCAs; their number is unknown"
        yield finding("prove.rails-unknown", pod.name, what, expected="the shape of its node")
    elif start.torn_list:
        return
    elif start.found and len(start.found) < pod.rails:
        what = f"NCCL found {len(start.found)} of {pod.rails} HCAs"
        yield finding("prove.rails", pod.name, what, expected=f"{pod.rails}")
    elif len(start.used) < pod.rails and start.whole and min(start.ranks, start.named) >= pod.gpus:
        idle = [one for one in start.found if one not in start.used]
        over = f"; no channel went over {listed(idle)}" if idle else ""
        what = f"channels went over {len(start.used)} of {pod.rails} HCAs{over}"
        yield finding("prove.rails", pod.name, what, expected=f"{pod.rails}")


def _lost(pod: LoggedPod, start: Start) -> str:
    """Which lines a pass would need, and the log does not have; "" = none."""
    if start.net != "IB":
        return ""
    if start.ranks > pod.gpus and not start.named:
        return f"{start.ranks} ranks on {pod.gpus} GPUs, and no line that shows of which start each is"
    if start.ranks < pod.gpus:
        return f"INFO lines of {start.ranks} of {pod.gpus} ranks"
    if start.named < pod.gpus:
        return f"lines about communicators of {start.named} of {pod.gpus} ranks"
    if start.quiet:
        return f"no line about the network of {start.quiet} of its processes"
    if start.direct is None:
        return "no line says whether GPUDirect RDMA was used"
    if start.off and not start.off_sure:
        lines = counted(start.off_lines, "line")
        return f"{lines} about channels over {listed(start.off)} end without GDRDMA: it was off there, or they are cut"
    if start.torn_list:
        return "lists of HCAs of its ranks differ in a name: one of them is torn"
    if len(start.used) < (pod.rails or 0):
        return f"channels were seen over {len(start.used)} of {pod.rails} HCAs, and lines about channels are missing"
    return ""


def _silent(pod: LoggedPod, host: Optional[HostStarts], unread: str) -> Finding:
    """``unread``: why the counters of its node could not be read; "" = they were not requested."""
    if pod.ended:
        what = "it was deleted when the job ended, and no log that is left has NCCL's INFO lines about its channels"
        return finding("prove.info", pod.name, what, expected="NCCL_DEBUG=INFO")
    if unread:
        what = (
            f"its log has no INFO line of NCCL about channels, and counters of {pod.node} could not be read: {unread}"
        )
        return finding("prove.counters", pod.name, what, expected="two readings of every port")
    if host is not None and host.last.ranks:
        what = "no channel of its ranks left the node"
    elif host is not None and len(host.starts) > 1:
        what = "its ranks have started again, and the log has no INFO line of NCCL about channels since"
    elif pod.debug:
        what = f"NCCL_DEBUG_FILE={pod.debug} keeps NCCL's lines out of the log"
    else:
        what = "its log has no INFO line of NCCL about channels, and its node's counters were not read"
    return finding("prove.info", pod.name, what, expected="NCCL_DEBUG=INFO")


# ---- counters --------------------------------------------------------------------------------------------------------


def _by_counters(pod: LoggedPod, counters: Json, shape: Optional[Shape]) -> tuple[Row, list[Finding]]:
    """Traffic of the node's RDMA ports, whosever it is: enough to see that fewer carry some than the pod has. Of a part
    of the node's GPUs it is not known which ports these are."""
    wanted = [pf.hca for pf in shape.pfs] if shape else []
    ports = [one for one in dicts(counters.get("ports")) if not wanted or one.get("hca") in wanted]
    by_hca = {str(one.get("hca")): one for one in ports}
    moved = {hca: _moved(by_hca.get(hca, {})) for hca in wanted or by_hca}
    unread = [hca for hca, count in moved.items() if count is None]
    reset = [hca for hca, count in moved.items() if count is not None and count < 0]
    busy = [hca for hca, count in moved.items() if count is not None and count >= MOVED]
    idle = [hca for hca in moved if hca not in (*unread, *reset, *busy)]
    need = None if pod.rails is None else min(pod.rails, len(moved))
    found: list[Finding] = []
    rates = _rates([moved[hca] or 0 for hca in busy], counters.get("interval"))
    node, of = pod.node, f"{len(busy)} of {len(moved)} RDMA ports of {pod.node}{rates}"
    if reset:
        what = f"counters of {listed(reset)} on {node} went back: they were reset between the two readings"
        found.append(finding("prove.counters", pod.name, what, expected="counters that only grow"))
    if unread or not moved:
        what = f"counters of {listed(unread) or 'all ports'} on {node} were not read twice"
        found.append(finding("prove.counters", pod.name, what, expected="two readings of every port"))
    if not found and not busy:
        what = f"no traffic on the RDMA ports of {node} between the two readings"
        found.append(finding("prove.idle", pod.name, what, expected="readings while the job communicates"))
    elif not found and need is None and idle:
        what = f"traffic on {of}; their number is unknown"
        found.append(finding("prove.rails-unknown", pod.name, what, expected="the shape of its node"))
    elif not found and need is not None and len(busy) < need:
        part = need < len(moved)
        what = f"traffic on {of}; {f'its {pod.gpus} GPUs have {need}' if part else f'none on {listed(idle)}'}"
        found.append(finding("prove.rails", pod.name, what, expected=f"{need}"))
    elif not found:
        what = f"traffic on {of}; counters do not show whose it is, nor GPUDirect"
        found.append(finding("prove.only-counters", pod.name, what, expected="NCCL_DEBUG=INFO"))
    verdict = FAIL if any(one.severity == "error" for one in found) else UNKNOWN
    return Row(pod.name, pod.node, verdict, "counters", "", len(busy), need), found


def _rates(moved: Sequence[int], seconds: object) -> str:
    """``, 38.1 to 41.0 GB/s each``, of the slower direction of each port; "" where nothing moved or the time is not
    known."""
    if not moved or not isinstance(seconds, (int, float)) or seconds <= 0:
        return ""
    least, most = (f"{count / seconds / 1e9:.1f}" for count in (min(moved), max(moved)))
    return f", {least if least == most else f'{least} to {most}'} GB/s each"


def _moved(port: Json) -> Optional[int]:
    """Bytes of the slower direction between two readings; negative if a counter went back, None if one is missing."""
    delta = mapping(port.get("delta"))
    for names in COUNTERS:
        values = [int(delta[name]) * BYTES[name] for name in names if is_int(delta.get(name))]
        if len(values) == len(names):
            return min(values)
    return None
