# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists hosts, the topology of dedicated capacity and fault reports. PRIVATE to the collection.

Calls: one per page of 1,000 hosts, one per capacity topology and page, one per faulty host; none per instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import hosts as oci_hosts
from ansible_collections.gpuops.rdma.plugins.module_utils._oci.preflight import Unread
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci.iam import read

WORKERS = 8
HOST = (
    "id",
    "instance_id",
    "shape",
    "availability_domain",
    "fault_domain",
    "hpc_island_id",
    "network_block_id",
    "local_block_id",
    "gpu_memory_fabric_id",
    "health",
    "lifecycle_state",
    "has_impacted_components",
)
METAL = (
    "instance_id",
    "instance_shape",
    "compute_hpc_island_id",
    "compute_network_block_id",
    "compute_local_block_id",
    "lifecycle_details",
)


class HostReader:
    """Reads hosts of a compartment. ``unread``: OCI's reasons for what could not be read."""

    def __init__(self, session: oci.Session, compartment: str, domain: str = "", shape: str = "") -> None:
        self.session, self.shape, self.domain = session, shape, domain
        self.compartment = compartment or session.tenancy
        self.more: Json = {"availability_domain": domain} if domain else {}
        self.unread: list[str] = []
        session.client("compute")  # created here so that threads do not race for it

    def read(self) -> tuple[list[Json], list[Json]]:
        """(hosts, hosts of the capacity topologies), as in module_utils/_oci/hosts.py."""
        with ThreadPoolExecutor(2) as workers:
            asked = [workers.submit(read, call) for call in (self._hosts, self._metal)]
            hosts, metal = (future.result() for future in asked)
        return self._or_none(hosts), self._or_none(metal)

    def _or_none(self, found: Any) -> list[Json]:
        if isinstance(found, Unread):
            self.unread.append(found.why)
            return []
        return [item for item in found if self.shape in ("", item.get("shape"), item.get("instance_shape"))]

    def _hosts(self) -> list[Json]:
        what, more = "list compute hosts", {"compute_host_in_subtree": True} if self._is_root() else {}
        method = "list_compute_hosts"
        listed = self.session.all(what, "compute", method, self.compartment, limit=oci.PAGE, **self.more, **more)
        return [{name: getattr(item, name, None) for name in HOST} for item in listed]

    def _metal(self) -> list[Json]:
        """Only tenancies with dedicated capacity have topologies."""
        what, method = "list capacity topologies", "list_compute_capacity_topologies"
        found: list[Json] = []
        for item in self.session.all(what, "compute", method, self.compartment, limit=oci.PAGE, **self.more):
            what, method = "list hosts of a topology", "list_compute_capacity_topology_compute_bare_metal_hosts"
            listed = self.session.all(what, "compute", method, item.id, limit=oci.PAGE)
            found += [{name: getattr(one, name, None) for name in METAL} for one in listed]
        return found

    def _is_root(self) -> bool:
        return self.compartment == self.session.tenancy

    def faults(self, hosts: Sequence[Json], most: int) -> dict[str, str]:
        """OCID of a host -> its fault report, for ``most`` hosts at most."""
        keys = oci_hosts.suspicious(hosts)
        if len(keys) > most:
            self.unread.append(
                f"fault reports of {len(keys) - most} of {len(keys)} hosts were not read (faults={most})"
            )
        with ThreadPoolExecutor(WORKERS) as workers:
            reports = list(workers.map(lambda key: read(lambda: self._fault(key)), keys[:most]))
        found = {}
        for key, text in zip(keys, reports):
            if isinstance(text, Unread):
                self.unread.append(text.why)
            elif text:
                found[key] = text
        return found

    def _fault(self, key: str) -> str:
        found = self.session.call(f"read the host {key}", "compute", "get_compute_host", key).data
        return oci_hosts.report(found.impacted_component_details or found.lifecycle_details)
