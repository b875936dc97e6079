# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only file that talks to the API server. PRIVATE to the collection.

Requests are raw JSON over the kubernetes package's connection pool, because typed models refuse simulated and some real
nodes and cost ten times the parsing. How they authenticate: login.py.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import email.utils
import functools
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Busy,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.login import LOOPBACK, Login, first_line

with contextlib.suppress(ImportError):  # reported by Login, so that documentation renders without the library
    import urllib3

Json = dict[str, Any]
Items = list[Any]

PATIENCE = 40.0
"""Seconds for which a request is tried again while the server does not answer: an API server restart takes ~10 s."""
CONNECT, ANSWER = 5.0, 90.0
"""Seconds for a connection, and between two pieces of an answer: a server ends requests of its own after 60."""
LONGEST_LINE = 1 << 20
"""Bytes of a log's line that are kept in one piece: binary noise may have no line end at all."""
JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
STARTS = 10.0
"""Seconds for which a request is sent again that a server which has just started forbids."""
PAGE = 100
"""Objects in a page of a list: two pages are in memory at a time, and a node has 30 KB."""
VERSIONS = 500
"""Objects in a page of their metadata."""
NODES = "/api/v1/nodes"
_TURN = sys.getswitchinterval()
RESTARTS = 5
"""How often a list begins anew when the server has compacted its version away between two pages."""
_NO_ROLES = re.compile(rb'"system:basic-user\\?" not found')
"""In a refusal of a server without roles: each server makes this one when it starts,
https://kubernetes.io/docs/reference/access-authn-authz/rbac/#discovery-roles."""
_RETRY_STATUS = (429, 500, 502, 503, 504)
_BUDGET = b'"DisruptionBudget"'
"""Reason in the answer to an eviction that a PodDisruptionBudget forbids."""
_CONTINUE = re.compile(rb'"continue"\s*:\s*"([^"]+)"')
_PARTIAL = b'{"kind":"PartialObjectMetadata",'
_VERSION = re.compile(
    re.escape(_PARTIAL) + rb'"apiVersion":"meta\.k8s\.io/v1",'
    rb'"metadata":\{"name":"([^"\\]+)","uid":"([^"\\]+)","resourceVersion":"([^"\\]+)"'
)
_WHOLE = re.compile(r'^.*: Invalid value: "\{.*\}": (?=strict decoding error: )', re.DOTALL)
"""A patch that is refused for its fields is answered with the whole object, whatever is in it."""
_SURROGATES = re.compile(r"\\ud[89ab]..\\ud[c-f]..")
_LIST_VERSION = re.compile(rb'^\{"kind":"PartialObjectMetadataList",[^{]*"metadata":\{"resourceVersion":"([^"\\]+)"')


def base_path(api_version: str) -> str:
    """``/api/v1`` or ``/apis/<group>/<version>``."""
    return f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"


