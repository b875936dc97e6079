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

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import hosts as oci_hosts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.iam import read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.preflight import Unread

WORKERS = 8


class HostReader:
    """Reads hosts of a compartment. ``unread``: OCI's reasons for what could not be read."""

    def __init__(self, session: oci.Session, compartment: str, domain: str = "", shape: str = "") -> None:
        self.session, self.shape, self.domain = session, shape, domain
        self.compartment = compartment or session.tenancy
        self.more: Json = {"availability_domain": domain} if domain else {}
        self.unread: list[str] = []
        session.client("compute")  # created here so that threads do not race for it

    def read(self) -> tuple[list[Json], list[Json]]:
        """(hosts, hosts of the capacity topologies), as in plugin_utils/oci/hosts.py."""
        with ThreadPoolExecutor(2) as workers:
            asked = [workers.submit(read, call) for call in (self._hosts, self._metal)]
            hosts, metal = (future.result() for future in asked)
        return self._or_none(hosts), self._or_none(metal)

    def _or_none(self, found: Any) -> list[Json]:
        if isinstance(found, Unread):
            self.unread.append(found.why)
            return []
        return [item for item in found if self.shape in ("", item.get("shape"), item.get("instanceShape"))]

    def _hosts(self) -> list[Json]:
        more = {"compute_host_in_subtree": True} if self.compartment == self.session.tenancy else {}
        return self._listed("hosts", "list_compute_hosts", self.compartment, **self.more, **more)

    def _metal(self) -> list[Json]:
        """Only tenancies with dedicated capacity have topologies."""
        what, method = "capacity topologies", "list_compute_capacity_topologies"
        topologies = self._listed(what, method, self.compartment, **self.more)
        method = "list_compute_capacity_topology_compute_bare_metal_hosts"
        return [one for item in topologies for one in self._listed("hosts of a topology", method, item["id"])]

    def _listed(self, what: str, method: str, place: str, **more: Any) -> list[Json]:
        return list(self.session.body(f"list compute {what}", "compute", method, place, limit=oci.PAGE, **more))

    def faults(self, hosts: Sequence[Json], most: int) -> dict[str, str]:
        """OCID of a host -> its fault report, for ``most`` hosts at most."""
        keys = oci_hosts.suspicious(hosts)
        if len(keys) > most:
            lost = f"{len(keys) - most} of {len(keys)} hosts"
            self.unread.append(f"fault reports of {lost} were not read (faults={most})")
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
        found = self.session.body(f"read the host {key}", "compute", "get_compute_host", key)
        return oci_hosts.report(found.get("impactedComponentDetails") or found.get("lifecycleDetails"))
