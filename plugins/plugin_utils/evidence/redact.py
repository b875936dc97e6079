# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replaces what names a site in texts and documents by pseudonyms, and hides secrets. PRIVATE to the collection.

Names that are known (of nodes, hosts, users, paths) are replaced wherever they stand, also within other names; what has
a form (addresses, OCIDs, host names, e-mails) by its form. It rather replaces too much: a pseudonym costs little.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import HIDDEN, Secrets

LEFT_OUT = "(left out)"
_PLAIN = re.compile(
    "all|any|admin|cluster|default|fail|false|gpu|host|kubernetes|localhost|nodes?|none|null|opc|pass|root|true|ubuntu|"
    "unknown|user"
)
"""Words that name nothing of a site."""
_PUBLIC = re.compile(
    r"(?:.*\.)?(?:ansible\.com|cluster\.local|cncf\.io|coreos\.com|docker\.io|gcr\.io|ghcr\.io|github\.com|gnu\.org|"
    r"in-toto\.io|k8s-sigs\.io|k8s\.io|kubeflow\.org|kubernetes\.io|mellanox\.com|nvcr\.io|nvidia\.com|ocir\.io|"
    r"openshift\.io|oracle\.com|python\.org|quay\.io|redhat\.(?:com|io)|svc|volcano\.sh|x-k8s\.io)|"
    r"(?:oke|oci)\.oraclecloud\.com|localhost|v?\d+(?:\.\d+){1,2}(?:[-+~]\w+)*"
)
"""Domains of vendors, of Kubernetes' API groups, labels and services, and what is below them; the
version in containerd://1.7.27."""
_DOMAIN = (
    r"(?:[\w-]+\.)+(?:com|net|org|io|dev|ai|cloud|internal|intranet|local|localdomain|lan|corp|home|example|test|edu|gov|"
    r"info|biz)|(?:[\w-]+\.){2,}(?:at|au|be|br|ca|ch|cn|cz|de|dk|es|eu|fi|fr|hk|ie|il|in|it|jp|kr|nl|no|pl|se|sg|tw|uk|us)"
)
_NO_HOST = re.compile(r"127\.|255\.|0\.0\.0\.0|169\.254\.169\.254")
_HEX = r"[0-9a-fA-F]"
_FORMS = tuple(
    (kind, re.compile(form))
    for kind, form in (
        ("ocid", r"(?<![A-Za-z0-9])ocid1\.[\w.-]*\w"),
        ("user", r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
        ("user", r"(?:/home/|/Users/)([\w.-]*\w)"),
        ("user", r"(?i:\buser(?:name)?[\"']?(?:\s*[:=]\s*[\"']?|\s+[\"']))(?!system:|\d+\b)([\w.@+-]+)"),
        ("path", r"(?:~|\.{1,2})?/[^\s\"',:;]{0,300}(?:kubeconfig|\.kube\b)[^\s\"',:;]*"),
        ("path", r"kubeconfig[\"']?[\s:=]+[\"']?([^\s\"',;]*[./][^\s\"',;]*)"),
        ("mac", rf"(?<![0-9A-Za-z])(?:{_HEX}{{2}}[:-]){{5,19}}{_HEX}{{2}}(?![0-9A-Za-z])"),
        ("uuid", rf"(?<!{_HEX}){_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}(?!{_HEX})"),
        # a version of OFED, such as 24.10-3.2.5.0, is none
        ("ip", r"(?<!\d)(?<!\d\.)(?<!\d\.\d-)(?<!\d\.\d\d-)(?:\d{1,3}\.){3}\d{1,3}(?!\d)"),
        ("ip6", rf"(?<![0-9A-Za-z])(?:{_HEX}{{0,4}}:){{2,9}}{_HEX}{{0,4}}(?![0-9A-Za-z])"),
        ("guid", rf"(?<![0-9A-Za-z])(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}(?![0-9A-Za-z])|0x{_HEX}{{16}}(?!{_HEX})"),
        ("ip", r"(?<![A-Za-z0-9])ip(?:-\d{1,3}){4}(?!\d)"),
        ("tenancy", r"\.ocir\.io/([\w-]+)"),
        ("host", r"://(?:[^/\s\"'<>@]{0,300}@)?([\w.-]*\w)"),
        ("host", r"(?<![\w./:-])([A-Za-z0-9][\w.-]*):\d{2,5}/"),
        ("host", rf"(?<![\w-])(?<![\w-]\.)(?:{_DOMAIN})(?![A-Za-z0-9])"),
        ("serial", r"(?i:\bserial(?:[ _-]?number)?[\"']?\s*[:=]\s*[\"']?)([\w-]{5,})"),
    )
)
_KEY = re.compile(r"LS0tLS1CRUdJTi[\w+/=-]{8,}")
"""PEM in base64, as kubeconfigs and Secrets have it."""
_BY_NAME = {"serial": "serial", "serial_number": "serial", "user": "user", "username": "user", "holderIdentity": "user"}
_NODE_KEYS = ("node", "nodeName", "hostname", "partner", "a", "b")
_ATOM = re.compile(r"[A-Za-z0-9]+")
_NAME = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")


def pseudonym(salt: bytes, kind: str, name: str) -> str:
    """``node-1f0c...``: the same for the same salt; without the salt no name leads to it."""
    return f"{kind}-{keyed(salt, kind, name)[:16]}"


def keyed(salt: bytes, kind: str, name: str) -> str:
    """The whole digest that a pseudonym begins with."""
    return hmac.new(salt, f"{kind}\0{name}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def nodes_in(document: Any) -> Iterator[str]:
    """Names of nodes and hosts in a document of a run, by the keys under which they stand."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if key in _NODE_KEYS and isinstance(value, str) and _NAME.fullmatch(value):
                yield value
            elif key == "hosts" and isinstance(value, Mapping):
                yield from map(str, value)
            elif key in ("nodes", "good", "between") and isinstance(value, list):
                yield from (one if isinstance(one, str) else one["name"] for one in value if _named(one))
            yield from nodes_in(value)
    elif isinstance(document, list):
        for item in document:
            yield from nodes_in(item)


def _named(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, Mapping) and isinstance(item.get("name"), str))


class Redactor:
    """``names``: kind -> names that are replaced wherever they stand; the first kind of a name counts. ``secrets``:
    hides what it has learned, and secrets by their form."""

    def __init__(self, salt: bytes, names: Mapping[str, Iterable[str]], secrets: Secrets) -> None:
        self._salt, self._secrets = salt, secrets
        self._counts: Counter[str] = Counter()
        self._known: dict[str, tuple[str, str]] = {}
        self._longest: dict[str, int] = {}
        """First part of a name -> most parts of a name that begins with it."""
        literal: dict[str, tuple[str, str]] = {}
        for kind, found in names.items():
            for name in found:
                if len(name) < 2 or _PLAIN.fullmatch(name.lower()):
                    continue
                if not _NAME.fullmatch(name):
                    literal.setdefault(name, (kind, name))
                for spelling in {name, name.replace(".", "-"), name.replace(".", "_")} if _NAME.fullmatch(name) else ():
                    self._known.setdefault(spelling.lower(), (kind, name))
                    parts = _ATOM.findall(spelling.lower())
                    self._longest[parts[0]] = max(self._longest.get(parts[0], 0), len(parts))
        self._literal = literal
        texts = "|".join(map(re.escape, sorted(literal, key=len, reverse=True)))
        self._any = re.compile(rf"(?<![A-Za-z0-9])(?:{texts})(?![A-Za-z0-9])") if texts else None

    def taken(self) -> dict[str, int]:
        """Kind -> how often it was replaced since the last call."""
        found, self._counts = dict(sorted(self._counts.items())), Counter()
        return found

    def _instead(self, kind: str, name: str) -> str:
        self._counts[kind] += 1
        return pseudonym(self._salt, kind, name)

    def text(self, text: str) -> str:
        """The text without secrets and names."""
        text = _KEY.sub(HIDDEN, self._secrets.text(text))
        self._counts["secret"] += text.count(HIDDEN)
        if self._any:
            text = self._any.sub(lambda found: self._instead(*self._literal[found[0]]), text)
        text = self._without_names(text)
        for kind, form in _FORMS:
            text = form.sub(lambda found, kind=kind: self._formed(kind, found), text)  # type: ignore[misc]
        self._counts += Counter()  # without zeros
        return text

    def _without_names(self, text: str) -> str:
        """Replaces the longest known name that begins with each part of a word."""
        atoms = list(_ATOM.finditer(text))
        parts, end, at = [], 0, 0
        while at < len(atoms):
            start, most = atoms[at].start(), self._longest.get(atoms[at][0].lower(), 0)
            for last in range(min(at + most, len(atoms)) - 1, at - 1, -1):
                known = self._known.get(text[start : atoms[last].end()].lower())
                if known:
                    parts += [text[end:start], self._instead(*known)]
                    end, at = atoms[last].end(), last
                    break
            at += 1
        return "".join([*parts, text[end:]])

    def _formed(self, kind: str, found: re.Match[str]) -> str:
        """What stands for a match: of its group, if it has one."""
        name = found[1 if found.re.groups else 0]
        start = found.start(1) - found.start() if found.re.groups else 0
        if kind == "ip6":
            kind, (start, name) = "ip", _address(name)
        if not _tells(kind, name):
            return found[0]
        return found[0][:start] + self._instead(kind, name) + found[0][start + len(name) :]

    def data(self, value: Any, key: str = "") -> Any:
        """JSON data without secrets and names, also in its keys; Secrets and values of environments are left out."""
        return self._walk(self._secrets.data(value, key), key)

    def _walk(self, value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            if value.get("kind") == "Secret":
                self._counts["object Secret"] += 1
                return {"kind": "Secret", "metadata": LEFT_OUT}
            return {self.text(str(name)): self._walk(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._variable(item) if key == "env" else self._walk(item, key) for item in value]
        if isinstance(value, str):
            kind = _BY_NAME.get(key, "") if value and not _PLAIN.fullmatch(value.lower()) else ""
            return self._instead(kind, value) if kind else self.text(value)
        return value

    def _variable(self, item: Any) -> Any:
        if not isinstance(item, Mapping) or "value" not in item:
            return self._walk(item, "")
        self._counts["value of a variable"] += 1
        return {"name": self.text(str(item.get("name"))), "value": LEFT_OUT}


def _tells(kind: str, name: str) -> bool:
    """Whether a match of a form is of a site. Pseudonyms are not replaced again."""
    if re.fullmatch(r"[a-z]+-[0-9a-f]{16}", name) or name == HIDDEN:
        return False
    if kind in ("ip", "host") and re.fullmatch(r"\d+(?:\.\d+){3}", name):
        return max(map(int, name.split("."))) < 256 and not _NO_HOST.match(name)
    if kind == "ip":
        return bool(name) and name not in ("::", "::1")
    if kind == "host":
        return not _PUBLIC.fullmatch(name.lower())
    return True


def _address(text: str) -> tuple[int, str]:
    """(place, address): the last one of the longest addresses of version 6 in digits and colons; "" without one."""
    parts = text.split(":")
    for size in range(len(parts), 2, -1):
        for at in range(len(parts) - size, -1, -1):
            name = ":".join(parts[at : at + size])
            with contextlib.suppress(ValueError):
                ipaddress.IPv6Address(name)
                return len(":".join(parts[:at])) + bool(at), name
    return 0, ""
