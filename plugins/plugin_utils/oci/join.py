# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which instances of a pool have become nodes, and why one has not. PRIVATE to the collection.

A cause is ``proven`` by evidence from OCI or the instance, ``likely`` when the evidence against it is missing,
``excluded`` by evidence against it, else ``open``. What could not be read excludes nothing. The console patterns are
those of Oracle's cloud-init for worker nodes (oci-hpc-oke files/oke-ubuntu-cloud-init.sh), of cloud-init, and of
Go's TLS and network errors, which the kubelet and ``oke bootstrap`` print.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import BROKEN, READY, WAITING, Status

PROVEN, LIKELY, OPEN, EXCLUDED = "proven", "likely", "open", "excluded"
RANK = (PROVEN, LIKELY, OPEN, EXCLUDED)
GONE = ("TERMINATED", "TERMINATING", "STOPPED", "STOPPING", "DELETED", "DELETING", "FAILING")
RUNNING = ("RUNNING", "ACTIVE", "UPDATING")
MANAGED, SELF_MANAGED = "node_pool", "cluster_network"
CAUSES = {
    "policy": "no CLUSTER_JOIN policy",
    "image": "image without bootstrap",
    "network": "security rules of the node's network",
    "endpoint": "wrong cluster CA or endpoint",
}
_BOOTED = re.compile(r"cloud-init .*finished at|Cloud-init v\. \S+ finished|^\S+ login:", re.IGNORECASE | re.MULTILINE)
_STARTED = re.compile(r"oke bootstrap|running bootstrap|gpuops-join: attempt|kubelet", re.IGNORECASE)
_JOINED = re.compile(r"oke bootstrap succeeded|gpuops-join: joined in attempt")
_LINES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        ("endpoint", r"x509: certificate|certificate signed by unknown authority|certificate verify failed"),
        ("endpoint", r"lookup \S+: no such host|could not resolve host: \S*\.oke\.|connect: connection refused"),
        ("policy", r"\b401\b.*unauthori[sz]ed|\b403\b.*forbidden|NotAuthorizedOrNotFound|not authorized to join"),
        ("image", r"\boke: (command )?not found|(oke-install\.sh|/usr/bin/oke): no such file|unsupported OS: "),
        ("image", r"gpuops-join: no bootstrap|unable to locate package oci-oke-node"),
        ("network", r":(6443|12250)\b.*(i/o timeout|timed out|no route to host|network is unreachable)"),
        ("network", r"(connection timed out|no route to host).*:(6443|12250)\b"),
    )
)


@dataclass(frozen=True)
class PoolInstance:
    """One instance of a pool. ``state``: OCI's, in capitals; ``error``: what OKE reports for a managed node."""

    id: str
    name: str
    state: str
    address: str = ""
    error: str = ""


@dataclass(frozen=True)
class JoinEvidence:
    """What could be read about one instance that does not join; None = not read, ``unread`` has the reason.

    ``rules``: findings on the security rules, empty = they allow what joining needs. ``policies``: findings on the
    statements that self-managed nodes need. ``endpoints``: addresses of the cluster's API server,
    without port. ``ca``: its certificate, PEM. ``metadata``: of the instance.
    """

    kind: str
    console: Optional[str] = None
    metadata: Optional[Mapping[str, str]] = None
    rules: Optional[Sequence[Finding]] = None
    policies: Optional[Sequence[Finding]] = None
    endpoints: Optional[Sequence[str]] = None
    ca: Optional[str] = None
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """One of CAUSES with its verdict and the evidence."""

    cause: str
    verdict: str
    why: str


# ---- who has joined --------------------------------------------------------------------------------------------------


def match(members: Iterable[PoolInstance], nodes: Iterable[NodeFacts]) -> dict[str, NodeFacts]:
    """Instance OCID -> its node: by provider ID, else by private address, which is the node's name on OKE."""
    listed = list(nodes)
    by_id = {node.provider_id.rpartition("/")[2]: node for node in listed if node.provider_id}
    by_address = {address: node for node in listed for address in (node.internal_ip, node.name) if address}
    found = {}
    for member in members:
        node = by_id.get(member.id)
        if node is None and member.address:
            other = by_address.get(member.address)
            node = other if other is not None and not other.provider_id else None
        if node is not None:
            found[member.id] = node
    return found


