# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake OCI over HTTP on the loopback, for the real `oci` SDK (its clients take ``service_endpoint``).

It verifies signatures as the service does (RSA over the signed headers, digest of the body, clock skew of 5 minutes),
keeps state, pages its lists (``opc-next-page``), runs work requests on a clock that tests may advance, and fails on
demand: 429 without Retry-After, 500, capacity, not (yet) there. Standard library only.

    fake = FakeOci(); fake.trust(key_id, n, e); url = fake.start(); ...; fake.stop()

Services that live in other files are mounted: ``fake.register("/20180917", handler)``; ``handler(fake, request)`` gets
every signed request whose path begins so, and returns JSON, an ``Answer`` (bytes as body are sent as they are) or None
(not mine), or raises ``Refused``. ``request.raw`` is the body as it came. ``fake.work(...)`` makes work requests,
``fake.later(seconds, call)`` does something when the clock has passed; both happen at the next request.

Instances of pools, as who makes nodes of them sees them:

    fake.durations["NODEPOOL_CREATE"]       seconds until the pool has its instances (also CreateClusterNetwork,
                                            NODEPOOL_UPDATE, UpdateClusterNetwork, ...)
    fake.durations["boot"]                  seconds from then until an instance is RUNNING; 0: at once
    fake.durations["reset"]                 seconds that a RESET of an instance takes
    fake.watchers.append(call)              call(event) when an instance is RUNNING, was RESET, is TERMINATED
    fake.instance_events                    all events so far; over HTTP, unsigned: GET /fake/instances?after=<seq>
    POST /fake/clock {"advance": seconds}   unsigned, as GET /fake/calls ({"METHOD path": times}), POST /fake/end

An event: {seq, id (OCID = provider ID), state (RUNNING, RESET, TERMINATED), displayName, privateIp, shape,
availabilityDomain, faultDomain, compartmentId, clusterId (of OKE; "" where only the metadata tell), poolKind
(node_pool, cluster_network, ""), poolId, poolName, clusterNetworkId, computeClusterId, labels (initial node labels,
{}), metadata (with user_data, base64, of cluster networks), imageId, hpcIslandId, networkBlockId, localBlockId}. A node
pool's node is CREATING until then, and ACTIVE from then on; the pool's work request is done when its instances are
there.

What OCI refuses, the fake refuses: fake_oci_rules.md has each rule with its source. What is not public is marked "not
public" and chosen freely; callers must not depend on it. docs/oci.md lists it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import http.server
import itertools
import json
import re
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Optional

from support import fake_iam

Json = dict[str, Any]
SKEW = 300
"""Seconds by which the service accepts a Date to differ."""
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
"""DER prefix of a SHA-256 digest in PKCS#1 v1.5."""
_BODY = ("content-length", "content-type", "x-content-sha256")


class Clock:
    """Real time, plus what a test adds; ``speed`` lets waits pass quickly."""

    def __init__(self, speed: float = 1.0) -> None:
        self._start, self._added, self.speed = time.time(), 0.0, speed

    def now(self) -> float:
        return self._start + (time.time() - self._start) * self.speed + self._added

    def advance(self, seconds: float) -> None:
        self._added += seconds


