# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rights of an account taken out one after the other: whoever looks before a run has to name each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from gpuops_sandbox import account
from gpuops_sandbox.cluster import Sandbox

AT_ONCE = 6
"""Rights that are taken out together: each has to be named."""


def covers(one: Permission, other: Permission) -> bool:
    """Whether ``one`` is the wider of two different permissions."""
    rule = {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
    rule = {"nonResourceURLs": [one.resource], "verbs": [one.verb]} if one.resource.startswith("/") else rule
    named = {"resourceNames": [one.name]} if one.name else {}
    return one != other and one.namespace in ("", other.namespace) and permissions.allowed(other, [{**rule, **named}])


def single(asked: Iterable[Permission]) -> list[Permission]:
    """Those that no other one includes: without such a one, something is forbidden."""
    every = list(dict.fromkeys(asked))
    return [one for one in every if not any(covers(other, one) for other in every)]


def held(manifest: Iterable[dict[str, Any]]) -> list[Permission]:
    """The rights that the Roles of a manifest give."""
    return [
        Permission(verb, group, resource, item["metadata"].get("namespace", ""), name)
        for item in manifest
        for rule in item.get("rules") or ()
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ("",)
    ]


class Account:
    """The account of a manifest that a plan has written; ``every``: its rights."""

    def __init__(self, sandbox: Sandbox, manifest: Sequence[dict[str, Any]], every: Sequence[Permission]) -> None:
        self.sandbox, self.every = sandbox, list(every)
        self.roles = [item for item in manifest if item["kind"] in ("Role", "ClusterRole")]

    def grant(self, asked: Iterable[Permission]) -> None:
        """Gives the account these rights and no others."""
        api, name = self.sandbox.api(), self.roles[0]["metadata"]["name"]
        made = {(item["kind"], item["metadata"].get("namespace")): item for item in permissions.account(name, asked)}
        for item in self.roles:
            wanted = made.get((item["kind"], item["metadata"].get("namespace")), {**item, "rules": []})
            api.apply(account.path_of(wanted), wanted)

    def each_is_named(self, client: Client, chosen: Sequence[Permission], denied: Callable[[], list[str]]) -> None:
        """Without each of the ``chosen`` rights, some at a time, ``denied`` has a line about it; with all it has none.
        ``client``: as the account."""
        self.grant(self.every)
        for start in range(0, len(chosen), AT_ONCE):
            gone = chosen[start : start + AT_ONCE]
            self.grant(one for one in self.every if one not in gone and not any(covers(item, one) for item in gone))
            for asked in gone:
                _until(client, asked, allowed=False)
            lines = denied()
            for asked in gone:
                assert any(_names(line, asked) for line in lines), (asked, lines)
            self.grant(self.every)
            for asked in gone:
                _until(client, asked, allowed=True)
        assert denied() == []


def _names(line: str, asked: Permission) -> bool:
    """Whether the line is about the right: ``place: verbs resources; verbs resources``."""
    (text,) = permissions.texts([asked])
    place, _sep, words = text.partition(": ")
    where, _sep, parts = line.partition(": ")
    return where == place and any(set(words.split()) <= set(re.split(r",? ", part)) for part in parts.split("; "))


def _until(client: Client, asked: Permission, allowed: bool) -> None:
    """The API server decides by its own copy of the Roles, which follows within moments."""
    deadline = time.monotonic() + 900
    while client.allowed(**vars(asked)) is not allowed:
        assert time.monotonic() < deadline, (asked, allowed)
