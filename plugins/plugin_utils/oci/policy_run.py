# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the policies for the preflight; writes missing statements and their dynamic group. PRIVATE to the collection.

Only statements that nothing in the tenancy grants are written, all into one policy; nothing is ever removed. An
existing dynamic group is changed only if that is requested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, Conflict, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import iam, policy_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy as oci_policy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.needs import DynamicGroup, Review, quoted, widened
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

TAG = "gpuops_rdma_policy"
"""A key of a tag has no period."""
POLL = 3.0
OCIDS = {
    "compartment": "compartment",
    "cluster": "cluster",
    "image": "image",
    "capacity_reservation": "capacityreservation",
    "boot_volume_key": "key",
    "boot_volume_key_compartment": "compartment",
}
"""Options of oci_rdma_node_pool and of oci_rdma_policy -> kind of OCID."""
DESCRIPTION = "RDMA nodes of OKE, written by gpuops.rdma"
SCHEMA = "urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"


@dataclass(frozen=True)
class Group:
    """Desired dynamic group. ``before``: its present rule, "" = it does not exist."""

    who: str
    domain: str
    name: str
    before: str
    after: str
    key: str = ""
    """OCID; in another domain than Default, its id there."""

    @property
    def changed(self) -> bool:
        """Whether the rule has to be written."""
        return self.before != self.after


