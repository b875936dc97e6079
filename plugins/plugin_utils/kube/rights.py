# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which permissions a user lacks. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import (
    MAY_GRANT,
    NOWHERE,
    allowed,
    needs,
    of_grants,
    once,
    texts,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task

WORKERS = 8
GRANTING = (
    "An administrator grants it with a manifest that ansible-playbook gpuops.rdma.site --tags plan writes into "
    "permissions/ of the report's folder: kubectl apply -f FILE"
)
GRANTED = (
    "the charts' Roles contain it. Users can only create Roles with permissions that they have, unless they "
    "may escalate and bind"
)


def missing(client: Client, needed: Sequence[Permission]) -> list[Permission]:
    """Those of the permissions that this user lacks, by SelfSubjectAccessReviews."""
    with ThreadPoolExecutor(max_workers=WORKERS) as workers:
        answers = list(workers.map(lambda item: client.allowed(**vars(item)), needed))
    return [item for item, answer in zip(needed, answers) if not answer]


def require(task: Task, needed: Sequence[Permission]) -> None:
    """Raises InputError with every one of the permissions that this user lacks. Check mode predicts without them."""
    if not task.check_mode:
        refuse(texts(missing(task.client, needed)), "changed")


def ungranted(client: Client, grants: Sequence[Json]) -> list[str]:
    """Lines about the rights that this user lacks to create Roles with these rules."""
    if not grants or not missing(client, MAY_GRANT):
        return []
    # The API server, too, compares with the rules of RBAC and asks no other authoriser.
    needed = of_grants(grants)
    rules = {place: client.rules(place or NOWHERE) for place in {item.namespace for item in needed}}
    lacking = [item for item in needed if not allowed(item, rules[item.namespace])]
    return [f"{line} ({GRANTED})" for line in texts(lacking)]


def require_removal(client: Client, kinds: Iterable[tuple[str, str]], selector: str) -> None:
    """Raises InputError with every permission that this user lacks to remove all objects of these kinds with these
    labels."""
    resources = dict(_resources(client, kinds))
    lacking = missing(client, [item for group, name in resources.values() for item in needs("list", group, name)])
    if not lacking:
        lacking = missing(client, once(_removal(client, resources, selector)))
    refuse(texts(lacking), "removed")


def refuse(lacking: Sequence[str], done: str) -> None:
    """Raises InputError with these lines about permissions that this user lacks, if there are any. ``done``: what was
    not done, removed or changed."""
    if lacking:
        lines = "\n- ".join([f"Nothing was {done}. This user lacks permissions:", *lacking])
        raise InputError(f"{lines}\n{GRANTING}")


def served(client: Client, kinds: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The kinds that the server has, each in the version that it serves."""
    found = []
    for wanted, kind in kinds:
        for version in filter(None, (wanted, objects.OLDER.get(wanted))):
            with contextlib.suppress(NotFound):
                client.resource(version, kind)
                found.append((version, kind))
                break
    return found


def _resources(client: Client, kinds: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """(apiVersion, kind) and (group, resource), without kinds that the server does not have."""
    for version, kind in kinds:
        try:
            yield (version, kind), (version.rpartition("/")[0], client.resource(version, kind)[0])
        except NotFound:
            continue


def _removal(client: Client, resources: dict[tuple[str, str], tuple[str, str]], selector: str) -> Iterator[Permission]:
    for (version, kind), (group, resource) in resources.items():
        try:
            found = client.list(client.path(version, kind), label_selector=selector)
        except NotFound:
            continue
        for meta in (item["metadata"] for item in found):
            yield from needs("get delete", group, resource, meta.get("namespace", ""))
            if kind == "Namespace":  # kept while it contains unmanaged objects
                for occupant in dict(_resources(client, objects.OCCUPANTS)).values():
                    yield from needs("list", *occupant, meta["name"])