class Refused(Exception):
    """An error answer of the service."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def not_found() -> Refused:
    return Refused(404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found.")


@dataclass
class Fault:
    """The next ``times`` requests whose ``METHOD path`` matches get this answer instead."""

    pattern: str
    status: int
    code: str
    message: str
    times: int = 1


Garbled = Callable[[bytes], tuple[bytes, Mapping[str, str]]]
"""Body that the fake would send -> body and headers that come instead; opc-request-id only if it is among them."""
PAGE = b"<!DOCTYPE html><html><body>Sign in to continue</body></html>"
JSON = {"content-type": "application/json", "opc-request-id": "fake/garbled"}
GARBLED: dict[str, Garbled] = {
    "a proxy's page": lambda _body: (PAGE, {"content-type": "text/html"}),
    "a page that claims to be JSON": lambda _body: (PAGE, JSON),
    "cut": lambda body: (body[: len(body) // 2] or b"{", JSON),
    "empty": lambda _body: (b"", JSON),
    "null": lambda _body: (b"null", JSON),
    "a list without a request id": lambda _body: (b"[]", {"content-type": "application/json"}),
    "an empty object": lambda _body: (b"{}", JSON),
}


@dataclass
class Work:
    """A work request. ``finish`` runs once when it is over; what it raises as Refused makes the request fail."""

    id: str
    kind: str
    compartment: str
    started: float
    seconds: float
    finish: Callable[[], None]
    resources: list[Json] = field(default_factory=list)
    status: str = "IN_PROGRESS"
    errors: list[Json] = field(default_factory=list)
    ended: float = 0.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: Json
    headers: Mapping[str, str]
    key_id: str
    raw: bytes = b""


@dataclass(frozen=True)
class Answer:
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Kept:
    """A request with a retry token: its body, the answer, and when it was made."""

    body: Json
    answer: Answer
    at: float


TAGS, TAG_KEY, TAG_VALUE, NAME = 10, 100, 256, 255
TOKEN_SECONDS = 24 * 3600.0
INVALIDATED = (
    "The retry token you provided was used in an earlier request that resulted in a system update, but a subsequent "
    "operation has invalidated the token."
)
VERBS = ("inspect", "read", "use", "manage")
DENIED = {
    "cluster-node-pools": "nodePools",
    "cluster-networks": "clusterNetworks",
    "compute-clusters": "computeClusters",
    "instance-configurations": "instanceConfigurations",
    "dedicated-vm-hosts": "computeHosts",
    "work-requests": "workRequests",
}
"""Resource type -> the part of the path that its calls have."""
Handler = Callable[..., Any]
ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    pattern = re.compile("/" + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path.lstrip("/")) + "/?")

    def keep(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, handler))
        return handler

    return keep


CORE, OKE, LIMITS = "/20160918", "/20180222", "/20190729"
# Query parameter -> field of the object that it must equal.
FILTERS = {
    "compartmentId": "compartmentId",
    "availabilityDomain": "availabilityDomain",
    "displayName": "displayName",
    "name": "name",
    "lifecycleState": "lifecycleState",
    "subnetId": "subnetId",
    "vnicId": "vnicId",
    "instanceId": "instanceId",
    "clusterId": "clusterId",
    "computeClusterId": "computeClusterId",
    "vcnId": "vcnId",
}
LISTED = {
    "compartments": CORE,
    "availabilityDomains": CORE,
    "policies": CORE,
    "dynamicGroups": CORE,
    "domains": CORE,
    "images": CORE,
    "instances": CORE,
    "vnicAttachments": CORE,
    "vnics": CORE,
    "privateIps": CORE,
    "vcns": CORE,
    "subnets": CORE,
    "securityLists": CORE,
    "networkSecurityGroups": CORE,
    "routeTables": CORE,
    "clusterNetworks": CORE,
    "instancePools": CORE,
    "instanceConfigurations": CORE,
    "tagNamespaces": CORE,
    "computeCapacityReservations": CORE,
    "clusters": OKE,
    "nodePools": OKE,
}
COLLECTIONS = {"computeClusters": CORE, "computeCapacityTopologies": CORE, "computeHosts": CORE}
"""Lists that come as {"items": [...]}."""


POOL_PARTS = ("nodePools", "computeClusters", "clusterNetworks", "instanceConfigurations")


def stored(value: Any, key: str = "") -> Any:
    """A request's body as a service may keep it: a duration in its shortest form, keys of ssh without the end of their
    line, versions with v, sets in an order of their own. What OKE does of it is not public."""
    if isinstance(value, dict):
        return {name: stored(item, name) for name, item in value.items()}
    if isinstance(value, list):
        kept = [stored(item, key) for item in value]
        return sorted(kept, key=lambda item: json.dumps(item, sort_keys=True), reverse=True) if key in SETS else kept
    if not isinstance(value, str):
        return value
    if key == "kubernetesVersion":
        return f"v{value.lstrip('v')}"
    if key in ("sshPublicKey", "ssh_authorized_keys"):
        return value.strip()
    minutes = re.fullmatch(r"PT(\d+)M", value) if key.lower().endswith("graceduration") else None
    if minutes and int(minutes[1]):
        hours, rest = divmod(int(minutes[1]), 60)
        return "PT" + (f"{hours}H" if hours else "") + (f"{rest}M" if rest else "")
    return value


SETS = ("nsgIds", "initialNodeLabels", "podSubnetIds", "podNsgIds", "faultDomains")


class FakeOci:
    """``lag``: seconds before a new object can be read, ``list_lag``: before a list has it. ``page``: entries of a page
    where the caller gives no limit. ``capacity``: (availability domain, shape) -> hosts left; absent = enough.
    ``durations``: seconds by operation."""

    def __init__(
        self, tenancy: str = "ocid1.tenancy.oc1..root", region: str = "eu-frankfurt-1", page: int = 100
    ) -> None:
        self.tenancy, self.region, self.page, self.lag, self.list_lag = tenancy, region, page, 0.0, 0.0
        self.clock = Clock()
        self.ended = threading.Event()
        """Set by POST /fake/end, for who runs it as a process."""
        self.skew = 0.0
        """Seconds by which the service's clock is ahead of the client's."""
        self.tables: dict[str, dict[str, Json]] = {name: {} for name in (*LISTED, *COLLECTIONS)}
        self.shapes: dict[str, Json] = {}
        self.limits: dict[str, Json] = {}
        """Limit name -> {scopeType, used, available}, of the service compute."""
        self.addons: dict[str, list[Json]] = {}
        self.domain_groups: dict[str, list[Json]] = {}
        """Identity domain -> dynamic groups as its SCIM endpoint shows them."""
        self.rules: dict[str, list[Json]] = {}
        """NSG -> security rules."""
        self.compatible: dict[str, set[str]] = {}
        """Image -> shapes that were added."""
        self.objects: dict[tuple[str, str], Json] = {}
        """(bucket, name) of Object Storage."""
        self.links: set[str] = set()
        self.sources: dict[str, str] = {}
        """URL of an image -> "" (good) or the message that its import fails with."""
        self.capacity: dict[tuple[str, str], int] = {}
        self.durations = {"CreateImage": 2700.0, "CreateClusterNetwork": 600.0, "NODEPOOL_CREATE": 600.0, "boot": 0.0}
        self.durations["ExportImage"] = 1200.0
        self.watchers: list[Callable[[Json], None]] = []
        self.instance_events: list[Json] = []
        self.mounted: list[tuple[str, Handler]] = []
        self._timed: list[tuple[float, Callable[[], None]]] = []
        self.works: dict[str, Work] = {}
        self.faults: list[Fault] = []
        self.required_tags: list[tuple[str, str]] = []
        """(namespace, key) of defined tags that the tenancy requires of every part of a pool."""
        self.keys: dict[str, str] = {}
        """Key of OCI Vault -> its compartment; that of the pool for one that is not here."""
        self.reservations: dict[str, int] = {}
        """Capacity reservation -> hosts left."""
        self.next_addresses: list[str] = []
        """Private addresses that the next instances get, as OCI gives those of ended ones again."""
        self.denied: list[tuple[str, str]] = []
        """(verb, resource type of DENIED) of deny statements for the caller, see ``deny``."""
        self.caller: Optional[list[str]] = None
        """Statements of policies for the caller, by which the calls of fake_iam.CALLS are allowed; None = all are."""
        self.garbling: list[tuple[str, Garbled]] = []
        """(pattern of METHOD path, how its answers are spoilt): the request is carried out all the same."""
        self.calls: Counter[str] = Counter()
        self.launch_error: Optional[Refused] = None
        """What every launch of an instance fails with, as a service limit that is used up."""
        self._keys: dict[str, tuple[int, int]] = {}
        self._retry: dict[str, Kept] = {}
        self._seen: dict[str, float] = {}
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._server: Optional[http.server.ThreadingHTTPServer] = None

    # ---- life

    def start(self) -> str:
        """The URL for ``service_endpoint``."""
        fake = self

        class Bound(_Http):
            oci = fake

        self._server = _Server(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def trust(self, key_id: str, n: int, e: int) -> None:
        """A public key (modulus, exponent); ``key_id`` is tenancy/user/fingerprint or ``ST$<token>``."""
        self._keys[key_id] = (n, e)

    def fail(self, pattern: str, status: int, code: str, message: str = "", times: int = 1) -> None:
        self.faults.append(Fault(pattern, status, code, message or code, times))

    def deny(self, verb: str, resource: str) -> None:
        """As `deny group X to VERB RESOURCE`: the verb is inverted, so calls that need it or a higher one are refused,
        with the answer that also hides whether something exists; `deny manage` leaves reading."""
        assert resource in DENIED and verb in VERBS
        self.denied.append((verb, resource))

    def _refuse_denied(self, request: Request) -> None:
        for verb, resource in self.denied:
            found = re.fullmatch(rf"/\d+/(?:{DENIED[resource]})(/.+)?", request.path)
            needed = "manage" if request.method != "GET" else "read" if found and found[1] else "inspect"
            if found and VERBS.index(needed) >= VERBS.index(verb):
                raise not_found()

    # ---- state

    def ocid(self, kind: str) -> str:
        return f"ocid1.{kind}.oc1.{self.region}.{next(self._ids):060d}"

    def add(self, table: str, item: Json, lag: float = 0.0) -> Json:
        item.setdefault("id", self.ocid(re.sub(r"s$", "", table).lower()))
        item.setdefault("timeCreated", self.stamp())
        item.setdefault("freeformTags", {})
        item.setdefault("definedTags", {})
        self.tables[table][item["id"]] = item
        if lag or self.list_lag:
            self._seen[item["id"]] = self.clock.now() + lag
        return item

    def get(self, table: str, key: str) -> Json:
        item = self.tables[table].get(key)
        if item is None or not self.visible(item):
            raise not_found()
        return item

    def visible(self, item: Json, listed: bool = False) -> bool:
        more = self.list_lag if listed and item["id"] in self._seen else 0.0
        return self._seen.get(item["id"], 0.0) + more <= self.clock.now()

    def stamp(self, at: Optional[float] = None) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at or self.clock.now())) + ".000Z"

    def work(self, kind: str, compartment: str, finish: Callable[[], None], resources: list[Json]) -> Work:
        work = Work(
            self.ocid("coreservicesworkrequest"),
            kind,
            compartment,
            self.clock.now(),
            self.durations.get(kind, 0.0),
            finish,
            resources,
        )
        self.works[work.id] = work
        self.settle()
        return work

    def register(self, prefix: str, handler: Handler) -> None:
        """Mounts a service; see the head of this file. Later ones come first."""
        self.mounted.insert(0, (prefix, handler))

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        if seconds <= 0:
            call()
        else:
            self._timed.append((self.clock.now() + seconds, call))

    def tell(self, instance: Json, state: str) -> None:
        """An event of an instance, to those who watch."""
        kept = ("id", "displayName", "shape", "availabilityDomain", "faultDomain", "compartmentId", "imageId")
        told = {key: instance.get(key, "") for key in kept}
        for key in ("privateIp", "clusterId", "poolKind", "poolId", "poolName", "clusterNetworkId", "computeClusterId"):
            told[key] = instance.get(key) or ""
        for key in ("hpcIslandId", "networkBlockId", "localBlockId"):
            told[key] = next(
                (item[key] for item in self.tables["computeHosts"].values() if item.get("instanceId") == told["id"]), ""
            )
        more = {"labels": instance.get("labels") or {}, "metadata": instance.get("metadata") or {}, "state": state}
        event = {"seq": len(self.instance_events) + 1, **told, **more}
        self.instance_events.append(event)
        for call in self.watchers:
            call(event)

    def settle(self) -> None:
        """Finishes work requests whose time is over, and what was put off."""
        for work in [item for item in self.works.values() if item.status == "IN_PROGRESS"]:
            if self.clock.now() < work.started + work.seconds:
                continue
            work.ended = work.started + work.seconds
            try:
                work.finish()
                work.status = "SUCCEEDED"
            except Refused as error:
                work.status = "FAILED"
                work.errors.append({"code": error.code, "message": error.message, "timestamp": self.stamp()})
        due = [item for item in self._timed if item[0] <= self.clock.now()]
        self._timed = [item for item in self._timed if item[0] > self.clock.now()]
        for _at, call in sorted(due, key=lambda item: item[0]):
            call()

    # ---- requests

    def asked(self, path: str, query: Mapping[str, str], body: Json) -> Answer:
        """What is no part of OCI: for tests in another process."""
        with self._lock:
            if path == "/fake/clock":
                self.clock.advance(float(body["advance"]))
            if path == "/fake/end":
                self.ended.set()
            self.settle()
            if path == "/fake/instances":
                return Answer([item for item in self.instance_events if item["seq"] > int(query.get("after", 0))])
            return Answer(dict(self.calls) if path == "/fake/calls" else {"now": self.clock.now()})

    def handle(self, request: Request) -> Answer:
        with self._lock:
            self.settle()
            self.calls[f"{request.method} {request.path}"] += 1
            self._refuse_denied(request)
            if self.caller is not None and not fake_iam.allowed(self, f"{request.method} {request.path}", self.caller):
                raise not_found()
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, f"{request.method} {request.path}"):
                    fault.times -= 1
                    raise Refused(fault.status, fault.code, fault.message)
            token = request.headers.get("opc-retry-token", "")
            asked = json.loads(json.dumps(request.body))
            if token and (answer := self._known(token, asked)):
                return answer
            _limits_of_names(request.body)
            self._tagged(request)
            self._stamped(request)
            answer = self._answer(dataclasses.replace(request, body=stored(request.body)))
            if token and request.method == "POST":
                self._retry[token] = Kept(asked, answer, self.clock.now())
            return answer

    def _known(self, token: str, asked: Json) -> Optional[Answer]:
        """The answer of the first request with this retry token; None if it is new, or older than a day."""
        kept = self._retry.get(token)
        if kept is None or self.clock.now() - kept.at > TOKEN_SECONDS:
            return None
        if kept.body != asked:
            raise Refused(409, "Conflict", f"Token is currently in use for a different request: {token}")
        made = kept.answer.body if isinstance(kept.answer.body, dict) else {}
        keys = [made["id"]] if made.get("id") else []
        work = self.works.get(kept.answer.headers.get("opc-work-request-id", ""))
        keys += [item["identifier"] for item in work.resources if item["actionType"] == "CREATED"] if work else []
        for key in keys:
            found = next((table[key] for table in self.tables.values() if key in table), None)
            if found is None or found.get("lifecycleState") in ("DELETED", "TERMINATED"):
                raise Refused(409, "InvalidatedRetryToken", INVALIDATED)
        return kept.answer

    def _tagged(self, request: Request) -> None:
        """Refuses what lacks a required tag. The wording is not public."""
        if request.method != "POST" or request.path.rpartition("/")[2] not in POOL_PARTS:
            return
        have = request.body.get("definedTags") or {}
        for namespace, key in self.required_tags:
            if key not in have.get(namespace, {}):
                raise Refused(400, "InvalidParameter", f"The required tag {namespace}.{key} is missing.")

    def _stamped(self, request: Request) -> None:
        """Tag defaults of the tenancy: what is made has tags that nobody asked for."""
        if request.method == "POST" and request.path.rpartition("/")[2] in POOL_PARTS:
            own = {"CreatedBy": "user", "CreatedOn": self.stamp()}
            request.body["definedTags"] = {"Oracle-Tags": own, **(request.body.get("definedTags") or {})}

    def _answer(self, request: Request) -> Answer:
        for prefix, mounted in self.mounted:
            if request.path.startswith(prefix):
                told = mounted(self, request)
                if told is not None:
                    return told if isinstance(told, Answer) else Answer(told)
        for method, pattern, handler in ROUTES:
            match = pattern.fullmatch(request.path)
            if match and method == request.method:
                parts = {key: urllib.parse.unquote(value) for key, value in match.groupdict().items()}
                found = handler(self, request, **parts)
                return found if isinstance(found, Answer) else Answer(found)
        for table, base in (*LISTED.items(), *COLLECTIONS.items()):
            if request.method == "GET" and request.path == f"{base}/{table}":
                return self.listed(list(self.tables[table].values()), request, table in COLLECTIONS)
            match = re.fullmatch(f"{base}/{table}/([^/]+)", request.path)
            if match and request.method in ("GET", "PUT"):
                return self._one(table, urllib.parse.unquote(match[1]), request)
        raise Refused(404, "NotAuthorizedOrNotFound", f"The fake has no {request.method} {request.path}.")

    def _one(self, table: str, key: str, request: Request) -> Answer:
        item = self.get(table, key)
        if request.method == "PUT":
            matched(item, request)
            known = {one["name"] for one in self.tables["tagNamespaces"].values()} | set(item["definedTags"])
            for namespace in request.body.get("definedTags") or {} if table == "instances" else ():
                if namespace not in known:
                    raise Refused(
                        400, "InvalidParameter", f"Failed to validate tags: TagNamespace {namespace} does not exists"
                    )
            item.update(request.body)
        return Answer(item, {"etag": etag(item)})

    def busy(self, key: str, what: str) -> None:
        """Refuses a request on a resource whose work request is not over."""
        works = [work for work in self.works.values() if work.status == "IN_PROGRESS"]
        if any(item["identifier"] == key for work in works for item in work.resources):
            raise Refused(409, "IncorrectState", f"The {what} {key} has a work request in progress. Try again later.")

    def listed(self, items: list[Json], request: Request, collection: bool = False) -> Answer:
        """Filtered and paged."""
        query = request.query
        wanted = {FILTERS[key]: value for key, value in query.items() if key in FILTERS}
        if query.get("computeHostInSubtree") == "true":
            wanted.pop("compartmentId", None)
        found = [
            item
            for item in items
            if self.visible(item, listed=True)
            and all(str(item.get(key, value)) == value for key, value in wanted.items())
        ]
        start = _page_start(query.get("page", ""))
        size = min(int(query.get("limit", self.page)), 1000)
        part = found[start : start + size]
        more = start + size < len(found)
        headers = {"opc-next-page": base64.b64encode(str(start + size).encode()).decode()} if more else {}
        return Answer({"items": part} if collection else part, headers)

    # ---- signatures

    def verify(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
        """The key id. Raises Refused(401) as the service does: it does not tell which part is wrong."""
        given = dict(re.findall(r'(\w+)="([^"]*)"', headers.get("authorization", "")))
        key = self._keys.get(given.get("keyId", ""))
        refused = Refused(
            401, "NotAuthenticated", "The required information to complete authentication was not provided."
        )
        if not key or given.get("algorithm") != "rsa-sha256" or not headers["authorization"].startswith("Signature "):
            raise refused
        signed = given["headers"].split()
        wanted = {"date", "(request-target)", "host"} | (set(_BODY) if method in ("POST", "PUT", "PATCH") else set())
        if not wanted <= set(signed):
            raise refused
        if abs(parsedate_to_datetime(headers["date"]).timestamp() - time.time() - self.skew) > SKEW:
            raise refused
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if "x-content-sha256" in signed and headers.get("x-content-sha256") != digest:
            raise refused
        lines = [
            f"{name}: {f'{method.lower()} {target}' if name == '(request-target)' else headers.get(name, '')}"
            for name in signed
        ]
        if not _rsa(base64.b64decode(given["signature"]), "\n".join(lines).encode(), *key):
            raise refused
        return given["keyId"]


def etag(item: Json) -> str:
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[:16]


def matched(item: Json, request: Request) -> None:
    """Refuses a request whose If-Match is not the object's etag."""
    if request.headers.get("if-match", etag(item)) != etag(item):
        raise Refused(412, "NoEtagMatch", "The etag does not match.")


