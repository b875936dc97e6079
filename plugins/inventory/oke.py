# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory of the OKE clusters of a compartment, or of the GPU nodes of a cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
name: oke
short_description: Read OKE clusters or their GPU nodes as hosts
version_added: 0.1.0
description:
- With O(hosts=clusters) every cluster of a compartment is a host, for the main playbook. With O(hosts=nodes) the nodes
  of a cluster are hosts, for checks over SSH, with their location in the RDMA network and their health.
- It provides no kubeconfig. For several clusters, use a kubeconfig with a context for each and select it by C(compose),
  as in the example. A job rejects a kubeconfig that points to another cluster than its host.
- The number of calls depends on regions, pools, subnets and pages, not on nodes. Lists are read in pages of 1,000.
- A region that cannot be read is a warning, and the hosts of the other regions are returned. With O(strict), or if no
  region can be read, it is an error.
- The file's name must end with C(oke.yml) or C(oke.yaml). docs/oci.md shows the resulting hosts.
extends_documentation_fragment:
- gpuops.rdma.oci
- constructed
- inventory_cache
options:
  plugin:
    description: Must be V(gpuops.rdma.oke).
    type: str
    required: true
    choices: [gpuops.rdma.oke]
  hosts:
    description: What the hosts of the inventory are.
    type: str
    choices: [clusters, nodes]
    default: clusters
  compartment:
    description: OCID of the compartment of clusters, pools and subnets.
    type: str
    required: true
    env:
    - name: OCI_COMPARTMENT
  regions:
    description: The regions to read, instead of the profile's region or O(region).
    type: list
    elements: str
    default: []
  subcompartments:
    description: With O(hosts=clusters), include nested compartments.
    type: bool
    default: false
  cluster:
    description: With O(hosts=nodes), OCIDs or names of the clusters, in any of the O(regions). A name selects the
      clusters with this name in all regions. Optional with O(cluster_networks).
    type: list
    elements: str
    default: []
  cluster_networks:
    description: OCIDs of cluster networks whose instances are also nodes. OCI does not report their cluster.
    type: list
    elements: str
    default: []
  topology:
    description: Read island, block and health of each node's host. Needs C(inspect dedicated-vm-hosts in tenancy).
    type: bool
    default: true
  gpu_only:
    description: Leave out nodes whose shape has no GPUs or is unknown to this collection.
    type: bool
    default: true
  freeform_tags:
    description: Freeform tags, as key to value, that hosts must have. A node also has those of its pool.
    type: dict
    default: {}
  defined_tags:
    description: Defined tags, as namespace to key to value, that hosts must have.
    type: dict
    default: {}
  filters:
    description: Jinja conditions on a host's variables, such as V(oci_health == 'HEALTHY'). Hosts that do not meet all
      of them are left out.
    type: list
    elements: str
    default: []
  hostnames:
    description: Jinja expressions on a host's variables, such as V(private_ip). The first non-empty value is the host's
      name in the inventory, instead of its name in OCI. Duplicate names are rejected.
    type: list
    elements: str
    default: []
  remote_user:
    description: User on the nodes, V(ubuntu) on Oracle's GPU images, V(opc) on Oracle Linux.
    type: str
    default: ubuntu
  bastion:
    description: SSH jump hosts to the nodes, in order, as V(user@host).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
# clusters.oke.yml: the main job on all clusters of a compartment, with the contexts that
# oci ce cluster create-kubeconfig wrote
plugin: gpuops.rdma.oke
compartment: ocid1.compartment.oc1..aaaa
profile: DEFAULT
compose:
  rdma_context: oci_context

# all.oke.yml: the clusters of two regions
# plugin: gpuops.rdma.oke
# compartment: ocid1.compartment.oc1..aaaa
# regions: [eu-frankfurt-1, us-ashburn-1]
# hostnames: ["oci_region ~ '-' ~ inventory_name"]
# compose:
#   rdma_context: oci_context
#   rdma_oci_region: oci_region

