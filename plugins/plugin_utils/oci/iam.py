# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compartments, policies and dynamic groups of a tenancy, as far as they are needed. PRIVATE to the collection.

The number of calls depends on the depth of the compartment and on the identity domains named, not on nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Forbidden,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import needs, policy, policy_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.needs import (
    Compartment,
    Context,
    DynamicGroup,
    Review,
    Source,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.preflight import Unread

WORKERS = 8
PAGE = 200
"""Entries per page of an identity domain."""


def read(call: Callable[[], Any]) -> Any:
    """The answer, or Unread with OCI's reason. Raises Forbidden and Unreachable, which would end every call."""
    try:
        return call()
    except (Forbidden, Unreachable):
        raise
    except ClusterError as error:
        return Unread(str(error), isinstance(error, NotFound))


def policies() -> Json:
    """files/oci/policies.yml: what must be allowed, by what runs."""
    return files.document("oci/policies.yml")


@dataclass(frozen=True)
class Granted:
    """What was read. ``unread``: why a part could not be read; then nothing is missing for certain."""

    tree: dict[str, Compartment] = field(default_factory=dict)
    statements: Sequence[Source] = ()
    groups: Sequence[DynamicGroup] = ()
    unread: Optional[Unread] = None


USED = {
    "cluster": ("oke", "get_cluster"),
    "image": ("compute", "get_image"),
    "capacity_reservation": ("compute", "get_compute_capacity_reservation"),
}
"""Option with the OCID of what a pool uses -> client and method that tell its compartment."""


class Iam:
    """Reads what concerns a pool: its compartment, and those of what it uses. ``asked``: options of oci_rdma_node_pool
    or oci_rdma_policy. ``places``: see Context; ``unplaced``: what has an unknown compartment -> why."""

    def __init__(self, session: oci.Session, asked: Mapping[str, Any]) -> None:
        self.session, self.asked, self.compartment = session, asked, asked["compartment"]
        self.root = session.tenancy or self.compartment
        session.client("identity")  # created here so that threads do not race for it
        self.unplaced: dict[str, str] = {}
        self.places = {name: self._place(name, *how) for name, how in USED.items() if asked.get(name)}
        if asked.get("boot_volume_key"):
            self.places["boot_volume_key"] = asked["boot_volume_key_compartment"]
            if not asked["boot_volume_key_compartment"]:
                self.unplaced["boot_volume_key"] = "set rdma_oci_boot_volume_key_compartment."
        targets = {"target.cluster.id": asked.get("cluster"), "target.key.id": asked.get("boot_volume_key")}
        keys = {name: key for key, name in session.oci.regions.REGIONS_SHORT_NAMES.items()}
        self.facts = {name: value for name, value in targets.items() if value}
        self.facts.update({"request.region": keys[session.region]} if session.region in keys else {})

    def _place(self, name: str, client: str, method: str) -> str:
        """OCID of the compartment; "" where it cannot be read. Images of the platform have none."""
        what = f"read the {name.replace('_', ' ')} {self.asked[name]}"
        found = read(lambda: self.session.call(what, client, method, self.asked[name]).data.compartment_id)
        if isinstance(found, Unread):
            self.unplaced[name] = found.why
            return ""
        return str(found or self.compartment)

    def granted(self, whos: Sequence[str]) -> Granted:
        """All statements that may apply to these compartments. ``whos``: groups of interest, for their domains."""
        tree = read(self._tree)
        if isinstance(tree, Unread):
            return Granted(unread=tree)
        around = [policy.ancestors(key, tree) for key in (self.compartment, *self.places.values())]
        chain = [*dict.fromkeys([*itertools.chain(*around), self.root])]
        with ThreadPoolExecutor(WORKERS) as workers:
            found = list(workers.map(lambda key: read(lambda: self.statements(key)), chain))
        statements = [item for part in found if not isinstance(part, Unread) for item in part]
        groups = read(lambda: self.dynamic_groups(policy_text.domains(statements, whos)))
        unread = next((item for item in (*found, groups) if isinstance(item, Unread)), None)
        return Granted(tree, statements, [] if isinstance(groups, Unread) else groups, unread)

    def reviews(
        self, granted: Granted, name: str, who: str, user_groups: Sequence[str] = (), *, own: bool = False
    ) -> list[Review]:
        """A Review of each need of the policy set ``name``. ``own``: it is about the user of this session; what OCI has
        answered him is allowed, whatever the statements say."""
        table = policies()
        context = self.context(granted, who, user_groups)
        required = needs.needs(table, name, context)
        found = policy.review(required, granted.statements, granted.groups, context, policy.Catalogue(table))
        heard = self.session.answered if own and self.session.tenancy else frozenset()
        return [self._of(one, need["asked"] if need["asked"] in heard else "") for one, need in zip(found, required)]

    def _of(self, one: Review, heard: str) -> Review:
        if heard:
            return replace(one, status="pass", by=f"OCI answered {heard}", reason="", denied=False)
        lost = [why for name, why in self.unplaced.items() if needs.unknown(name) in one.statement]
        return replace(one, reason=f"{one.reason}: {lost[0]}") if lost else one

    def context(self, granted: Granted, who: str, user_groups: Sequence[str] = ()) -> Context:
        """The context in which statements are judged."""
        options, groups = frozenset(self.asked["policy_options"]), tuple(user_groups)
        return Context(self.root, self.compartment, granted.tree, groups, who, self.facts, options, self.places)

    def _tree(self) -> dict[str, Compartment]:
        what = "list the tenancy's compartments"
        more = {"compartment_id_in_subtree": True, "limit": oci.PAGE} if self.session.tenancy else {"limit": oci.PAGE}
        listed = self.session.all(what, "identity", "list_compartments", self.root, **more)
        alive = [item for item in listed if item.lifecycle_state != "DELETED"]  # its name may be in use again
        tree = {item.id: Compartment(item.name, item.compartment_id or "") for item in alive}
        tree.setdefault(self.root, Compartment("", ""))
        return tree

    def statements(self, compartment: str) -> list[Source]:
        """Statements of the policies attached to one compartment."""
        listed = self.policies(compartment)
        return [Source(text, compartment, item.name) for item in listed for text in item.statements]

    def policies(self, compartment: str) -> list[Any]:
        """Policies attached to a compartment, as SDK models."""
        what = f"list policies of {compartment}"
        return self.session.all(what, "identity", "list_policies", compartment, limit=oci.PAGE)

    def dynamic_groups(self, domains: frozenset[str]) -> list[DynamicGroup]:
        """Dynamic groups of the Default domain and of the named ones, each read at its domain's URL."""
        listed = self.session.all("list dynamic groups", "identity", "list_dynamic_groups", self.root, limit=oci.PAGE)
        found = [DynamicGroup(item.name, item.matching_rule or "", ocid=item.id) for item in listed]
        for domain in self.domains(domains) if domains else []:
            name = domain.display_name
            found += [
                DynamicGroup(item.display_name, item.matching_rule or "", name.lower(), item.ocid or "")
                for item in self.domain_groups(domain)
            ]
        return found

    def domains(self, names: frozenset[str]) -> list[Any]:
        """Active identity domains with these names (lower case), as SDK models."""
        listed = self.session.all("list identity domains", "identity", "list_domains", self.root)
        return [item for item in listed if item.display_name.lower() in names and item.lifecycle_state == "ACTIVE"]

    def domain_groups(self, domain: Any) -> list[Any]:
        """Dynamic groups of an identity domain, as SDK models; SCIM counts from 1."""
        found: list[Any] = []
        what, method = f"list dynamic groups of the domain {domain.display_name}", "list_dynamic_resource_groups"
        while True:
            more = {"start_index": len(found) + 1, "count": PAGE, "attributes": "displayName,matchingRule,ocid,id"}
            part = self.session.call(what, f"domains@{domain.url}", method, **more).data
            found += part.resources or []
            if not part.resources or len(found) >= (part.total_results or 0):
                return found