def statuses(
    members: Sequence[PoolInstance], nodes: Mapping[str, NodeFacts], wanted: int, causes: Mapping[str, str]
) -> dict[str, Status]:
    """States for a wait: ``instances`` (running out of ``wanted``), then ``joined/NAME``. ``causes``: OCID -> proven
    reason why an instance cannot join. A replaced node is not waited for: its instance is no longer listed."""
    there = [item for item in members if item.state not in GONE or item.id in nodes]
    running = [item for item in there if item.state in RUNNING]
    found = {"instances": Status(READY, progress=f"{len(running)}/{wanted}")}
    if len(running) < wanted:
        lost = [f"{item.name} is {item.state}" for item in members if item.state in GONE]
        why = f"{len(running)} of {wanted} are running" + (f"; {', '.join(lost[:3])}" if lost else "")
        found["instances"] = Status(WAITING, why, stuck=bool(lost), progress=f"{len(running)}/{wanted}")
    names = [item.name for item in there]
    for item in there:
        label = item.name if names.count(item.name) == 1 else f"{item.name}-{item.id[-11:]}"
        found[f"joined/{label}"] = _joined(item, nodes.get(item.id), causes.get(item.id, ""))
    return found


def _joined(member: PoolInstance, node: Optional[NodeFacts], cause: str) -> Status:
    if node is not None:
        why = "" if node.ready else f"node {node.name} is not Ready: {node.ready_reason or 'no reason given'}"
        return Status(READY if node.ready else WAITING, why)
    if cause:
        return Status(BROKEN, cause)
    if member.error:
        return Status(WAITING, f"OKE reports: {member.error}", stuck=True)
    return Status(WAITING, "running, not a node yet" if member.state in RUNNING else member.state.lower())


# ---- why one has not -------------------------------------------------------------------------------------------------


def causes(evidence: JoinEvidence) -> list[Cause]:
    """A verdict for each of CAUSES, the most certain first."""
    shown = _console(evidence)
    found = [shown.get(cause) or judge(evidence) for cause, judge in _JUDGES.items()]
    return sorted(found, key=lambda item: (RANK.index(item.verdict), tuple(CAUSES).index(item.cause)))


def explain(found: Sequence[Cause], instance: str, unread: Mapping[str, str]) -> tuple[str, bool]:
    """(diagnosis of one instance as text, whether a cause is proven)."""
    first = found[0]
    named = [item for item in found if item.verdict in (PROVEN, LIKELY)]
    rest = [item for item in found if item not in named]
    shown = [f"{CAUSES[item.cause]} ({'' if item.verdict == PROVEN else 'likely: '}{item.why})" for item in named]
    parts = [" and ".join(shown) or "neither OCI nor the console shows the cause"]
    for verdict, head in ((EXCLUDED, "Excluded"), (OPEN, "Unknown")):
        listed = [f"{CAUSES[item.cause]} ({item.why})" for item in rest if item.verdict == verdict]
        parts += [f"{head}: {'; '.join(listed)}"] if listed else []
    parts += [f"Could not be read: {'; '.join(f'{what}: {why}' for what, why in unread.items())}"] if unread else []
    if first.verdict != PROVEN:
        parts.append(
            f"Check oci compute console-history capture --instance-id {instance}, and on the host "
            "/var/log/cloud-init-output.log and journalctl -u kubelet"
        )
    return ". ".join(parts), first.verdict == PROVEN


def _console(evidence: JoinEvidence) -> dict[str, Cause]:
    """Causes that the instance's console proves; the last line of a kind counts, lines before a success do not."""
    found: dict[str, Cause] = {}
    text = evidence.console or ""
    joined = max((match.end() for match in _JOINED.finditer(text)), default=0)
    for line in text[joined:].splitlines():
        for cause, pattern in _LINES:
            if pattern.search(line):
                found[cause] = Cause(cause, PROVEN, f"console: {_short(line)}")
    if "image" not in found and (joined or _STARTED.search(text)):
        found["image"] = Cause("image", EXCLUDED, "the console shows that oke bootstrap ran")
    return found