# nodes.oke.yml: host checks on the GPU nodes of one cluster, through a bastion
# plugin: gpuops.rdma.oke
# hosts: nodes
# compartment: ocid1.compartment.oc1..aaaa
# cluster: train
# bastion: [opc@203.0.113.5]
# keyed_groups:
#   - key: oci_fault_domain
#     prefix: fd
# freeform_tags: {team: ml}
# cache: true
# cache_plugin: jsonfile
# cache_connection: .cache/inventory
"""

import difflib
from typing import Any

from ansible.errors import AnsibleError, AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import inventory as oke_inventory
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):  # type: ignore[misc]
    NAME = "gpuops.rdma.oke"

    def verify_file(self, path: str) -> bool:
        """Whether the file's name ends with oke.yml or oke.yaml."""
        return bool(super().verify_file(path)) and path.endswith(("oke.yml", "oke.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Adds the hosts to ``inventory``. AnsibleParserError for wrong options and refused calls."""
        super().parse(inventory, loader, path, cache)
        given = self._read_config_data(path)
        try:
            _refuse_unknown(given, self.get_options())
            hosts = self._hosts(self.get_cache_key(path), cache)
            hosts = [host for host in hosts if all(self._of(host, item) for item in self.get_option("filters"))]
            hosts = oke_inventory.renamed([(host, self._name(host)) for host in hosts])
        except RdmaError as error:
            raise AnsibleParserError(f"{path}: {error}") from None
        for host in hosts:
            self._add(host)

    def _of(self, host: Json, expression: str) -> Any:
        return self._compose(expression, {**host["vars"], "inventory_name": host["name"]})

    def _name(self, host: Json) -> str:
        """The first of the names asked for that is not empty; its own without any."""
        for expression in self.get_option("hostnames"):
            try:
                name = self._of(host, expression)
            except AnsibleError:
                if self.get_option("strict"):
                    raise
                name = ""
            if name:
                return str(name)
        return str(host["name"])

    def _hosts(self, key: str, cache: bool) -> list[Json]:
        """The hosts, from the cache if it is enabled and not to be refreshed."""
        cached = self.get_option("cache")
        if cached and cache:
            try:
                return list(self._cache[key]["hosts"])
            except (KeyError, TypeError):
                pass  # missing or expired
        hosts = self._read()
        if cached:
            self._cache[key] = {"hosts": hosts}
        return hosts

    def _add(self, host: Json) -> None:
        name, strict = host["name"], self.get_option("strict")
        self.inventory.add_host(name)
        for key, value in host["vars"].items():
            self.inventory.set_variable(name, key, value)
        for group in host["groups"]:
            self.inventory.add_child(self.inventory.add_group(self._sanitize_group_name(group)), name)
        self._set_composite_vars(self.get_option("compose"), host["vars"], name, strict=strict)
        known = self.inventory.get_host(name).get_vars()
        self._add_host_to_composed_groups(self.get_option("groups"), known, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), known, name, strict=strict)

    # ---- OCI

    def _read(self) -> list[Json]:
        oci.of_kind(self.get_option("compartment"), "compartment", "compartment")
        for network in self.get_option("cluster_networks"):
            oci.of_kind(network, "clusternetwork", "cluster_networks")
        session, regions = oci.Session({key: self.get_option(key) for key in oci.OPTIONS}), self.get_option("regions")
        if self.get_option("hosts") == "nodes":
            if not self.get_option("cluster") and not self.get_option("cluster_networks"):
                raise InputError("hosts=nodes needs cluster or cluster_networks.")
            # names of clusters that are in no region read so far; what those have that were read
            self.missing, self.known = {*self.get_option("cluster")}, set[str]()
        hosts: list[Json] = []
        failed: list[str] = []
        for region in regions or [""]:
            try:
                hosts += self._of_region(session.elsewhere(region) if region else session)
            except RdmaError as error:
                if len(failed) + 1 >= len(regions) or self.get_option("strict"):
                    raise
                failed.append(region)
                self.display.warning(f"gpuops.rdma.oke: region {region} is left out: {error}")
        if self.get_option("hosts") == "nodes" and self.missing and not failed:
            known, names = ", ".join(sorted(self.known)) or "none", ", ".join(map(repr, sorted(self.missing)))
            raise InputError(f"No cluster is named {names}. Existing clusters: {known}.")
        wanted = self.get_option("freeform_tags"), self.get_option("defined_tags")
        return oke_inventory.distinct(host for host in hosts if oke_inventory.tagged(host, *wanted))

    def _of_region(self, session: oci.Session) -> list[Json]:
        if self.get_option("hosts") == "clusters":
            return self._clusters(session)
        hosts = self._nodes(session)
        self.display.vvv(f"gpuops.rdma.oke: {len(hosts)} hosts of {session.region} by {session.requests} calls")
        return hosts

    def _clusters(self, session: oci.Session) -> list[Json]:
        top = self.get_option("compartment")
        names = {top: top}
        if self.get_option("subcompartments"):
            names.update(_inside(session, top))
        found = []
        for compartment, name in names.items():
            what = f"list clusters of {name} in {session.region}"
            listed = session.body(what, "oke", "list_clusters", compartment)
            found += [{**item, "region": session.region} for item in listed]
        return oke_inventory.clusters(found, names)

    def _nodes(self, session: oci.Session) -> list[Json]:
        pools = [pool for cluster in self._cluster(session) for pool in self._managed(session, cluster)]
        networks = [
            self._network(session, key) for key in self.get_option("cluster_networks") if self._here(session, key)
        ]
        attachments, addresses = self._addresses(session) if networks else ([], [])
        places = self._places(session) if self.get_option("topology") and (pools or networks) else []
        listed = oke_inventory.Listed(session.region, [*pools, *networks], attachments, addresses, places)
        hosts, faults = oke_inventory.nodes(listed, _shapes())
        self._report(faults)
        if self.get_option("gpu_only"):
            hosts = [host for host in hosts if host["vars"]["oci_gpus"]]
        common = {"ansible_user": self.get_option("remote_user")}
        jump = oke_inventory.proxy(self.get_option("bastion"))
        common.update({"ansible_ssh_common_args": jump} if jump else {})
        return [{**host, "vars": {**host["vars"], **common}} for host in hosts]

    def _report(self, faults: list[str]) -> None:
        """With strict a host that cannot be resolved is an error, else a warning, and the host is left out."""
        if faults and self.get_option("strict"):
            raise InputError(f"{len(faults)} nodes cannot be resolved (strict): {listed(faults, separator='; ')}.")
        for fault in faults[:5]:
            self.display.warning(f"gpuops.rdma.oke: {fault}")

    def _managed(self, session: oci.Session, cluster: str) -> list[Json]:
        """Pools of the cluster with nodes; only get_node_pool returns nodes, so one call per pool."""
        compartment, what = self.get_option("compartment"), f"list node pools of {cluster}"
        listed = session.body(what, "oke", "list_node_pools", compartment, cluster_id=cluster, limit=oci.PAGE)
        return [session.body(f"read node pool {pool['name']}", "oke", "get_node_pool", pool["id"]) for pool in listed]

    def _cluster(self, session: oci.Session) -> list[str]:
        """OCIDs of the clusters that are in this region; InputError for a name that two of them have."""
        given, compartment = self.get_option("cluster"), self.get_option("compartment")
        keys = [oci.of_kind(item, "cluster", "cluster") for item in given if item.startswith("ocid1.")]
        found = [item for item in keys if self._here(session, item)]
        self.missing.difference_update(found)
        names = [item for item in given if not item.startswith("ocid1.")]
        listed = session.body(f"list clusters of {compartment}", "oke", "list_clusters", compartment) if names else []
        there = [item for item in listed if item["lifecycleState"] not in oke_inventory.GONE]
        self.known.update(item["name"] for item in there)
        for name in names:
            mine = [item["id"] for item in there if item["name"] == name]
            if len(mine) > 1:
                raise InputError(f"{len(mine)} clusters are named {name!r}; set cluster to the OCID.")
            found += mine
            self.missing.difference_update([name] if mine else [])
        return found

    def _here(self, session: oci.Session, ocid: str) -> bool:
        """Whether it is to be read in this region: of several regions in its own one."""
        region = ocid.split(".")[3]
        return not self.get_option("regions") or session.region == session.oci.regions.REGIONS_SHORT_NAMES.get(
            region, region
        )

    def _network(self, session: oci.Session, key: str) -> Json:
        network = session.body(f"read cluster network {key}", "management", "get_cluster_network", key)
        name, method = network.get("displayName") or key[-oke_inventory.SUFFIX :], "list_cluster_network_instances"
        what, home = f"list instances of cluster network {name}", network["compartmentId"]
        members = session.body(what, "management", method, home, key, limit=oci.PAGE)
        size = sum(pool.get("size", 0) for pool in network.get("instancePools", []))
        return {**network, "name": name, "size": size, "members": members}

    def _addresses(self, session: oci.Session) -> tuple[list[Json], list[Json]]:
        """VNICs of the compartment and private addresses by subnet: no call per instance."""
        compartment = self.get_option("compartment")
        what = f"list VNICs of {compartment}"
        attachments = session.body(what, "compute", "list_vnic_attachments", compartment, limit=oci.PAGE)
        addresses: list[Json] = []
        for subnet in sorted({item["subnetId"] for item in attachments if item.get("subnetId")}):
            what = f"list private addresses of {subnet}"
            addresses += session.body(what, "network", "list_private_ips", subnet_id=subnet, limit=oci.PAGE)
        return attachments, addresses

    def _places(self, session: oci.Session) -> list[Json]:
        """Hosts with place and health; [] with a warning if this user may not list them."""
        where = session.tenancy or self.get_option("compartment")
        more = {"compute_host_in_subtree": True} if session.tenancy else {}
        try:
            what, method = "list compute hosts", "list_compute_hosts"
            return list(session.body(what, "compute", method, where, limit=oci.PAGE, **more))
        except NotFound as error:
            if self.get_option("strict"):
                raise
            self.display.warning(
                f"gpuops.rdma.oke: cannot read the hosts of the nodes, which have no block and no health: {error}"
            )
            return []


def _refuse_unknown(given: Json, options: Json) -> None:
    """InputError for a key that is no option: it would be ignored in silence."""
    unknown = [key for key in given if key not in options]
    if unknown:
        near = difflib.get_close_matches(unknown[0], options, 1)
        raise InputError(f"unknown key {', '.join(unknown)}{f'; did you mean {near[0]}' if near else ''}?")


def _inside(session: oci.Session, top: str) -> dict[str, str]:
    """OCID -> name of all nested compartments, level by level: OCI lists a whole tree only from the root."""
    found: dict[str, str] = {}
    ahead = [top]
    while ahead:
        parent = ahead.pop()
        what, method = f"list compartments of {parent}", "list_compartments"
        for item in session.body(what, "identity", method, parent, limit=oci.PAGE):
            if item["lifecycleState"] == "ACTIVE" and item["id"] not in found and item["id"] != top:
                found[item["id"]] = item["name"]
                ahead.append(item["id"])
    return found


def _shapes() -> dict[str, dict[str, Any]]:
    return {
        shape.name: {"gpus": shape.gpu_count, "vfs": shape.vf_count}
        for shape in shape_table.shapes().values()
        if shape.gpus
    }
