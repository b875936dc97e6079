# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads from OCI what the preflight of a pool judges, in parallel. PRIVATE to the collection.

The number of calls depends on the depth of compartments and on security groups, not on the number of nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import preflight
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.iam import WORKERS, read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.preflight import KINDS, READS, Case
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec

SERVICE = "compute"
SETS = dict(zip(KINDS, ("managed_compute_cluster", "self_managed_nodes")))
"""Policy set by kind of pool."""


def ignored(item: Finding, ids: Sequence[str]) -> Finding:
    """The finding, as a warning if it is an error with one of these ids."""
    return dataclasses.replace(item, severity="warning") if item.severity == "error" and item.id in ids else item


class Reader:
    """Reads what the preflight of one pool needs."""

    def __init__(self, session: oci.Session, pool: PoolSpec) -> None:
        self.session, self.pool = session, pool
        self.root = session.tenancy or pool.compartment
        self.known: Json = {**dataclasses.asdict(pool), "root": self.root, "page": oci.PAGE}
        for name in ("compute", "management", "network", "identity", "oke", "limits"):
            session.client(name)  # created here so that threads do not race for it

    def read(self, only: Sequence[str] = (), more: bool = True) -> Case:
        """What the preflight judges, or some of READS; what cannot be read is Unread. ``more``: also capacity."""
        names = only or [name for name in READS if name not in KINDS]
        with ThreadPoolExecutor(WORKERS) as workers:
            asked = {name: workers.submit(read, functools.partial(self._ask, name)) for name in names}
            if more:
                asked["there"] = workers.submit(read, functools.partial(self._ask, self.pool.kind))
                asked["capacity"] = workers.submit(read, self._capacity)
            facts = {name: future.result() for name, future in asked.items()}
            case = Case(self.pool, facts, shape_table.shapes())
            rules = workers.submit(read, lambda: self._rules(case))
            names = case.shape.get("quotaNames") or ()
            limits = {name: workers.submit(read, functools.partial(self._limit, name)) for name in names}
            late = {"rules": rules.result(), "limits": {name: future.result() for name, future in limits.items()}}
        return dataclasses.replace(case, facts={**facts, **late})

    def joining(self) -> list[Finding]:
        """Findings on the security rules that joining needs; [] if they allow it."""
        return list(preflight.network(self.read(("cluster", "subnet"), more=False), only_joining=True))

    def _ask(self, name: str) -> Any:
        client, method, words, arguments = READS[name]
        if not all(self.known[field] for field in re.findall(r"{(\w+)}", words)):
            return None
        args: list[Any] = []
        more: Json = {}
        for part in arguments.split():
            name, equals, field = part.partition("=")
            if not equals:
                args.append(self.known[name])
            elif self.known[field]:
                more[name] = self.known[field]
        return self.session.body(words.format(**self.known), client, method, *args, **more)

    def _limit(self, name: str) -> Json:
        """The limit's scope decides whether the request must name the availability domain or must not."""
        what, domain = f"read the service limit {name}", {"availability_domain": self.pool.availability_domain}
        asked = {"service_name": SERVICE, "name": name}
        defined = self.session.body(what, "limits", "list_limit_definitions", self.root, **asked)
        more = domain if not defined or defined[0]["scopeType"] == "AD" else {}
        return dict(self.session.body(what, "limits", "get_resource_availability", SERVICE, name, self.root, **more))

    def _capacity(self) -> Json:
        return capacity(self.session, self.root, self.pool.shape, self.pool.availability_domain)

    def _rules(self, case: Case) -> Any:
        subnet = case.get("subnet")
        if subnet is None:
            return None
        lists = subnet.get("securityListIds") or ()
        method, words = "list_network_security_group_security_rules", "list rules of the security group"
        return {
            "lists": [
                self.session.body(f"read the security list {key}", "network", "get_security_list", key) for key in lists
            ],
            "groups": {
                key: read(functools.partial(self.session.body, f"{words} {key}", "network", method, key))
                for key in self.pool.security_groups
            },
        }


def capacity(session: oci.Session, root: str, shape: str, domain: str) -> Json:
    """{status, count} of hosts now. No fault domain: OCI refuses one for BM shapes. ``root``: the tenancy's OCID."""
    asked = {"compartmentId": root, "availabilityDomain": domain, "shapeAvailabilities": [{"instanceShape": shape}]}
    what = f"read the capacity of {shape} in {domain}"
    found = session.body(what, "compute", "create_compute_capacity_report", asked)["shapeAvailabilities"][0]
    return {"status": found["availabilityStatus"], "count": found.get("availableCount")}


def findings(reader: Reader) -> list[Finding]:
    """Findings of the preflight, policies left out."""
    return preflight.judge(reader.read())