class PolicyRun:
    """``options``: those of oci_rdma_policy. ``clocks``: clock and sleep, for tests."""

    def __init__(
        self, session: oci.Session, options: Mapping[str, Any], progress: Callable[[str], None], **clocks: Any
    ) -> None:
        self.session, self.options, self.progress = session, options, progress
        self.waits = Waits(progress, **clocks)
        self.iam = iam.Iam(session, options)
        self.sets = {name: iam.policies()["sets"][name] for name in options["sets"]}
        self.who = {"instance": options["dynamic_group"], "group": options["group"]}

    def run(self, check_mode: bool) -> Json:
        """Writes what is missing; {changed, added, policy, dynamic_group, unknown}. InputError, DeadlinePassed."""
        for option, kind, words in (
            ("dynamic_group", "instance", "name of the dynamic group of the nodes"),
            ("group", "group", "group of the users"),
        ):
            asking = [name for name, entry in self.sets.items() if entry["who"] == kind]
            if asking and not self.options[option]:
                raise InputError(f"{option}: the {words} is missing; {', '.join(asking)} needs it.")
        granted = self.iam.granted([self.options["dynamic_group"]])
        if granted.unread:
            raise InputError(
                f"Some policies cannot be read, so none is written: {granted.unread.why} Ask an administrator to "
                "run this, or to write the statements that the preflight prints."
            )
        group = self._group(granted)
        if group and group.changed:
            others = [item for item in granted.groups if not policy_text.named(item, group.who)]
            made = DynamicGroup(group.name, group.after, group.domain)
            granted = replace(granted, groups=[*others, made])
        reviews = self._reviews(granted)
        denied = [f"{item.statement}: {item.reason}" for item in reviews if item.denied]
        if denied:
            raise InputError(
                f"Some statements would have no effect, so none is written: {'; '.join(denied)}. Ask an "
                "administrator to change the deny statements, then run again."
            )
        missing = [item.statement for item in reviews if item.status == "fail"]
        unknown = [
            {"statement": item.statement, "compare": item.by, "reason": item.reason}
            for item in reviews
            if item.status == "unknown"
        ]
        policy = self._target(granted, missing) if missing else {}
        changed = bool(missing) or bool(group and group.changed)
        if changed and not check_mode:
            home = self._home()
            if group and group.changed:
                self._write_group(home, group)
            if missing:
                policy["id"] = self._write_policy(home, policy, missing)
            self._proven()
        shown = {"name": group.who, "before": group.before, "rule": group.after} if group else {}
        return {"changed": changed, "added": missing, "policy": policy, "unknown": unknown, "dynamic_group": shown}

    def _reviews(self, granted: iam.Granted) -> list[Review]:
        """Of all sets; a statement that several of them need appears once."""
        found: dict[str, Review] = {}
        groups = [self.options["group"]] if self.options["group"] else []
        for name, entry in self.sets.items():
            for item in self.iam.reviews(granted, name, self.who.get(entry["who"], ""), groups):
                found.setdefault(item.statement, item)
        return list(found.values())

    # ---- the dynamic group

    def _group(self, granted: iam.Granted) -> Optional[Group]:
        rules = [entry["rule"] for entry in self.sets.values() if entry.get("rule")]
        if not rules:
            return None
        who = self.options["dynamic_group"]
        if who.startswith("ocid1."):
            raise InputError(f"dynamic_group must be a name or domain/name, not the OCID {who}.")
        domain, _slash, name = who.replace("'", "").rpartition("/")
        domain = domain.lower() or policy_text.DEFAULT_DOMAIN
        own = rules[0].format(compartment=self.options["compartment"])
        there = next((item for item in granted.groups if policy_text.named(item, who)), None)
        if there is None:
            if domain != policy_text.DEFAULT_DOMAIN:
                self._domain(domain)
            return Group(who, domain, name, "", own)
        wanted = f"Allow dynamic-group {quoted(who)} to {{CLUSTER_JOIN}} in tenancy"
        fits = oci_policy.matches(there, wanted, self.iam.context(granted, who))
        if fits is None:
            self.progress(f"warning: cannot determine whether the rule of {who} matches the nodes: {there.rule}")
        after = there.rule if fits is not False else widened(there.rule, own)
        if fits is False and not self.options["widen_dynamic_group"]:
            raise InputError(
                f"The rule of the dynamic group {who} does not match the nodes: {there.rule}. Set "
                f"rdma_oci_widen_dynamic_group to change it to {after}, or use another group."
            )
        return Group(who, there.domain, there.name, there.rule, after, there.ocid)

    def _write_group(self, home: oci.Session, group: Group) -> None:
        """Groups of the Default domain are Identity's, those of another one its own, by SCIM."""
        self.progress(f"dynamic group {group.who}: {group.after}")
        verb, default = ("change" if group.before else "create"), group.domain == policy_text.DEFAULT_DOMAIN
        what, domain = f"{verb} the dynamic group {group.who}", None if default else self._domain(group.domain)
        client = f"domains@{domain.url}" if domain else "identity"
        if group.before and default:
            home.call(what, client, "update_dynamic_group", group.key, {"matchingRule": group.after})
        elif group.before:
            there = next(item for item in self.iam.domain_groups(domain) if item.display_name == group.name)
            change = {"op": "REPLACE", "path": "matchingRule", "value": group.after}
            patch = {"schemas": [PATCH], "Operations": [change]}
            home.call(what, client, "patch_dynamic_resource_group", there.id, patch_op=patch)
        elif default:
            body = {"compartmentId": self.iam.root, "name": group.name, "matchingRule": group.after}
            body.update(description=DESCRIPTION, freeformTags=self._tags())
            self._made(home, what, client, "create_dynamic_group", body)
        else:
            body = {"schemas": [SCHEMA], "displayName": group.name, "matchingRule": group.after}
            body["description"] = DESCRIPTION
            self._made(home, what, client, "create_dynamic_resource_group", dynamic_resource_group=body)
        self._until(f"the dynamic group {group.who}", lambda: self._group_is(group))

    def _domain(self, name: str) -> Any:
        found = next(iter(self.iam.domains(frozenset({name}))), None)
        if found is None:
            raise InputError(f"dynamic_group: the identity domain {name!r} does not exist, or you may not see it.")
        return found

    def _group_is(self, group: Group) -> bool:
        domains = frozenset({group.domain}) - {policy_text.DEFAULT_DOMAIN}
        found = [item for item in self.iam.dynamic_groups(domains) if policy_text.named(item, group.who)]
        return any(item.rule == group.after for item in found)

    # ---- the policy

    def _target(self, granted: iam.Granted, missing: Sequence[str]) -> Json:
        """The policy to write: statements on the tenancy are only effective in the root compartment, those on other
        compartments only in one that encloses them all."""
        root = any(" in tenancy" in item for item in missing)
        used = [key for key in self.iam.places.values() if key and any(key in item for item in missing)]
        around = [oci_policy.ancestors(key, granted.tree) for key in (self.options["compartment"], *used)]
        common = (key for key in around[0] if all(key in chain for chain in around))
        home = self.options["policy_compartment"] or (self.iam.root if root else next(common, self.iam.root))
        if root and home != self.iam.root:
            raise InputError(
                "policy_compartment: statements on the tenancy are only effective in the root compartment "
                f"({self.iam.root}), not of {home}."
            )
        return {"name": self.options["name"], "compartment": home, "id": ""}

    def _policy(self, target: Json) -> Any:
        return next((item for item in self.iam.policies(target["compartment"]) if item.name == target["name"]), None)

    def _write_policy(self, home: oci.Session, target: Json, missing: Sequence[str]) -> str:
        name = target["name"]
        there = self._policy(target)
        if there is None:
            self.progress(f"policy {name}: creating it with {len(missing)} statements")
            body = {"compartmentId": target["compartment"], "name": name, "description": DESCRIPTION}
            body.update(statements=list(missing), freeformTags=self._tags())
            what = f"create the policy {name} in {target['compartment']}"
            self._made(home, what, "identity", "create_policy", body)
            self._until(f"the policy {name}", lambda: self._policy(target) is not None)
            there = self._policy(target)
        added = [item for item in missing if item not in there.statements]
        if added:
            self.progress(f"policy {name}: adding {len(added)} statements")
            body = {"statements": [*there.statements, *added]}
            home.call(f"change the policy {name}", "identity", "update_policy", there.id, body)
        return str(there.id)

    def _made(self, home: oci.Session, what: str, client: str, method: str, *args: Any, **more: Any) -> None:
        """Creates; an object of a killed run that OCI does not list yet is no error."""
        try:
            home.call(what, client, method, *args, **more)
        except Conflict as error:
            if "exist" not in str(error).lower():
                raise
            self.progress(f"{what}: it exists already")

    # ---- verification

    def _proven(self) -> None:
        """Waits until what OCI lists grants everything that was missing."""
        late: list[str] = []

        def granted() -> bool:
            found = self._reviews(self.iam.granted([self.options["dynamic_group"]]))
            late[:] = [item.statement for item in found if item.status == "fail"]
            return not late

        self._until("the statements", granted, lambda: f" ({'; '.join(late)})")

    def _until(self, what: str, there: Callable[[], bool], more: Callable[[], str] = lambda: "") -> None:
        def late(_found: bool) -> str:
            return f"OCI does not list {what}{more()}"

        self.waits.until(there, bool, self.options["timeout"], late, poll=POLL)

    def _home(self) -> oci.Session:
        """A session in the tenancy's home region, the only one where Identity can be written."""
        if self.session.endpoint or not self.session.tenancy:
            return self.session
        what, method = "list the tenancy's regions", "list_region_subscriptions"
        try:
            listed = self.session.call(what, "identity", method, self.session.tenancy).data
        except ClusterError:
            return self.session
        home = next((item.region_name for item in listed if item.is_home_region), self.session.region)
        return self.session if home == self.session.region else self.session.elsewhere(home)

    def _tags(self) -> dict[str, str]:
        return {**{str(key): str(value) for key, value in self.options["tags"].items()}, TAG: self.options["name"]}