def _limits_of_names(body: Any) -> None:
    """Refuses names and tags beyond their limits, wherever they are in a body. The wording is not public."""
    if isinstance(body, list):
        for item in body:
            _limits_of_names(item)
    if not isinstance(body, dict):
        return
    for key, value in body.items():
        if key == "freeformTags":
            _limits_of_tags(value or {})
        elif key == "displayName" and not 1 <= len(str(value)) <= NAME:
            raise Refused(400, "InvalidParameter", f"displayName must have 1 to {NAME} characters.")
        elif key not in ("definedTags", "metadata", "nodeMetadata"):
            _limits_of_names(value)


def _limits_of_tags(tags: Json) -> None:
    if len(tags) > TAGS:
        raise Refused(400, "InvalidParameter", f"A resource can have {TAGS} free-form tags, not {len(tags)}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY or re.search(r"[.\s]", key):
            raise Refused(400, "InvalidParameter", f"Invalid free-form tag key: {key}")
        if len(str(value)) > TAG_VALUE:
            raise Refused(
                400, "InvalidParameter", f"The value of the free-form tag {key} has over {TAG_VALUE} characters."
            )


def _page_start(token: str) -> int:
    try:
        return int(base64.b64decode(token)) if token else 0
    except ValueError:
        raise Refused(400, "InvalidParameter", "page is no token of this list") from None


def _rsa(signature: bytes, message: bytes, n: int, e: int) -> bool:
    """PKCS#1 v1.5 with SHA-256."""
    size = (n.bit_length() + 7) // 8
    found = pow(int.from_bytes(signature, "big"), e, n).to_bytes(size, "big")
    digest = _SHA256 + hashlib.sha256(message).digest()
    return found == b"\x00\x01" + b"\xff" * (size - len(digest) - 3) + b"\x00" + digest


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the service."""


class _Http(http.server.BaseHTTPRequestHandler):
    oci: FakeOci
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def date_time_string(self, timestamp: Optional[float] = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.oci.skew)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        path, _mark, query = self.path.partition("?")
        known = dict(urllib.parse.parse_qsl(query))
        try:
            if path.startswith("/p/"):
                answer = Answer(b"", {}, 200 if path in self.oci.links else 404)
            elif path.startswith("/fake/"):
                answer = self.oci.asked(path, known, json.loads(body or b"{}"))
            else:
                key_id = self.oci.verify(self.command, self.path, headers, body)
                parsed = json.loads(body or b"{}") if "json" in headers.get("content-type", "json") else {}
                answer = self.oci.handle(Request(self.command, path, known, parsed, headers, key_id, body))
        except Refused as error:
            answer = Answer({"code": error.code, "message": error.message}, {}, error.status)
        except Exception as error:
            answer = Answer({"code": "InternalError", "message": f"fake_oci: {error!r}"}, {}, 500)
        raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        data = b"" if answer.body is None else raw
        told = {"opc-request-id": f"fake/{id(answer):x}", "content-type": "application/json", **answer.headers}
        status = 204 if answer.body is None and answer.status == 200 else answer.status
        for pattern, garble in self.oci.garbling:
            if re.search(pattern, f"{self.command} {path}"):
                data, told = garble(data)
                status = 200 if status == 204 else status
        self.send_response(status)
        for key, value in told.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


# ---- identity --------------------------------------------------------------------------------------------------------


@route("GET", f"{CORE}/availabilityDomains")
def _domains(oci: FakeOci, request: Request) -> Any:
    return list(oci.tables["availabilityDomains"].values())


@route("GET", f"{CORE}/compartments")
def _compartments(oci: FakeOci, request: Request) -> Any:
    items = list(oci.tables["compartments"].values())
    if request.query.get("compartmentIdInSubtree") == "true":
        rest = {key: value for key, value in request.query.items() if key != "compartmentId"}
        request = Request(request.method, request.path, rest, request.body, request.headers, request.key_id)
    return oci.listed(items, request)


@route("POST", f"{CORE}/policies")
def _make_policy(oci: FakeOci, request: Request) -> Any:
    return _identity(oci, request, "policies")


@route("POST", f"{CORE}/dynamicGroups")
def _make_group(oci: FakeOci, request: Request) -> Any:
    return _identity(oci, request, "dynamicGroups")


def _identity(oci: FakeOci, request: Request, table: str) -> Json:
    if any(item["name"] == request.body["name"] for item in oci.tables[table].values()):
        code = "PolicyAlreadyExists" if table == "policies" else "DynamicGroupAlreadyExists"
        raise Refused(409, code, f"{request.body['name']} already exists")
    return oci.add(table, {**request.body, "lifecycleState": "ACTIVE"}, oci.lag)


SCIM = "/admin/v1/DynamicResourceGroups"
"""Of the identity domain whose ``url`` has the host that was asked (http://localhost:PORT beside 127.0.0.1)."""


def _of_domain(oci: FakeOci, request: Request) -> list[Json]:
    host = request.headers.get("host", "")
    for item in oci.tables["domains"].values():
        if urllib.parse.urlparse(item["url"]).netloc == host:
            return oci.domain_groups.setdefault(item["id"], [])
    raise not_found()


@route("GET", SCIM)
def _domain_groups(oci: FakeOci, request: Request) -> Any:
    found = [item for item in _of_domain(oci, request) if oci.visible(item)]
    first, count = int(request.query.get("startIndex", 1)), int(request.query.get("count", 50))
    part = found[first - 1 : first - 1 + count]
    return {"Resources": part, "totalResults": len(found), "startIndex": first, "itemsPerPage": len(part)}


@route("POST", SCIM)
def _make_domain_group(oci: FakeOci, request: Request) -> Any:
    groups, name = _of_domain(oci, request), request.body["displayName"]
    if any(item["displayName"] == name for item in groups):
        raise Refused(409, "409", f"DynamicResourceGroup {name} already exists.")
    made = {**request.body, "id": f"{next(oci._ids):032x}", "ocid": oci.ocid("dynamicgroup")}
    groups.append(made)
    if oci.lag:
        oci._seen[made["id"]] = oci.clock.now() + oci.lag
    return Answer(made, {}, 201)


@route("PATCH", SCIM + "/{key}")
def _patch_domain_group(oci: FakeOci, request: Request, key: str) -> Any:
    found = next((item for item in _of_domain(oci, request) if item["id"] == key), None)
    if found is None:
        raise not_found()
    for change in request.body["Operations"]:
        found[change["path"]] = change["value"]
    return found


@route("GET", f"{CORE}/tagNamespaces/{{key}}/tags/{{name}}")
def _tag(oci: FakeOci, request: Request, key: str, name: str) -> Any:
    found = oci.get("tagNamespaces", key)
    if name not in found["tags"]:
        raise not_found()
    return {"id": f"{key}.{name}", "name": name, "tagNamespaceId": key, "tagNamespaceName": found["name"]}


# ---- images ----------------------------------------------------------------------------------------------------------


@route("POST", f"{CORE}/images")
def _import(oci: FakeOci, request: Request) -> Any:
    body = dict(request.body)
    source = body.pop("imageSourceDetails", {})
    if source.get("sourceImageType") not in (None, "QCOW2", "VMDK"):
        raise Refused(400, "InvalidParameter", "sourceImageType")
    if source.get("sourceType") == "objectStorageUri" and source.get("sourceUri") not in oci.sources:
        raise Refused(400, "InvalidParameter", "The object storage URI cannot be read.")
    image = oci.add("images", {**body, "lifecycleState": "IMPORTING"}, oci.lag)
    image.update({key: source[key] for key in ("operatingSystem", "operatingSystemVersion") if source.get(key)})

    def finish() -> None:
        why = oci.sources.get(source.get("sourceUri", ""), "")
        if why:
            # not public: what the image itself shows after a failed import
            image["lifecycleState"] = "DELETED"
            raise Refused(400, "ImageImportFailed", why)
        image.update({"lifecycleState": "AVAILABLE", "sizeInMBs": 51200})

    work = oci.work("CreateImage", body["compartmentId"], finish, [_resource("image", image["id"], "CREATED")])
    return Answer(image, {"opc-work-request-id": work.id, "etag": etag(image)})


@route("GET", f"{CORE}/images/{{image}}/shapes")
def _image_shapes(oci: FakeOci, request: Request, image: str) -> Any:
    oci.get("images", image)
    return [{"imageId": image, "shape": name} for name in sorted(oci.compatible.get(image, ()))]


@route("PUT", f"{CORE}/images/{{image}}/shapes/{{shape}}")
def _add_shape(oci: FakeOci, request: Request, image: str, shape: str) -> Any:
    oci.get("images", image)
    if shape not in oci.shapes:
        raise Refused(400, "InvalidParameter", f"{shape} is no shape")
    oci.compatible.setdefault(image, set()).add(shape)
    return {"imageId": image, "shape": shape}


@route("DELETE", f"{CORE}/images/{{image}}")
def _delete_image(oci: FakeOci, request: Request, image: str) -> Any:
    oci.get("images", image)["lifecycleState"] = "DELETED"


@route("POST", f"{CORE}/images/{{image}}/actions/export")
def _export(oci: FakeOci, request: Request, image: str) -> Any:
    found, body = oci.get("images", image), request.body
    if found["lifecycleState"] != "AVAILABLE":
        raise Refused(409, "IncorrectState", f"The image is {found['lifecycleState']}.")
    found["lifecycleState"] = "EXPORTING"

    def finish() -> None:
        found["lifecycleState"] = "AVAILABLE"
        oci.objects[(body["bucketName"], body["objectName"])] = {}

    work = oci.work("ExportImage", found["compartmentId"], finish, [_resource("image", image, "READ")])
    return Answer(found, {"opc-work-request-id": work.id})


# ---- Object Storage: one namespace -----------------------------------------------------------------------------------


@route("GET", "/n")
def _namespace(oci: FakeOci, request: Request) -> Any:
    return "space"


def _object(oci: FakeOci, bucket: str, name: str) -> Json:
    if (bucket, name) not in oci.objects:
        raise Refused(404, "ObjectNotFound", f"The object {name} was not found in the bucket {bucket}.")
    return oci.objects[(bucket, name)]


@route("HEAD", "/n/{space}/b/{bucket}/o/{name}")
def _head(oci: FakeOci, request: Request, space: str, bucket: str, name: str) -> Any:
    _object(oci, bucket, name)


@route("DELETE", "/n/{space}/b/{bucket}/o/{name}")
def _delete_object(oci: FakeOci, request: Request, space: str, bucket: str, name: str) -> Any:
    _object(oci, bucket, name)
    del oci.objects[(bucket, name)]


@route("POST", "/n/{space}/b/{bucket}/p")
def _link(oci: FakeOci, request: Request, space: str, bucket: str) -> Any:
    """A pre-authenticated request: its address needs no signature, and can be imported from."""
    name = request.body["objectName"]
    _object(oci, bucket, name)
    key = f"secret{next(oci._ids)}"
    path = f"/p/{key}/n/{space}/b/{bucket}/o/{name}"
    oci.links.add(path)
    url = f"http://{request.headers['host']}{path}"
    oci.sources[url] = ""
    return {**request.body, "id": key, "accessUri": path, "fullPath": url, "timeCreated": oci.stamp()}


@route("DELETE", "/n/{space}/b/{bucket}/p/{key}")
def _end_link(oci: FakeOci, request: Request, space: str, bucket: str, key: str) -> Any:
    oci.links = {path for path in oci.links if not path.startswith(f"/p/{key}/")}


# ---- shapes, capacity, limits ----------------------------------------------------------------------------------------


@route("GET", f"{CORE}/shapes")
def _shapes(oci: FakeOci, request: Request) -> Any:
    items = [
        {key: value for key, value in item.items() if key != "domains"}
        for item in oci.shapes.values()
        if request.query.get("availabilityDomain", "") in ("", *item.get("domains", oci.tables["availabilityDomains"]))
    ]
    for item in items:
        item.setdefault("id", item["shape"])
    return oci.listed(items, request)


@route("POST", f"{CORE}/computeCapacityReports")
def _report(oci: FakeOci, request: Request) -> Any:
    body = request.body
    if body["compartmentId"] != oci.tenancy:
        raise not_found()
    found = []
    for asked in body["shapeAvailabilities"]:
        shape = asked["instanceShape"]
        if shape.startswith("BM.") and asked.get("faultDomain"):
            raise Refused(400, "CannotParseRequest", "Incorrectly formatted request.")
        left = oci.capacity.get((body["availabilityDomain"], shape), 100)
        status = "AVAILABLE" if left else "OUT_OF_HOST_CAPACITY"
        status = status if shape in oci.shapes else "HARDWARE_NOT_SUPPORTED"
        found.append({"instanceShape": shape, "availabilityStatus": status, "availableCount": left})
    return {**body, "shapeAvailabilities": found, "timeCreated": oci.stamp()}


@route("GET", f"{LIMITS}/limitDefinitions")
def _definitions(oci: FakeOci, request: Request) -> Any:
    wanted = request.query.get("name")
    return [
        {
            "name": name,
            "serviceName": "compute",
            "scopeType": item["scopeType"],
            "isResourceAvailabilitySupported": True,
        }
        for name, item in oci.limits.items()
        if wanted in (None, name)
    ]


@route("GET", f"{LIMITS}/services/compute/limits/{{name}}/resourceAvailability")
def _available(oci: FakeOci, request: Request, name: str) -> Any:
    item = oci.limits.get(name)
    if item is None:
        raise not_found()
    if (item["scopeType"] == "AD") != ("availabilityDomain" in request.query):
        raise Refused(400, "InvalidParameter", "availabilityDomain does not fit the scope of the limit")
    return {"used": item["used"], "available": item["available"], "effectiveQuotaValue": item.get("quota")}


# ---- pools -----------------------------------------------------------------------------------------------------------


@route("POST", f"{CORE}/computeClusters")
def _compute_cluster(oci: FakeOci, request: Request) -> Any:
    return oci.add("computeClusters", {**request.body, "lifecycleState": "ACTIVE"}, oci.lag)


@route("DELETE", f"{CORE}/computeClusters/{{key}}")
def _delete_compute_cluster(oci: FakeOci, request: Request, key: str) -> Any:
    used = [item for item in alive(oci) if item.get("computeClusterId") == key]
    if used:
        raise Refused(409, "IncorrectState", f"The compute cluster {key} still has {len(used)} instances.")
    oci.get("computeClusters", key)["lifecycleState"] = "DELETED"


@route("POST", f"{CORE}/instanceConfigurations")
def _configuration(oci: FakeOci, request: Request) -> Any:
    return oci.add("instanceConfigurations", dict(request.body), oci.lag)


@route("DELETE", f"{CORE}/instanceConfigurations/{{key}}")
def _delete_configuration(oci: FakeOci, request: Request, key: str) -> Any:
    oci.get("instanceConfigurations", key)
    pools = [item for item in oci.tables["instancePools"].values() if item["lifecycleState"] != "TERMINATED"]
    if any(item["instanceConfigurationId"] == key for item in pools):
        raise Refused(409, "IncorrectState", f"The instance configuration {key} is used by an instance pool.")
    del oci.tables["instanceConfigurations"][key]


def _named(oci: FakeOci, subnet: str, image: str) -> None:
    """Refuses what does not exist, or is of another region."""
    oci.get("subnets", subnet)
    if image:
        oci.get("images", image)


@route("POST", f"{CORE}/clusterNetworks")
def _cluster_network(oci: FakeOci, request: Request) -> Any:
    body = dict(request.body)
    placed = body.pop("clusterConfiguration", None) or {}
    place = body["placementConfiguration"]
    for asked in body["instancePools"]:
        config = oci.get("instanceConfigurations", asked["instanceConfigurationId"])
        source = config["instanceDetails"]["launchDetails"].get("sourceDetails") or {}
        _named(oci, place.get("primarySubnetId", ""), source.get("imageId", ""))
    network = oci.add("clusterNetworks", {**body, **placed, "lifecycleState": "PROVISIONING"}, oci.lag)
    pools = []
    for asked in body["instancePools"]:
        made = {"compartmentId": body["compartmentId"], "lifecycleState": "PROVISIONING", **asked}
        made["clusterNetworkId"] = network["id"]
        pools.append(oci.add("instancePools", {**made, "placementConfigurations": [place]}, oci.lag))
    network["instancePools"] = pools
    resources = [_resource("clusterNetwork", network["id"], "CREATED")]
    finish = _scaled(oci, network)
    work = oci.work("CreateClusterNetwork", body["compartmentId"], finish, resources)
    return Answer(network, {"opc-work-request-id": work.id, "etag": etag(network)})


def _scaled(oci: FakeOci, network: Json) -> Callable[[], None]:
    def finish() -> None:
        try:
            for pool in network["instancePools"]:
                _launch(oci, pool)
        finally:
            network["lifecycleState"] = "RUNNING"

    return finish


@route("PUT", f"{CORE}/clusterNetworks/{{key}}")
def _scale_network(oci: FakeOci, request: Request, key: str) -> Any:
    network = oci.get("clusterNetworks", key)
    matched(network, request)
    if network["lifecycleState"] not in ("RUNNING", "STOPPED"):
        raise Refused(409, "IncorrectState", f"The cluster network is {network['lifecycleState']}.")
    body = dict(request.body)
    for asked in body.pop("instancePools", []):
        oci.get("instancePools", asked["id"]).update(asked)
    network.update({**body, "lifecycleState": "SCALING"})
    resources = [_resource("clusterNetwork", key, "UPDATED")]
    work = oci.work("UpdateClusterNetwork", network["compartmentId"], _scaled(oci, network), resources)
    return Answer(network, {"opc-work-request-id": work.id, "etag": etag(network)})


@route("DELETE", f"{CORE}/clusterNetworks/{{key}}")
def _end_network(oci: FakeOci, request: Request, key: str) -> Any:
    network = oci.get("clusterNetworks", key)
    matched(network, request)
    for part in (network["id"], *(item["id"] for item in network["instancePools"])):
        oci.busy(part, "cluster network")
    network["lifecycleState"] = "TERMINATING"

    def finish() -> None:
        pools = [item["id"] for item in network["instancePools"]]
        for item in [item for item in alive(oci) if item.get("poolId") in pools]:
            terminate(oci, item["id"])
        for item in (network, *network["instancePools"]):
            item["lifecycleState"] = "TERMINATED"

    resources = [_resource("clusterNetwork", key, "DELETED")]
    work = oci.work("TerminateClusterNetwork", network["compartmentId"], finish, resources)
    return Answer(None, {"opc-work-request-id": work.id})


@route("POST", f"{CORE}/instancePools/{{key}}/actions/detachInstance")
def _detach(oci: FakeOci, request: Request, key: str) -> Any:
    pool, body = oci.get("instancePools", key), request.body
    found = oci.get("instances", body["instanceId"])
    if found.get("poolId") != key or found["lifecycleState"] == "TERMINATED":
        raise Refused(400, "InvalidParameter", "The instance is not of this pool.")
    oci.busy(key, "instance pool")
    oci.busy(pool.get("clusterNetworkId", ""), "cluster network")
    found["lifecycleState"] = "TERMINATING"

    def finish() -> None:
        found["poolId"] = ""
        if body.get("isAutoTerminate"):
            terminate(oci, found["id"])
        else:
            found["lifecycleState"] = "RUNNING"
        if body.get("isDecrementSize"):
            pool["size"] -= 1
        else:
            _launch(oci, pool)

    resources = [_resource("instancePool", key, "UPDATED")]
    work = oci.work("DetachInstancePoolInstance", pool["compartmentId"], finish, resources)
    return Answer(_summary(found), {"opc-work-request-id": work.id})


ACTIONS = ("START", "STOP", "RESET", "SOFTRESET", "SOFTSTOP")


@route("POST", f"{CORE}/instances/{{key}}")
def _act(oci: FakeOci, request: Request, key: str) -> Any:
    """Power actions. Only resets are carried out; which states an instance passes in one is not public."""
    found, action = oci.get("instances", key), request.query.get("action", "")
    matched(found, request)
    if action not in ACTIONS:
        raise Refused(400, "InvalidParameter", f"action {action}")
    if found["lifecycleState"] != "RUNNING":
        raise Refused(409, "IncorrectState", f"The instance {key} is {found['lifecycleState']}.")
    assert action in ("RESET", "SOFTRESET")
    found["lifecycleState"] = "STOPPING"

    def up() -> None:
        if found["lifecycleState"] == "STOPPING":
            found["lifecycleState"] = "RUNNING"
            oci.tell(found, "RESET")

    answer = Answer(dict(found), {"etag": etag(found)})
    oci.later(oci.durations.get("reset", 0.0), up)
    return answer


def alive(oci: FakeOci) -> list[Json]:
    return [item for item in oci.tables["instances"].values() if item["lifecycleState"] != "TERMINATED"]


def terminate(oci: FakeOci, key: str) -> None:
    """Ends an instance: its VNIC goes, its host is free again, capacity that was counted comes back; not so a host that
    was reported as unhealthy."""
    found = oci.tables["instances"][key]
    found["lifecycleState"] = "TERMINATED"
    oci.tell(found, "TERMINATED")
    for item in [item for item in oci.tables["vnicAttachments"].values() if item["instanceId"] == key]:
        item["lifecycleState"] = "DETACHED"
        for table in ("vnics", "privateIps"):
            gone = [one for one, told in oci.tables[table].items() if item["vnicId"] in (told["id"], told["vnicId"])]
            for one in gone:
                del oci.tables[table][one]
    reported = found.get("definedTags", {}).get("ComputeInstanceHostActions", {})
    sick = reported.get("CustomerReportedHostStatus") == "unhealthy"
    for host in oci.tables["computeHosts"].values():
        if host.get("instanceId") == key:
            host.update({"instanceId": None, "lifecycleState": "REPAIR" if sick else "AVAILABLE"})
    place = (found["availabilityDomain"], found["shape"])
    if place in oci.capacity and not sick:
        oci.capacity[place] += 1


def _taken(oci: FakeOci, domain: str, shape: str, wanted: int, whole: bool, reservation: Optional[str] = "") -> int:
    """How many of ``wanted`` hosts there are; ``whole``: none where not all. Counted down where capacity is set."""
    if reservation:
        given = min(oci.reservations[reservation], wanted)
        oci.reservations[reservation] -= given
        return given
    left = oci.capacity.get((domain, shape), wanted)
    given = min(left, wanted) if not whole or left >= wanted else 0
    if (domain, shape) in oci.capacity:
        oci.capacity[(domain, shape)] -= given
    return given


NO_CAPACITY = Refused(500, "InternalError", "Out of host capacity.")
NO_LIMIT = Refused(
    400,
    "LimitExceeded",
    "The following service limits were exceeded: gpu-h100-count. Request a service limit increase from the service "
    "limits "
    "page in the console.",
)
NO_ADDRESS = Refused(400, "InvalidParameter", "Subnet has no available private IP addresses.")
NO_REGISTRATION = Refused(
    500,
    "NodeRegistrationTimeout",
    "1 nodes(s) register timeout. First, confirm that network prerequisites have been met.",
)


def of_nodes(error: Refused, count: int) -> Refused:
    """As OKE reports the errors of the launches of a node pool."""
    return Refused(
        error.status,
        error.code,
        f"{count} node(s) launch failure. Reason for failure on one of the nodes : Error returned by LaunchInstance "
        f"operation in Compute service.({error.status}, {error.code}, false) {error.message} (opc-request-id: "
        "3CB6F935FDD14DDF84A46620FAE6E3B0/FDEF32254979E4BF90CFC5E8E58A3EFA)",
    )


def _launch(oci: FakeOci, pool: Json) -> None:
    """Instances up to the pool's size, or "Out of host capacity" as a work request's error: all or none."""
    details = oci.get("instanceConfigurations", pool["instanceConfigurationId"])["instanceDetails"]["launchDetails"]
    place = pool["placementConfigurations"][0]
    domain, shape = place["availabilityDomain"], details["shape"]
    subnet = place.get("primarySubnetId") or place.get("primaryVnicSubnets", {}).get("subnetId", "")
    have = [item for item in alive(oci) if item.get("poolId") == pool["id"]]
    for item in have[max(pool["size"], 0) :]:
        terminate(oci, item["id"])
    missing = max(pool["size"] - len(have), 0)
    if missing and oci.launch_error:
        raise oci.launch_error
    given = _taken(oci, domain, shape, missing, True, details.get("capacityReservationId"))
    if given < missing:
        raise NO_CAPACITY
    more = {
        "metadata": details.get("metadata", {}),
        "imageId": (details.get("sourceDetails") or {}).get("imageId", ""),
        "agentConfig": details.get("agentConfig"),
        "poolId": pool["id"],
        "poolKind": "cluster_network",
        "poolName": pool.get("displayName", ""),
        "clusterNetworkId": pool.get("clusterNetworkId", ""),
        "freeformTags": {"oci:compute:instancepool": pool["id"]},
    }
    labels = details.get("metadata", {}).get("oke-initial-node-labels", "")
    more["labels"] = dict(part.split("=", 1) for part in labels.split(",") if "=" in part)
    for _index in range(given):
        launch(oci, pool["compartmentId"], shape, domain, subnet, boot=oci.durations["boot"], **more)
    pool["lifecycleState"] = "RUNNING"


def launch(
    oci: FakeOci, compartment: str, shape: str, domain: str, subnet: str, boot: float = 0.0, **more: Any
) -> Json:
    """An instance with its VNIC and private address, running after ``boot`` seconds."""
    number = next(oci._ids)
    free = (
        oci.next_addresses.pop(0)
        if oci.next_addresses
        else f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    )
    address = more.pop("address", free)
    item = {"compartmentId": compartment, "shape": shape, "availabilityDomain": domain, "region": oci.region}
    item.update({"lifecycleState": "RUNNING", "faultDomain": f"FAULT-DOMAIN-{number % 3 + 1}"})
    item.update({"displayName": f"inst-{number}", "privateIp": address})
    made = oci.add("instances", {**item, **more})
    vnic = oci.ocid("vnic")
    place = {"compartmentId": compartment, "availabilityDomain": domain, "subnetId": subnet, "vnicId": vnic}
    oci.add("vnicAttachments", {**place, "instanceId": made["id"], "lifecycleState": "ATTACHED", "nicIndex": 0})
    shown = {"privateIp": address, "isPrimary": True, "lifecycleState": "AVAILABLE"}
    oci.add("vnics", {"id": vnic, **place, **shown})
    oci.add("privateIps", {**place, "ipAddress": address, "isPrimary": True})
    if made.get("poolId"):
        _host(oci, made)
    if boot > 0:
        made["lifecycleState"] = "PROVISIONING"
    oci.later(boot, lambda: _running(oci, made))
    return made


def _running(oci: FakeOci, instance: Json) -> None:
    if instance["lifecycleState"] not in ("PROVISIONING", "RUNNING"):
        return
    instance["lifecycleState"] = "RUNNING"
    for pool in oci.tables["nodePools"].values():
        for node in pool.get("nodes", ()):
            if node["id"] == instance["id"]:
                node["lifecycleState"] = "ACTIVE"
    oci.tell(instance, "RUNNING")


def _host(oci: FakeOci, instance: Json) -> None:
    """The bare metal host below an instance of a pool: 8 hosts share a local block, 16 a network block. A free one is
    taken first."""
    index = sum(1 for item in oci.tables["computeHosts"].values() if item.get("instanceId"))
    if not instance["shape"].startswith("BM.GPU"):
        return
    kind = {key: instance[key] for key in ("shape", "availabilityDomain")}
    for host in oci.tables["computeHosts"].values():
        if host["lifecycleState"] == "AVAILABLE" and kind.items() <= host.items():
            host.update({"instanceId": instance["id"], "lifecycleState": "OCCUPIED"})
            return
    host = {"instanceId": instance["id"], "shape": instance["shape"], "health": "HEALTHY", "platform": "GPU"}
    host.update({"availabilityDomain": instance["availabilityDomain"], "faultDomain": instance["faultDomain"]})
    host.update({"compartmentId": oci.tenancy, "lifecycleState": "OCCUPIED", "hasImpactedComponents": False})
    host["hpcIslandId"] = "ocid1.hpcisland.oc1..islandaaaaa"
    host["networkBlockId"] = f"ocid1.computenetworkblock.oc1..{index // 16:011d}"
    host["localBlockId"] = f"ocid1.computelocalblock.oc1..{index // 8:011d}"
    oci.add("computeHosts", host)


@route("GET", f"{CORE}/instancePools/{{pool}}/instances")
def _pool_instances(oci: FakeOci, request: Request, pool: str) -> Any:
    oci.get("instancePools", pool)
    return oci.listed([_summary(item) for item in alive(oci) if item.get("poolId") == pool], request)


@route("GET", f"{CORE}/clusterNetworks/{{network}}/instances")
def _network_instances(oci: FakeOci, request: Request, network: str) -> Any:
    pools = {item["id"] for item in oci.get("clusterNetworks", network).get("instancePools", [])}
    items = [_summary(item) for item in alive(oci) if item.get("poolId") in pools]
    return oci.listed(items, request)


def _summary(item: Json) -> Json:
    """The state is a free text here, unlike an instance's lifecycleState."""
    kept = ("id", "availabilityDomain", "compartmentId", "displayName", "faultDomain", "region", "shape", "timeCreated")
    return {**{key: item.get(key) for key in kept}, "state": item["lifecycleState"].capitalize()}


@route("GET", f"{CORE}/computeCapacityTopologies/{{topology}}/computeBareMetalHosts")
def _bare_metal(oci: FakeOci, request: Request, topology: str) -> Any:
    return oci.listed(oci.get("computeCapacityTopologies", topology).get("hosts", []), request, True)


@route("GET", f"{CORE}/networkSecurityGroups/{{group}}/securityRules")
def _rules(oci: FakeOci, request: Request, group: str) -> Any:
    oci.get("networkSecurityGroups", group)
    return oci.rules.get(group, [])


# ---- work requests ---------------------------------------------------------------------------------------------------


def _resource(kind: str, key: str, action: str) -> Json:
    return {"entityType": kind, "identifier": key, "actionType": action, "entityUri": f"/{kind}/{key}"}


def _work(oci: FakeOci, key: str) -> Work:
    if key not in oci.works:
        raise not_found()
    return oci.works[key]


def _shown(oci: FakeOci, work: Work) -> Json:
    share = 1.0 if work.status != "IN_PROGRESS" else (oci.clock.now() - work.started) / max(work.seconds, 1e-9)
    told = {"id": work.id, "operationType": work.kind, "status": work.status, "compartmentId": work.compartment}
    told.update({"resources": work.resources, "timeAccepted": oci.stamp(work.started), "percentComplete": share * 100})
    return {**told, **({"timeFinished": oci.stamp(work.ended)} if work.ended else {})}


@route("GET", f"{CORE}/workRequests")
def _works(oci: FakeOci, request: Request) -> Any:
    wanted = request.query.get("resourceId")
    found = [work for work in oci.works.values() if wanted in (None, *(item["identifier"] for item in work.resources))]
    return oci.listed([_shown(oci, work) for work in found], request)


@route("GET", f"{CORE}/workRequests/{{key}}")
def _core_work(oci: FakeOci, request: Request, key: str) -> Any:
    return _shown(oci, _work(oci, key))


@route("GET", f"{OKE}/workRequests")
def _oke_works(oci: FakeOci, request: Request) -> Any:
    answer: Answer = _works(oci, request)
    for item in answer.body:
        item.pop("percentComplete")
    return answer


@route("GET", f"{OKE}/workRequests/{{key}}")
def _oke_work(oci: FakeOci, request: Request, key: str) -> Any:
    """OKE's have no percentComplete."""
    return {name: value for name, value in _shown(oci, _work(oci, key)).items() if name != "percentComplete"}


@route("GET", f"{CORE}/workRequests/{{key}}/errors")
@route("GET", f"{OKE}/workRequests/{{key}}/errors")
def _work_errors(oci: FakeOci, request: Request, key: str) -> Any:
    return _work(oci, key).errors


@route("GET", f"{CORE}/workRequests/{{key}}/logs")
@route("GET", f"{OKE}/workRequests/{{key}}/logs")
def _work_logs(oci: FakeOci, request: Request, key: str) -> Any:
    work = _work(oci, key)
    return [{"message": f"{work.kind} {work.status}", "timestamp": oci.stamp()}]


# ---- OKE -------------------------------------------------------------------------------------------------------------


@route("POST", f"{OKE}/nodePools")
def _node_pool(oci: FakeOci, request: Request) -> Any:
    body = request.body
    oci.get("clusters", body["clusterId"])
    config = body["nodeConfigDetails"]
    place = config["placementConfigs"][0]
    _named(oci, place["subnetId"], (body.get("nodeSourceDetails") or {}).get("imageId", ""))
    compute = config.get("computeClusterId")
    if compute and oci.get("computeClusters", compute)["availabilityDomain"] != place["availabilityDomain"]:
        raise Refused(400, "InvalidParameter", "the compute cluster is in another availability domain")
    if compute and oci.get("computeClusters", compute)["lifecycleState"] != "ACTIVE":
        raise not_found()
    pool = oci.add("nodePools", {**body, "lifecycleState": "CREATING", "nodes": []}, oci.lag)
    return _pool_work(oci, pool, "NODEPOOL_CREATE", "CREATED")


def _pool_work(oci: FakeOci, pool: Json, kind: str, action: str) -> Answer:
    resources = [_resource("nodepool", pool["id"], action), _resource("cluster", pool["clusterId"], "IN_PROGRESS")]
    work = oci.work(kind, pool["compartmentId"], lambda: _fill(oci, pool), resources)
    return Answer(None, {"opc-work-request-id": work.id}, 202)


def _fill(oci: FakeOci, pool: Json) -> None:
    """Nodes up to the pool's size. Each is launched by itself: some may come where not all do."""
    config, shape = pool["nodeConfigDetails"], pool["nodeShape"]
    place = config["placementConfigs"][0]
    domain = place["availabilityDomain"]
    for node in pool["nodes"][max(config["size"], 0) :]:
        terminate(oci, node["id"])
    del pool["nodes"][max(config["size"], 0) :]
    missing = config["size"] - len(pool["nodes"])
    why = fake_iam.refused(oci, pool) if missing > 0 else None
    if why:
        pool["lifecycleState"] = "NEEDS_ATTENTION"
        raise Refused(404, "NotAuthorizedOrNotFound", why)
    compute = oci.tables["computeClusters"].get(config.get("computeClusterId") or "", {"lifecycleState": "ACTIVE"})
    error = NO_CAPACITY if compute["lifecycleState"] == "ACTIVE" else not_found()
    given, error = (0, oci.launch_error) if oci.launch_error else (missing, error)
    given = min(given, missing) if error is NO_CAPACITY else 0
    given = _taken(oci, domain, shape, given, False, place.get("capacityReservationId"))
    for _index in range(given):
        pool["nodes"].append(_node(oci, pool, domain, place["subnetId"]))
    _cycled(oci, pool, domain, place["subnetId"])
    pool["lifecycleState"] = "ACTIVE" if given == missing else "NEEDS_ATTENTION"
    if given < missing:
        raise of_nodes(error, missing - given)


IN_BOOT_VOLUME = ("nodeSourceDetails", "kubernetesVersion", "nodeMetadata", "sshPublicKey", "kmsKeyId")
"""Settings that a replaced boot volume takes; for another one the cycle fails."""


def _settings(pool: Json) -> Json:
    """What a node is made from."""
    config = pool["nodeConfigDetails"]
    made = {key: pool.get(key) for key in (*IN_BOOT_VOLUME, "initialNodeLabels")}
    kept = ("kmsKeyId", "nsgIds", "isPvEncryptionInTransitEnabled")
    return json.loads(json.dumps({**made, **{key: config.get(key) for key in kept}}))


def _cycled(oci: FakeOci, pool: Json, domain: str, subnet: str) -> None:
    """Brings nodes to the pool's settings while cycling is enabled; those that have them stay. Whether OKE keeps the
    setting for later updates is not public: here it does, so that a caller who relies on the contrary loses nodes."""
    cycling = pool.get("nodePoolCyclingDetails") or {}
    if not cycling.get("isNodeCyclingEnabled"):
        return
    for index, node in enumerate(pool["nodes"]):
        new, old = _settings(pool), node["settings"]
        differing = [key for key in new if new[key] != old.get(key)]
        if differing and cycling.get("cycleModes") == ["BOOT_VOLUME_REPLACE"]:
            if set(differing) - set(IN_BOOT_VOLUME):
                raise Refused(400, "InvalidParameter", f"{differing} cannot be changed by replacing the boot volume.")
            node["settings"] = new
        elif differing:
            terminate(oci, node["id"])
            pool["nodes"][index] = _node(oci, pool, domain, subnet)


def _node(oci: FakeOci, pool: Json, domain: str, subnet: str) -> Json:
    boot = oci.durations["boot"]
    told = {"id": oci.ocid("instance"), "nodePoolId": pool["id"], "availabilityDomain": domain, "subnetId": subnet}
    node = {**told, "lifecycleState": "CREATING"}
    more = {
        "metadata": {"oke-cluster-id": pool["clusterId"], "oke-pool-id": pool["id"], **pool.get("nodeMetadata", {})},
        "imageId": (pool.get("nodeSourceDetails") or {}).get("imageId", ""),
        "poolId": pool["id"],
        "poolKind": "node_pool",
        "poolName": pool["name"],
        "clusterId": pool["clusterId"],
        "computeClusterId": pool["nodeConfigDetails"].get("computeClusterId") or "",
        "labels": {item["key"]: item["value"] for item in pool.get("initialNodeLabels") or []},
        "freeformTags": pool["nodeConfigDetails"].get("freeformTags") or {},
        "displayName": f"oke-{pool['clusterId'][-11:]}-{pool['id'][-11:]}-{next(oci._ids)}",
    }
    places = pool["nodeConfigDetails"]["placementConfigs"][0].get("faultDomains")
    more.update({"faultDomain": places[0]} if places else {})
    made = launch(oci, pool["compartmentId"], pool["nodeShape"], domain, subnet, boot, id=node["id"], **more)
    state = "CREATING" if boot > 0 else "ACTIVE"
    node["settings"] = _settings(pool)
    shown = {"name": made["displayName"], "privateIp": made["privateIp"], "faultDomain": made["faultDomain"]}
    return {**node, **shown, "lifecycleState": state}


@route("PUT", f"{OKE}/nodePools/{{key}}")
def _update_pool(oci: FakeOci, request: Request, key: str) -> Any:
    pool, body = oci.get("nodePools", key), dict(request.body)
    matched(pool, request)
    oci.busy(key, "node pool")
    if pool["lifecycleState"] not in ("ACTIVE", "NEEDS_ATTENTION"):
        raise Refused(409, "IncorrectState", f"The node pool is {pool['lifecycleState']}.")
    config = {**pool["nodeConfigDetails"], **body.pop("nodeConfigDetails", {})}
    cycling = body.get("nodePoolCyclingDetails") or {}
    if cycling.get("isNodeCyclingEnabled") and not any(
        int(str(cycling.get(key, most)).rstrip("%")) for key, most in (("maximumSurge", 1), ("maximumUnavailable", 0))
    ):
        raise Refused(400, "InvalidParameter", "maximumSurge and maximumUnavailable are both 0.")
    pool.update({**body, "nodeConfigDetails": config, "lifecycleState": "UPDATING"})
    kind = "NODEPOOL_CYCLING" if cycling.get("isNodeCyclingEnabled") else "NODEPOOL_UPDATE"
    return _pool_work(oci, pool, kind, "UPDATED")


@route("DELETE", f"{OKE}/nodePools/{{key}}/node/{{node}}")
def _delete_node(oci: FakeOci, request: Request, key: str, node: str) -> Any:
    pool = oci.get("nodePools", key)
    going = next((item for item in pool["nodes"] if item["id"] == node), None)
    if going is None:
        raise not_found()
    matched(pool, request)
    oci.busy(key, "node pool")
    going["lifecycleState"] = "DELETING"
    pool.setdefault("deletions", []).append(dict(request.query))

    def finish() -> None:
        pool["nodes"][:] = [item for item in pool["nodes"] if item["id"] != node]
        terminate(oci, node)
        if request.query.get("isDecrementSize") == "true":
            pool["nodeConfigDetails"]["size"] -= 1
        else:
            _fill(oci, pool)

    resources = [_resource("nodepool", key, "UPDATED")]
    work = oci.work("NODEPOOL_RECONCILE", pool["compartmentId"], finish, resources)
    return Answer(None, {"opc-work-request-id": work.id}, 202)


@route("DELETE", f"{OKE}/nodePools/{{key}}")
def _delete_pool(oci: FakeOci, request: Request, key: str) -> Any:
    pool = oci.get("nodePools", key)
    matched(pool, request)
    oci.busy(key, "node pool")
    pool["lifecycleState"] = "DELETING"

    def finish() -> None:
        for node in pool["nodes"]:
            terminate(oci, node["id"])
        pool.update({"nodes": [], "lifecycleState": "DELETED"})

    resources = [_resource("nodepool", key, "DELETED")]
    work = oci.work("NODEPOOL_DELETE", pool["compartmentId"], finish, resources)
    return Answer(None, {"opc-work-request-id": work.id}, 202)


@route("GET", f"{OKE}/nodePools")
def _node_pools(oci: FakeOci, request: Request) -> Any:
    """The list has no nodes; only a single pool has."""
    items = [{key: value for key, value in item.items() if key != "nodes"} for item in oci.tables["nodePools"].values()]
    return oci.listed(items, request)


@route("GET", f"{OKE}/clusters/{{cluster}}/addons")
def _addons(oci: FakeOci, request: Request, cluster: str) -> Any:
    oci.get("clusters", cluster)
    return oci.addons.get(cluster, [])


@route("POST", f"{OKE}/clusters/{{cluster}}/kubeconfig/content")
def _kubeconfig(oci: FakeOci, request: Request, cluster: str) -> Any:
    """The certificate authority is the cluster's ``certificateAuthority`` (base64), of our own invention else."""
    found = oci.get("clusters", cluster)
    ends = found.get("endpoints") or {}
    server = ends.get("publicEndpoint") or ends.get("privateEndpoint") or ""
    authority = found.get("certificateAuthority") or base64.b64encode(f"CA of {cluster}".encode()).decode()
    told = {"cluster": {"certificate-authority-data": authority, "server": f"https://{server}"}, "name": "cluster"}
    text = json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [told]})
    return Answer(text.encode(), {"content-type": "application/x-yaml"})


@route("GET", f"{OKE}/nodePoolOptions/{{key}}")
def _options(oci: FakeOci, request: Request, key: str) -> Any:
    sources = [
        {"sourceType": "IMAGE", "imageId": item["id"], "sourceName": item.get("displayName", "")}
        for item in oci.tables["images"].values()
    ]
    return {"kubernetesVersions": ["v1.33.1", "v1.34.1"], "shapes": sorted(oci.shapes), "sources": sources}


@route("GET", f"{OKE}/clusterOptions/{{key}}")
def _cluster_options(oci: FakeOci, request: Request, key: str) -> Any:
    return {"kubernetesVersions": ["v1.33.1", "v1.34.1"]}
