# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads from OCI what oci_rdma_preflight judges, in parallel. PRIVATE to the collection.

The number of calls depends on the depth of compartments and on security groups, not on the number of nodes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import NotFound
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import preflight
from ansible_collections.gpuops.rdma.plugins.module_utils._oci.preflight import Facts, Pool, Unread
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import iam as oci_iam
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci

WORKERS = 8
SERVICE = "compute"
GONE = ("DELETED", "DELETING", "TERMINATED", "TERMINATING")
# Policy set by kind of pool.
SETS = {"managed_compute_cluster": "managed_compute_cluster", "cluster_network": "self_managed_nodes"}


_read = oci_iam.read


class Reader:
    """Reads what the preflight of one pool needs."""

    def __init__(self, session: oci.Session, pool: Pool, compartment: str, groups: Sequence[str]) -> None:
        self.session, self.pool, self.compartment, self.groups = session, pool, compartment, tuple(groups)
        # Clients are created on first use; created here so that threads do not race for them.
        for name in ("compute", "management", "network", "identity", "oke", "limits"):
            session.client(name)

    def read(self) -> Facts:
        """Everything that the preflight judges; what cannot be read is Unread."""
        with ThreadPoolExecutor(WORKERS) as workers:
            futures = {
                "domains": workers.submit(_read, self._domains),
                "shapes": workers.submit(_read, self._shapes),
                "capacity": workers.submit(_read, self._capacity),
                "cluster": workers.submit(lambda: self.cluster),
                "addons": workers.submit(_read, self._addons),
                "image": workers.submit(_read, self._image),
                "image_shapes": workers.submit(_read, self._image_shapes),
                "subnet": workers.submit(_read, lambda: self._subnet(self.pool.subnet)),
                "there": workers.submit(_read, self._there),
                "pods": workers.submit(_read, lambda: self._subnet(self.pool.pod_subnet)),
                "compute_cluster": workers.submit(_read, self._compute_cluster),
            }
            found = {name: future.result() for name, future in futures.items()}
            limits = workers.submit(_read, lambda: self._limits(found["shapes"]))
            rules = workers.submit(_read, lambda: self._rules(found["subnet"]))
            return Facts(**found, limits=limits.result(), rules=rules.result(), groups=self.groups)

    def joining(self) -> list[Finding]:
        """Findings on the security rules that joining needs; [] if they allow it."""
        subnet = _read(lambda: self._subnet(self.pool.subnet))
        facts = Facts(cluster=self.cluster, subnet=subnet, rules=_read(lambda: self._rules(subnet)))
        return list(preflight.network(dataclasses.replace(facts, groups=self.groups), only_joining=True))

    # ---- one request each

    def _domains(self) -> list[str]:
        what = "list availability domains"
        return [item.name for item in self.session.all(what, "identity", "list_availability_domains", self.root)]

    @property
    def root(self) -> str:
        """OCID of the tenancy; of the compartment where the tenancy is unknown."""
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
        return {name: _read(functools.partial(self._limit, name)) for name in mine.get("quota_names") or []}

    def _limit(self, name: str) -> Json:
        """The limit's scope decides whether the request must name the availability domain or must not."""
        what = f"read the service limit {name}"
        defined = self.session.all(what, "limits", "list_limit_definitions", self.root, service_name=SERVICE, name=name)
        scope = defined[0].scope_type if defined else "AD"
        more = {"availability_domain": self.pool.availability_domain} if scope == "AD" else {}
        answer = self.session.call(what, "limits", "get_resource_availability", SERVICE, name, self.root, **more)
        return {"available": answer.data.available}

    def _capacity(self) -> Json:
        return capacity(self.session, self.root, self.pool.shape, self.pool.availability_domain)

    @functools.cached_property
    def cluster(self) -> Any:
        """The cluster as the preflight judges it, read once; None without one, or Unread."""
        return _read(self._cluster)

    def _cluster(self) -> Optional[Json]:
        if not self.pool.cluster:
            return None
        what = f"read the cluster {self.pool.cluster}"
        found = self.session.call(what, "oke", "get_cluster", self.pool.cluster).data
        nets = found.cluster_pod_network_options or []
        return {
            "name": found.name,
            "compartment": found.compartment_id,
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

    def _there(self) -> int:
        """Number of nodes of the existing pool of this name."""
        name, what = self.pool.pool, f"list pools named {self.pool.pool}"
        if not name:
            return 0
        if self.pool.kind == "cluster_network":
            listed = self.session.all(what, "management", "list_cluster_networks", self.compartment, limit=oci.PAGE)
            mine = [
                item for item in listed if name in (item.id, item.display_name) and item.lifecycle_state not in GONE
            ]
            return sum(part.size or 0 for item in mine for part in item.instance_pools or [])
        more = {"cluster_id": self.pool.cluster} if self.pool.cluster else {}
        listed = self.session.all(what, "oke", "list_node_pools", self.compartment, limit=oci.PAGE, **more)
        mine = [item for item in listed if name in (item.id, item.name) and item.lifecycle_state not in GONE]
        return sum(item.node_config_details.size or 0 for item in mine if item.node_config_details)

    def _subnet(self, key: str) -> Optional[Json]:
        if not key:
            return None
        found = self.session.call(f"read the subnet {key}", "network", "get_subnet", key).data
        what, more = f"list private addresses of {key}", {"subnet_id": key, "limit": oci.PAGE}
        used = _read(lambda: len(self.session.all(what, "network", "list_private_ips", **more)))
        counted = {"used": -1 if isinstance(used, Unread) else used}
        named = {"name": found.display_name, "cidr": found.cidr_block or "", "lists": found.security_list_ids or []}
        return {**named, **counted}

    def _compute_cluster(self) -> Optional[str]:
        key = self.pool.compute_cluster
        if not key:
            return None
        what = f"read the compute cluster {key}"
        return str(self.session.call(what, "compute", "get_compute_cluster", key).data.lifecycle_state)

    def _rules(self, subnet: Any) -> Any:
        if subnet is None or isinstance(subnet, Unread):
            return subnet or []
        found: list[Json] = []
        for key in subnet["lists"]:
            listed = self.session.call(f"read the security list {key}", "network", "get_security_list", key).data
            found += [_rule("INGRESS", rule, rule.source) for rule in listed.ingress_security_rules or []]
            found += [_rule("EGRESS", rule, rule.destination) for rule in listed.egress_security_rules or []]
        for key in self.groups:
            what, method = f"list rules of the security group {key}", "list_network_security_group_security_rules"
            try:
                rules = self.session.all(what, "network", method, key)
            except NotFound:
                found.append({"direction": "", "protocol": "", "missing": key})
                continue
            for rule in rules:
                ingress = rule.direction == "INGRESS"
                end, kind = (rule.source, rule.source_type) if ingress else (rule.destination, rule.destination_type)
                found.append(_rule(rule.direction, rule, end, kind))
        return found


def capacity(session: oci.Session, root: str, shape: str, domain: str) -> Json:
    """{status, count} of hosts now. No fault domain: OCI refuses one for BM shapes. ``root``: the tenancy's OCID."""
    models = session.oci.core.models
    asked = models.CreateCapacityReportShapeAvailabilityDetails(instance_shape=shape)
    details = models.CreateComputeCapacityReportDetails(
        compartment_id=root, availability_domain=domain, shape_availabilities=[asked]
    )
    what = f"read the capacity of {shape} in {domain}"
    report = session.call(what, "compute", "create_compute_capacity_report", details).data
    found = report.shape_availabilities[0]
    return {"status": found.availability_status, "count": found.available_count}


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


def findings(reader: Reader) -> list[Finding]:
    """Findings of the preflight, policies left out."""
    return preflight.judge(reader.pool, reader.read(), files.shapes())
