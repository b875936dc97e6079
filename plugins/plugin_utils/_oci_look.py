# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks OCI what oci_rdma_preflight judges, in parallel. PRIVATE to the collection.

The number of calls depends on the depth of compartments and on security groups, not on the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _oci_policy, _oci_preflight
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import ClusterError, Forbidden, Unreachable
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._oci_preflight import Look, Pool, Unread
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _oci

WORKERS = 8
SERVICE = "compute"
SEVERITY = {"fail": "error", "unknown": "unknown"}
# What has to be allowed for which kind of pool.
SETS = {"managed_compute_cluster": "managed_compute_cluster", "cluster_network": "self_managed_nodes"}


def _read(call: Callable[[], Any]) -> Any:
    """The answer, or Unread with OCI's reason. What ends every further call too is raised."""
    try:
        return call()
    except (Forbidden, Unreachable):
        raise
    except ClusterError as error:
        return Unread(str(error))


class Asker:
    """One preflight's questions."""

    def __init__(self, session: _oci.Session, pool: Pool, compartment: str, groups: Sequence[str]) -> None:
        self.session, self.pool, self.compartment, self.groups = session, pool, compartment, tuple(groups)
        # A client is made by the first call; made here, threads do not race for it.
        for name in ("compute", "network", "identity", "oke", "limits"):
            session.client(name)

    def look(self) -> Look:
        with ThreadPoolExecutor(WORKERS) as workers:
            asked = {
                "domains": workers.submit(_read, self._domains),
                "shapes": workers.submit(_read, self._shapes),
                "capacity": workers.submit(_read, self._capacity),
                "cluster": workers.submit(_read, self._cluster),
                "addons": workers.submit(_read, self._addons),
                "image": workers.submit(_read, self._image),
                "image_shapes": workers.submit(_read, self._image_shapes),
                "subnet": workers.submit(_read, self._subnet),
            }
            found = {name: future.result() for name, future in asked.items()}
            limits = workers.submit(_read, lambda: self._limits(found["shapes"]))
            rules = workers.submit(_read, lambda: self._rules(found["subnet"]))
            return Look(**found, limits=limits.result(), rules=rules.result(), groups=self.groups)

    # ---- one question each

    def _domains(self) -> list[str]:
        what = "list availability domains"
        return [item.name for item in self.session.all(what, "identity", "list_availability_domains", self.root)]

    @property
    def root(self) -> str:
        return self.session.tenancy or self.compartment

    def _shapes(self) -> list[Json]:
        domain = self.pool.availability_domain
        what = f"list shapes of {domain}"
        listed = self.session.all(what, "compute", "list_shapes", self.compartment, availability_domain=domain)
        names = ("shape", "gpus", "rdma_ports", "quota_names")
        return [{name: getattr(item, name, None) for name in names} for item in listed]

    def _limits(self, shapes: Any) -> Any:
        if isinstance(shapes, Unread):
            return shapes
        mine: Json = next((item for item in shapes if item["shape"] == self.pool.shape), {})
        return {name: _read(lambda name=name: self._limit(name)) for name in mine.get("quota_names") or []}

    def _limit(self, name: str) -> Json:
        """The scope decides whether the availability domain must or must not be named."""
        what = f"read the service limit {name}"
        told = self.session.all(what, "limits", "list_limit_definitions", self.root, service_name=SERVICE, name=name)
        scope = told[0].scope_type if told else "AD"
        more = {"availability_domain": self.pool.availability_domain} if scope == "AD" else {}
        answer = self.session.call(what, "limits", "get_resource_availability", SERVICE, name, self.root, **more)
        return {"available": answer.data.available}

    def _capacity(self) -> Json:
        """Without fault domain: OCI refuses one for BM shapes."""
        models = self.session.oci.core.models
        asked = models.CreateCapacityReportShapeAvailabilityDetails(instance_shape=self.pool.shape)
        details = models.CreateComputeCapacityReportDetails(
            compartment_id=self.root, availability_domain=self.pool.availability_domain, shape_availabilities=[asked]
        )
        what = f"ask for capacity of {self.pool.shape}"
        report = self.session.call(what, "compute", "create_compute_capacity_report", details).data
        found = report.shape_availabilities[0]
        return {"status": found.availability_status, "count": found.available_count}

    def _cluster(self) -> Optional[Json]:
        if not self.pool.cluster:
            return None
        what = f"read the cluster {self.pool.cluster}"
        found = self.session.call(what, "oke", "get_cluster", self.pool.cluster).data
        nets = found.cluster_pod_network_options or []
        return {
            "name": found.name,
            "state": found.lifecycle_state,
            "type": found.type or "",
            "version": found.kubernetes_version or "",
            "cni": nets[0].cni_type if nets else "",
            "private_endpoint": (found.endpoints.private_endpoint or "") if found.endpoints else "",
        }

    def _addons(self) -> list[Json]:
        if not self.pool.cluster:
            return []
        what = f"list add-ons of {self.pool.cluster}"
        listed = self.session.all(what, "oke", "list_addons", self.pool.cluster)
        return [{"name": item.name, "state": item.lifecycle_state} for item in listed]

    def _image(self) -> Optional[Json]:
        if not self.pool.image:
            return None
        found = self.session.call(f"read the image {self.pool.image}", "compute", "get_image", self.pool.image).data
        return {"name": found.display_name, "state": found.lifecycle_state, "os": found.operating_system}

    def _image_shapes(self) -> list[str]:
        if not self.pool.image:
            return []
        what = f"list shapes of the image {self.pool.image}"
        method = "list_image_shape_compatibility_entries"
        return [item.shape for item in self.session.all(what, "compute", method, self.pool.image)]

    def _subnet(self) -> Optional[Json]:
        if not self.pool.subnet:
            return None
        found = self.session.call(f"read the subnet {self.pool.subnet}", "network", "get_subnet", self.pool.subnet).data
        return {"name": found.display_name, "cidr": found.cidr_block or "", "lists": found.security_list_ids or []}

    def _rules(self, subnet: Any) -> Any:
        if subnet is None or isinstance(subnet, Unread):
            return subnet or []
        found: list[Json] = []
        for key in subnet["lists"]:
            told = self.session.call(f"read the security list {key}", "network", "get_security_list", key).data
            found += [_rule("INGRESS", rule, rule.source) for rule in told.ingress_security_rules or []]
            found += [_rule("EGRESS", rule, rule.destination) for rule in told.egress_security_rules or []]
        for key in self.groups:
            what, method = f"list rules of the security group {key}", "list_network_security_group_security_rules"
            for rule in self.session.all(what, "network", method, key):
                ingress = rule.direction == "INGRESS"
                end, kind = (rule.source, rule.source_type) if ingress else (rule.destination, rule.destination_type)
                found.append(_rule(rule.direction, rule, end, kind))
        return found

    # ---- policies

    def policies(
        self, who: str, user_groups: Sequence[str], options: Sequence[str], sets: Sequence[str]
    ) -> list[Finding]:
        """Findings on the statements that the sets need; one ``unknown`` where policies cannot be read."""
        table = _data.load(_data.FILES / "oci" / "policies.yml")
        tree = _read(self._tree)
        if isinstance(tree, Unread):
            return [_policy("unknown", "policies", tree.why, "")]
        context = _oci_policy.Context(
            self.root, self.compartment, tree, tuple(user_groups), who, self._facts(), frozenset(options)
        )
        chain = [*dict.fromkeys([*_oci_policy.ancestors(self.compartment, tree), self.root])]
        with ThreadPoolExecutor(WORKERS) as workers:
            read = list(workers.map(lambda key: _read(lambda: self._statements(key)), chain))
        unread = next((item for item in read if isinstance(item, Unread)), None)
        groups = _read(self._dynamic_groups)
        if unread is None and isinstance(groups, Unread):
            unread = groups
        statements = [item for part in read if not isinstance(part, Unread) for item in part]
        members = [] if isinstance(groups, Unread) else groups
        return self._reviewed(table, sets, statements, members, context, unread)

    def _reviewed(
        self,
        table: Json,
        sets: Sequence[str],
        statements: list[_oci_policy.Source],
        members: list[_oci_policy.DynamicGroup],
        context: _oci_policy.Context,
        unread: Optional[Unread],
    ) -> list[Finding]:
        found, known = [], _oci_policy.catalogue(table)
        for name in sets:
            needs = _oci_policy.needs(table, name, context)
            for item in _oci_policy.review(needs, statements, members, context, known):
                if item.status == "pass":
                    continue
                # A statement may stand in a policy that could not be read.
                status = "unknown" if unread else item.status
                why = f"{item.reason}; not all could be read: {unread.why}" if unread else item.reason
                found.append(_policy(SEVERITY[status], item.statement, why, item.why))
        return found

    def _facts(self) -> dict[str, str]:
        known = {"request.region": self.session.region}
        return {**known, **({"target.cluster.id": self.pool.cluster} if self.pool.cluster else {})}

    def _tree(self) -> dict[str, _oci_policy.Compartment]:
        what = "list the tenancy's compartments"
        more = {"compartment_id_in_subtree": True, "limit": _oci.PAGE} if self.session.tenancy else {"limit": _oci.PAGE}
        listed = self.session.all(what, "identity", "list_compartments", self.root, **more)
        tree = {item.id: _oci_policy.Compartment(item.name, item.compartment_id or "") for item in listed}
        tree.setdefault(self.root, _oci_policy.Compartment("", ""))
        return tree

    def _statements(self, compartment: str) -> list[_oci_policy.Source]:
        what = f"list policies of {compartment}"
        listed = self.session.all(what, "identity", "list_policies", compartment, limit=_oci.PAGE)
        return [_oci_policy.Source(text, compartment, item.name) for item in listed for text in item.statements]

    def _dynamic_groups(self) -> list[_oci_policy.DynamicGroup]:
        """Those of the Default domain; OCI lists the others at each domain's own URL."""
        listed = self.session.all("list dynamic groups", "identity", "list_dynamic_groups", self.root, limit=_oci.PAGE)
        return [_oci_policy.DynamicGroup(item.name, item.matching_rule or "", ocid=item.id) for item in listed]


def _rule(direction: str, rule: Any, end: Optional[str], kind: Optional[str] = "CIDR_BLOCK") -> Json:
    ports = rule.tcp_options.destination_port_range if rule.tcp_options else None
    cidr = end if kind in (None, "CIDR_BLOCK") else ""
    return {
        "direction": direction,
        "protocol": rule.protocol,
        "cidr": cidr or "",
        "group": end if kind == "NETWORK_SECURITY_GROUP" else "",
        "low": ports.min if ports else None,
        "high": ports.max if ports else None,
    }


def _policy(severity: str, subject: str, found: str, why: str) -> Finding:
    remedy = f"needed because: {why}" if why else ""
    return Finding("oci.policy", severity, subject, found, "", remedy, "oci_preflight")


def findings(asker: Asker) -> list[Finding]:
    return _oci_preflight.judge(asker.pool, asker.look(), _data.shapes())