def boottime() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Client:
    """A connection to one API server. Every error is a ClusterError whose text says what was attempted on what."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._pool = login.pool
        self.host = login.host
        self.requests = 0
        self.say: Callable[[str], None] = lambda line: None
        """Prints that a server does not answer and is tried again."""
        self._waits = False
        # Over loopback compressing costs the server more than it saves.
        self._encoding = "identity" if (urlsplit(self.host).hostname or "") in LOOPBACK else "gzip"
        self._count = threading.Lock()
        self._discovered: dict[str, dict[str, tuple[str, bool]]] = {}
        self._dated = (0.0, 0.0)
        self.patience = PATIENCE
        self._granted: set[str] = set()
        self.guard: Callable[[], None] = _unguarded
        """Called before each write that is no dry run; what it raises keeps the write from being sent."""
        self.wrote: Callable[[], bool] = lambda: True
        """Whether the run has written to the cluster; True where that is not known."""
        self.at_end: Callable[[str], Optional[bool]] = lambda _path: None
        """None: the object is removed now. Else it goes at the run's end, as the run needs it until then: whether it
        was there before the run."""
        self.beside: Callable[[], Optional[Collection[str]]] = lambda: None
        """Ids of the other runs that work on nodes of the cluster now. None: the run has the cluster alone, and what
        carries another run's id is a leftover."""
        self.suffix: Callable[[], str] = lambda: ""
        """Of the name of an object that lives only during this run: the run's id and a number that no earlier one of
        the run has, see names.of_run. "" where no run is known."""

    @classmethod
    def connect(cls, auth: Mapping[str, Any]) -> Client:
        """A connected client. Raises InputError for a kubeconfig, login program or certificates that cannot be used."""
        return cls(Login(auth))

    def unguarded(self, patience: float = PATIENCE) -> Client:
        """The same connection, whose writes no guard is asked about, which prints nothing and whose requests are not
        counted. ``patience``: seconds for which it tries a request."""
        plain = copy.copy(self)
        plain.guard, plain.patience, plain.say = _unguarded, patience, lambda line: None
        return plain

    def reconnect(self) -> None:
        """Forgets the connections: those of a process are not those of its child."""
        self._pool.clear()
        self._count = threading.Lock()

    def now(self) -> datetime.datetime:
        """The API server's time, from its last answer; that of this machine if it has not said one."""
        said, at = self._dated
        seconds = said + boottime() - at if said else time.time()
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

    # ---- paths -------------------------------------------------------------------------------------------------

    def path(self, api_version: str, kind: str, namespace: str = "", name: str = "") -> str:
        """The URL path of a kind's collection or of one object. NotFound when the server does not know the kind."""
        plural, namespaced = self.resource(api_version, kind)
        path = base_path(api_version)
        if namespaced and namespace:
            path += f"/namespaces/{namespace}"
        return f"{path}/{plural}/{name}" if name else f"{path}/{plural}"

    def path_of(self, obj: Json) -> str:
        """The URL path of this object, from its kind, namespace and name."""
        meta = obj["metadata"]
        return self.path(obj["apiVersion"], obj["kind"], meta.get("namespace", ""), meta["name"])

    def resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        """The resource of a kind, and whether it is namespaced. NotFound when the server does not know the kind."""
        return KINDS.get((api_version, kind)) or self._discover(api_version, kind)

    def _discover(self, api_version: str, kind: str) -> tuple[str, bool]:
        known = self._discovered.get(api_version)
        if known is None or kind not in known:
            listed = self.get(base_path(api_version)).get("resources", [])
            known = {item["kind"]: (item["name"], item["namespaced"]) for item in listed if "/" not in item["name"]}
            self._discovered[api_version] = known
        if kind not in known:
            raise NotFound(f"The API server has no kind {kind} in {api_version}.", 404)
        return known[kind]

    # ---- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str, query: Optional[Mapping[str, str]] = None) -> Json:
        """The document at ``path``. Raises NotFound where there is none."""
        return _document(self._request("GET", path, query))

    def find(self, path: str) -> Optional[Json]:
        """The object, or None when it (or its kind) does not exist."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def raw_pages(
        self,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE,
        metadata_only: bool = False,
    ) -> Iterator[bytes]:
        """List documents as bytes. The next page is fetched while the caller handles this one, because its token comes
        before the items. Raises Gone when a token is too old: start again then."""
        ask = functools.partial(self._request, "GET", path, accept=METADATA_ONLY if metadata_only else JSON)
        query = {"limit": str(limit)}
        query.update({"labelSelector": label_selector} if label_selector else {})
        query.update({"fieldSelector": field_selector} if field_selector else {})
        with ThreadPoolExecutor(max_workers=1) as ahead, _short_turns():
            pending = ahead.submit(ask, query)
            while True:
                page = pending.result()
                token = _CONTINUE.search(page, 0, 4096)
                if token:
                    following = {**query, "continue": json.loads(b'"' + token.group(1) + b'"')}
                    pending = ahead.submit(ask, following)
                yield page
                if not token:
                    return

    def pages(
        self, path: str, *, label_selector: str = "", field_selector: str = "", limit: int = PAGE
    ) -> Iterator[Json]:
        """The collection's list documents, ``limit`` items each; of nodes without images and managed fields. Raises
        Gone when a page's token is too old."""
        read = _nodes if path == NODES else _document
        for page in self.raw_pages(path, label_selector=label_selector, field_selector=field_selector, limit=limit):
            yield read(page)

    def projected_at(
        self, path: str, read: Callable[[Json], Any], *, limit: int = PAGE, **selectors: str
    ) -> tuple[Items, str]:
        """``read(item)`` of all items, page by page, so that no whole object outlives its page, and the resourceVersion
        to watch from; starts again when a page's token is too old."""

        def read_pages() -> Iterator[tuple[Items, str]]:
            for page in self.pages(path, limit=limit, **selectors):
                yield list(map(read, page.pop("items", None) or [])), _list_version(page)

        return _anew_on_gone(read_pages)

    def projected(self, path: str, read: Callable[[Json], Any], *, limit: int = PAGE, **selectors: str) -> Items:
        """``read(item)`` of all items, as ``projected_at`` without the version."""
        return self.projected_at(path, read, limit=limit, **selectors)[0]

    def versions(self, path: str, *, label_selector: str = "") -> tuple[Items, str]:
        """(name, uid/resourceVersion) of all objects of a cluster-wide collection, and the version to watch from.

        Only metadata comes over the wire, and of it only these fields are read: parsing the labels and managed fields
        of 1,000 nodes took 0.1 s, finding the versions in them 0.01 s.
        """
        return _anew_on_gone(
            lambda: map(
                _versions, self.raw_pages(path, label_selector=label_selector, metadata_only=True, limit=VERSIONS)
            )
        )

    def list_at(self, path: str, *, limit: int = PAGE, **selectors: str) -> tuple[Items, str]:
        """All items, whole, and the resourceVersion to watch from."""
        return self.projected_at(path, lambda item: item, limit=limit, **selectors)

    def list(self, path: str, *, label_selector: str = "", field_selector: str = "", limit: int = PAGE) -> list[Json]:
        """All items, whole. For large collections use ``projected``."""
        return self.list_at(path, label_selector=label_selector, field_selector=field_selector, limit=limit)[0]

    def watch(
        self, path: str, *, resource_version: str, timeout: float, label_selector: str = "", field_selector: str = ""
    ) -> Iterator[tuple[str, Json]]:
        """(event type, object) for ``timeout`` seconds. Raises Gone (list again) or Unreachable (cut off)."""
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, int(timeout))),
            "allowWatchBookmarks": "true",
        }
        query.update({"labelSelector": label_selector} if label_selector else {})
        query.update({"fieldSelector": field_selector} if field_selector else {})
        for line in self._stream(path, query, timeout + 10):
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise _error("watch", path, int(status.get("code") or 0), json.dumps(status).encode())
            yield event["type"], event["object"]

    def log_lines(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        tail: int = 0,
        since: str = "",
        timestamps: bool = False,
    ) -> Iterator[str]:
        """The lines of a container's log, as far as its node has not rotated them away. ``tail``: only that many from
        the end; ``since``: RFC 3339, of which the server reads whole seconds; ``timestamps``: each line with its own in
        front, also empty lines, which are left out otherwise. Raises Unreachable when cut off."""
        query = {"container": container} if container else {}
        query.update({"follow": "true"} if follow else {})
        query.update({"tailLines": str(tail)} if tail else {})
        query.update({"sinceTime": since} if since else {})
        query.update({"timestamps": "true"} if timestamps else {})
        path = f"{self.path('v1', 'Pod', namespace, pod)}/log"
        for line in self._stream(path, query, 120.0, longest=LONGEST_LINE):
            yield line.decode("utf-8", "replace")

    # ---- writing -----------------------------------------------------------------------------------------------

    def apply(self, obj: Json, *, dry_run: bool = False, force: bool = True) -> Json:
        """The object after a server-side apply as field manager gpuops-rdma; the server refuses unknown fields."""
        self._ask_guard(dry_run)
        query = {"fieldManager": OWNER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        content = "application/apply-patch+yaml"
        return _document(self._request("PATCH", self.path_of(obj), _dry(query, dry_run), _yaml(obj), content))

    def admitted(self, obj: Json) -> Json:
        """The object as the server would create it, with what admission adds. Nothing is created."""
        query = _dry({"fieldManager": OWNER, "fieldValidation": "Strict"}, True)
        path = self.path(obj["apiVersion"], obj["kind"], obj["metadata"].get("namespace", ""))
        return _document(self._request("POST", path, query, json.dumps(obj).encode(), idempotent=True))

    def patch(self, path: str, body: Any, *, kind: str = "merge", dry_run: bool = False) -> Json:
        """The object after the patch. ``kind``: merge, json or strategic-merge; the server refuses unknown fields, as
        in apply()."""
        self._ask_guard(dry_run)
        content = f"application/{kind}-patch+json"
        query = _dry({"fieldManager": OWNER, "fieldValidation": "Strict"}, dry_run)
        return _document(self._request("PATCH", path, query, json.dumps(body).encode(), content))

    def create(self, path: str, obj: Json) -> Json:
        """The object after it was created in the collection. Raises Conflict if there is one of that name, NotFound
        if its namespace does not exist."""
        self._ask_guard(False)
        query = {"fieldManager": OWNER, "fieldValidation": "Strict"}
        return _document(self._request("POST", path, query, json.dumps(obj).encode(), idempotent=True))

    def delete(
        self,
        path: str,
        *,
        propagation: str = "Background",
        dry_run: bool = False,
        version: str = "",
        grace: Optional[int] = None,
    ) -> bool:
        """False when the object was not there. With a ``version`` Conflict is raised if it has another. ``grace``:
        seconds that a pod gets, None = its own; with 0 the API server removes it without its kubelet's confirmation."""
        self._ask_guard(dry_run)
        # The server does not read a DELETE's query when there is a body.
        body: Json = {"propagationPolicy": propagation, **({"dryRun": ["All"]} if dry_run else {})}
        body.update({"preconditions": {"resourceVersion": version}} if version else {})
        body.update({} if grace is None else {"gracePeriodSeconds": grace})
        try:
            self._request("DELETE", path, None, json.dumps(body).encode())
        except NotFound:
            return False
        return True

    def delete_all(self, path: str, label_selector: str) -> None:
        """Deletes the objects of a collection that match the label selector, in one request."""
        self._ask_guard(False)
        self._request("DELETE", path, {"labelSelector": label_selector})

    def evict(self, namespace: str, pod: str, *, dry_run: bool = False) -> bool:
        """False when the pod was not there. Raises Busy, naming the PodDisruptionBudget, when one forbids it now."""
        self._ask_guard(dry_run)
        meta = {"name": pod, "namespace": namespace}
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        body |= {"deleteOptions": {"dryRun": ["All"]}} if dry_run else {}
        try:
            self._request("POST", f"{self.path('v1', 'Pod', namespace, pod)}/eviction", {}, json.dumps(body).encode())
        except NotFound:
            return False
        return True

    def _ask_guard(self, dry_run: bool) -> None:
        if not dry_run:
            self.guard()

    def allowed(self, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """Whether a SelfSubjectAccessReview allows this user the request. A ``resource`` that begins with / is a path
        of the server."""
        plural, _sep, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
        attributes.update(namespace=namespace, name=name)
        spec: Json = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        if resource.startswith("/"):
            spec = {"nonResourceAttributes": {"path": resource, "verb": verb}}
        review: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        path, body = self.path(review["apiVersion"], review["kind"]), json.dumps(review).encode()
        answer = _document(self._request("POST", path, {}, body, idempotent=True))
        return bool(answer.get("status", {}).get("allowed"))

    def rules(self, namespace: str) -> Items:
        """The RBAC rules of this user in a namespace, those of the whole cluster too."""
        review: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        body = json.dumps({**review, "spec": {"namespace": namespace}}).encode()
        path = f"{base_path(review['apiVersion'])}/selfsubjectrulesreviews"
        status = _document(self._request("POST", path, {}, body, idempotent=True)).get("status") or {}
        return [*(status.get("resourceRules") or ()), *(status.get("nonResourceRules") or ())]

    # ---- the wire ----------------------------------------------------------------------------------------------

    def _headers(self, content_type: str = JSON, accept: str = JSON) -> dict[str, str]:
        headers = {"Accept": accept, "Accept-Encoding": self._encoding, "Content-Type": content_type}
        credential = self.login.header()
        return {**headers, "Authorization": credential} if credential else headers

    def _failure(self, method: str, path: str, status: int, data: bytes, headers: Mapping[str, str]) -> ClusterError:
        failure = _error(method, path, status, data)
        login = self.login.refusal(status, str(failure), headers.get("Authorization", ""))
        return Forbidden(f"Failed to {_verb(method)} {path}: {login}", status, failure.reason) if login else failure

    def _renewed(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether a request that failed with this status can be sent again with another credential."""
        return status == 401 and self.login.renew(headers.get("Authorization", ""))

    def _request(
        self,
        method: str,
        path: str,
        query: Optional[Mapping[str, str]] = None,
        body: Optional[bytes] = None,
        content_type: str = JSON,
        idempotent: Optional[bool] = None,
        accept: str = JSON,
    ) -> bytes:
        """``idempotent``: the request may be sent again when the answer is lost; by default, all but POST may."""
        again = method != "POST" if idempotent is None else idempotent
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        begin = time.monotonic()
        deadline = begin + self.patience
        pause, renewed = 0.2, False
        while True:
            status, data = 0, b""
            try:
                with self._count:
                    self.requests += 1
                headers = self._headers(content_type, accept)
                answer = self._pool.request(
                    method, url, body=body, headers=headers, timeout=urllib3.Timeout(connect=CONNECT, read=ANSWER)
                )
                status, data = int(answer.status), bytes(answer.data)
                if said := email.utils.parsedate_tz(answer.headers.get("Date", "")):
                    self._dated = (email.utils.mktime_tz(said), boottime())
                if status < 400:
                    self._waits = False
                    self._granted.add(path)
                    return data
                if not renewed and self._renewed(status, headers):
                    renewed = True
                    continue
                failure: ClusterError = self._failure(method, path, status, data, headers)
            except urllib3.exceptions.HTTPError as error:
                failure = Unreachable(f"Failed to {_verb(method)} {path} at {self.host}: {_cause(error)}.")
                if _unrecoverable(error):
                    raise failure from None
            # A server that has just started knows no roles until its cache is filled, and refuses what it granted.
            starts = status == 403 and again and (path in self._granted or bool(_NO_ROLES.search(data)))
            starts = starts and time.monotonic() < begin + STARTS
            if not starts and (time.monotonic() + pause > deadline or not _worth_retrying(again, status, data)):
                raise failure from None
            if not self._waits:
                self._waits = True
                self.say(f"{failure} Trying again for {PATIENCE:.0f} s.")
            time.sleep(pause)
            pause = min(pause * 2, 3.0)

    def _stream(self, path: str, query: Mapping[str, str], read_timeout: float, longest: int = 0) -> Iterator[bytes]:
        """Lines of a streamed answer, cut at ``longest`` bytes (0: never). Raises Unreachable when it is cut off."""
        url = f"{self.host}{path}?{urlencode(query)}"
        timeout = urllib3.Timeout(connect=CONNECT, read=read_timeout)
        try:
            for last in (False, True):
                with self._count:
                    self.requests += 1
                headers = {**self._headers(), "Accept-Encoding": "identity"}
                answer = self._pool.request("GET", url, headers=headers, preload_content=False, timeout=timeout)
                if answer.status < 400:
                    break
                refused = bytes(answer.read())
                if last or not self._renewed(int(answer.status), headers):
                    raise self._failure("watch", path, int(answer.status), refused, headers)
            yield from _lines(answer, longest)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"The stream {path} from {self.host} was cut off: {_cause(error)}.") from None
        finally:
            with contextlib.suppress(Exception, UnboundLocalError):
                answer.close()


def _unguarded() -> None:
    """Nobody is asked."""


def _lines(answer: Any, longest: int = 0) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(65536, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
        if longest and len(rest) > longest:
            yield rest
            rest = b""
    if rest:
        yield rest


def _anew_on_gone(read_pages: Callable[[], Iterable[tuple[Items, str]]]) -> tuple[Items, str]:
    """All pages' items and the last page's version; from the first page again when a page's token is too old."""
    for attempt in range(RESTARTS):
        found: Items = []
        version = ""
        try:
            for items, at in read_pages():
                found += items
                version = at
            return found, version
        except Gone:
            if attempt == RESTARTS - 1:
                raise
    raise AssertionError("unreachable")


def _list_version(document: Json) -> str:
    return str(document.get("metadata", {}).get("resourceVersion", ""))


def _versions(page: bytes) -> tuple[Items, str]:
    """Quotes inside a JSON string are escaped, so the count of items is exact; anything unexpected is parsed."""
    head, found = _LIST_VERSION.match(page), _VERSION.findall(page)
    if head and len(found) == page.count(_PARTIAL):
        return [(name.decode(), f"{uid.decode()}/{at.decode()}") for name, uid, at in found], head[1].decode()
    document = _document(page)
    items = [item["metadata"] for item in document.get("items") or []]
    return (
        [(meta["name"], f"{meta.get('uid', '')}/{meta.get('resourceVersion', '')}") for meta in items],
        _list_version(document),
    )


def _dry(query: dict[str, str], dry_run: bool) -> dict[str, str]:
    return {**query, "dryRun": "All"} if dry_run else query


def _yaml(obj: Json) -> bytes:
    """JSON that is valid YAML: the server's parser refuses a character beyond U+FFFF escaped as two surrogates."""
    return _SURROGATES.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), json.dumps(obj)).encode()


def _document(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except ValueError:
        raise ClusterError(f"The API server's answer is not JSON: {data[:80]!r}...") from None
    return value if isinstance(value, dict) else {"items": value}


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Python's threads take turns of 0.2 ms. In turns of 5 ms, a request waits for a turn while a page is parsed, and
    so does each record of the answer: 5,000 nodes took 1.43 s instead of 1.15."""
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(_TURN)


def _nodes(page: bytes) -> Json:
    """A list of nodes without what is most of it and what nothing here reads: cut out before the page is parsed. A cut
    that ends inside a string leaves no valid JSON; then all of the page is parsed."""
    lean = functools.reduce(_without, (b',"images":[{', b',"managedFields":[{'), page)
    with contextlib.suppress(ValueError):
        return dict(json.loads(lean))
    return _document(page)


def _without(page: bytes, key: bytes) -> bytes:
    """``page`` without the arrays that begin with ``key``, of objects that hold no arrays of objects."""
    first, *others = page.split(key)
    return b"".join((first, *(other.partition(b"}]")[2] for other in others)))


def _verb(method: str) -> str:
    return {"GET": "read", "PATCH": "apply", "POST": "create", "DELETE": "delete", "watch": "watch"}.get(method, method)


def _error(method: str, path: str, status: int, data: bytes) -> ClusterError:
    try:
        document = json.loads(data)
        message, reason = _WHOLE.sub("", str(document.get("message") or "")), str(document.get("reason") or "")
    except (ValueError, AttributeError):
        message, reason = data[:200].decode("utf-8", "replace"), ""
    kind: type[ClusterError] = {401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone}.get(
        status, ClusterError
    )
    if status == 429 and _BUDGET in data:
        kind, causes = Busy, (document.get("details") or {}).get("causes") or []
        message = " ".join(str(one.get("message")) for one in causes) or message
    hint = _hint(path, message)
    return kind(
        f"Failed to {_verb(method)} {path}: {message or reason} (HTTP {status}).{hint}", status, reason, message
    )


def _hint(path: str, message: str) -> str:
    """What to do about a refusal whose cause is another object than the one applied; "" if nothing is known."""
    webhook = re.search(r'failed calling webhook "([^"]+)"', message)
    if webhook:
        service = re.search(r"https://[\w-]+\.([\w-]+)\.svc\b", message)
        kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
        look = f"kubectl -n {service[1]} get service,endpoints,pods" if service else f"kubectl get {kinds}"
        return (
            f" The admission webhook {webhook[1]} does not answer: repair its service, or remove its "
            f"configuration. See: {look}"
        )
    resource = re.match(r"/apis/([\w-]+(?:\.[\w-]+)+)/[^/]+/(?:namespaces/[^/]+/)?([\w-]+)", path)
    if resource and 'unknown field "' in message and not resource[1].endswith(".k8s.io"):
        name = f"{resource[2]}.{resource[1]}"
        return f" The cluster's definition (CRD) is from another release and lacks it. See: kubectl describe crd {name}"
    return ""


def _worth_retrying(again: bool, status: int, data: bytes) -> bool:
    if status == 0:
        return again
    # A webhook that cannot be reached answers 500 as well as a restarting server does, and a PodDisruptionBudget 429 as
    # a busy one does; their text distinguishes them.
    lasting = b"webhook" in data or _BUDGET in data
    return status in _RETRY_STATUS and not lasting and (again or status in (429, 503))


def live(client: Client, obj: Json) -> Optional[Json]:
    """The object as the cluster has it, or None when it (or its kind) does not exist."""
    try:
        return client.find(client.path_of(obj))
    except NotFound:
        return None


_DISAGREED = re.compile(
    r"CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|PROTOCOL|WRONG_VERSION|CIPHER|UNRECOGNIZED_NAME|HTTP_REQUEST|match"
)
"""TLS errors that no later try heals. Others, as an end of file or a decode error, are those of a server or of a load
balancer that is just going away."""


def _unrecoverable(error: Exception) -> bool:
    """Whether trying again is useless: wrong certificates and unknown host names."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, urllib3.exceptions.SSLError):
        return bool(_DISAGREED.search(str(reason)))
    return isinstance(reason, socket.gaierror) or "NameResolutionError" in type(reason).__name__


def _cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    text = first_line(reason)
    for noise in (
        r"<[^>]*object at 0x[0-9a-f]+>:?\s*",
        r"HTTPS?Connection\([^)]*\):?\s*",
        r"HTTPS?ConnectionPool\([^)]*\):?\s*",
    ):
        text = re.sub(noise, "", text)
    return text or type(error).__name__