def _short(line: str) -> str:
    text = re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", line)).strip()
    return cut(text, 200)


def _policy(evidence: JoinEvidence) -> Cause:
    if evidence.kind == MANAGED:
        return Cause("policy", EXCLUDED, "nodes of a managed pool need no policy")
    if evidence.policies is None:
        return Cause("policy", OPEN, "policies were not read")
    missing = [item.subject for item in evidence.policies if item.severity == "error"]
    if missing:
        return Cause("policy", PROVEN, f"missing: {'; '.join(missing[:3])}")
    if evidence.policies:
        return Cause("policy", OPEN, evidence.policies[0].found)
    return Cause("policy", EXCLUDED, "the text of a statement allows it")


def _image(evidence: JoinEvidence) -> Cause:
    script = _user_data(evidence.metadata)
    if evidence.kind == SELF_MANAGED and evidence.metadata is not None and script == "":
        return Cause("image", PROVEN, "the instance has no user_data that would run oke bootstrap")
    if evidence.console and _BOOTED.search(evidence.console):
        return Cause("image", LIKELY, "the console shows the end of cloud-init or a login, but no oke bootstrap")
    if script and "oke" not in script:
        return Cause("image", LIKELY, "its user_data does not mention oke bootstrap")
    return Cause("image", OPEN, "the console shows neither oke bootstrap nor the end of cloud-init")


def _network(evidence: JoinEvidence) -> Cause:
    if evidence.rules is None:
        return Cause("network", OPEN, "security rules were not read")
    bad = [item.found for item in evidence.rules if item.severity == "error"]
    if bad:
        return Cause("network", PROVEN, "; ".join(bad[:3]))
    if evidence.rules:
        return Cause("network", OPEN, evidence.rules[0].found)
    return Cause("network", EXCLUDED, "security lists and groups allow 6443 and 12250; routes were not checked")


def _endpoint(evidence: JoinEvidence) -> Cause:
    if evidence.kind == MANAGED:
        return Cause("endpoint", EXCLUDED, "OKE sets them on nodes of a managed pool")
    given = evidence.metadata or {}
    host, ca = given.get("apiserver_host", "").partition(":")[0], _pem(given.get("cluster_ca_cert", ""))
    known = [item.partition(":")[0] for item in evidence.endpoints or () if item]
    if host and known and host not in known:
        why = f"the instance has {host}, but the cluster's endpoints are {', '.join(known)}"
        return Cause("endpoint", PROVEN, why)
    if ca and evidence.ca and ca != _pem(evidence.ca):
        return Cause("endpoint", PROVEN, "the certificate in the instance's metadata is not the cluster's CA")
    if host and known and ca and evidence.ca:
        return Cause("endpoint", EXCLUDED, "the instance has the cluster's endpoint and CA")
    return Cause("endpoint", OPEN, "endpoint and CA of the instance could not both be compared")


_JUDGES = {"policy": _policy, "image": _image, "network": _network, "endpoint": _endpoint}


def _user_data(metadata: Optional[Mapping[str, str]]) -> Optional[str]:
    """Decoded; "" without any, None where it cannot be decoded (it may be compressed)."""
    text = (metadata or {}).get("user_data", "")
    try:
        return base64.b64decode(text, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _pem(text: str) -> str:
    """A certificate's base64 without armour and white space; instances are given PEM, or base64 of PEM."""
    if text and "BEGIN CERTIFICATE" not in text:
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            text = base64.b64decode(re.sub(r"\s", "", text), validate=True).decode("ascii")
    return re.sub(r"-----[^-]+-----|\s", "", text)


def instance_of(item: Json) -> PoolInstance:
    """A PoolInstance made from an entry of OCI's list: a node of a node pool, or an instance of a cluster network."""
    error = item.get("nodeError") or {}
    reported = ": ".join(str(error[key]) for key in ("code", "message") if error.get(key))
    state = str(item.get("lifecycleState") or item.get("state") or "").upper()
    name = item.get("name") or item.get("displayName") or item["id"]
    return PoolInstance(item["id"], name, state, item.get("privateIp") or "", reported)