# ---- for the preflight -----------------------------------------------------------------------------------------------


SEVERITY = {"fail": "error", "unknown": "unknown"}
ASKED = (("work", "list_work_requests"), ("compute", "list_compute_hosts"))
"""Calls that change nothing and whose answer proves a right of the user; refused ones prove nothing."""


def findings(session: oci.Session, asked: Mapping[str, Any], sets: Sequence[str]) -> list[Finding]:
    """Findings on the statements that the sets need; one ``unknown`` if policies cannot be read. ``asked``: options of
    oci_rdma_node_pool."""
    reader = iam.Iam(session, asked)
    granted, who, users = reader.granted([asked["group"]]), asked["group"], asked["user_groups"]
    if granted.unread and not granted.tree:
        return [_found("unknown", "policies", granted.unread.why, "")]
    if "pool_operator" in sets and users:
        for client, method in ASKED:
            place = reader.compartment if client == "work" else reader.root
            with contextlib.suppress(ClusterError):
                session.call(f"ask whether this user may {method.replace('_', ' ')}", client, method, place, limit=1)
    found, kinds = [], {name: entry["who"] for name, entry in iam.policies()["sets"].items()}
    for name in sets:
        mine = kinds.get(name) == "group"
        # The nodes' dynamic group says nothing about the user's own groups.
        own = (users[0] if users else "") if mine else who
        if not own and kinds.get(name) != "any-user":
            option = "user_groups: the groups of the user" if mine else "group: the dynamic group of the nodes"
            found.append(_found("unknown", f"policies of {name}", f"not compared: no input rdma_oci_{option}", ""))
            continue
        for item in reader.reviews(granted, name, own, users, own=mine):
            if item.status != "pass":
                # The statement may be in a policy that could not be read.
                unread = granted.unread and f"{item.reason}; some policies could not be read: {granted.unread.why}"
                severity = "unknown" if unread else SEVERITY[item.status]
                found.append(_found(severity, item.statement, unread or item.reason, item.why, item.denied))
    return found


def _found(severity: str, subject: str, found: str, why: str, denied: bool = False) -> Finding:
    if denied:
        return finding("oci.policy-denied", subject, found)
    return finding("oci.policy", subject, found, remedy=f"needed because: {why}" if why else "", severity=severity)
