# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of an RDMA pool, checked without asking OCI. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.option_fields import PoolFields

NEEDED = ("cluster", "shape", "availability_domain", "subnet", "image")
"""Options that a new pool needs; with all of them a call describes the whole pool."""
CYCLES = {"": "", "replace_nodes": "INSTANCE_REPLACE", "replace_boot_volumes": "BOOT_VOLUME_REPLACE"}
"""Option -> CycleMode of OKE."""
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TAGS, TAG_KEY, TAG_VALUE = 10, 100, 256
"""Free-form tags of a resource, characters of a key and of a value: Oracle's "Limits on Tags"."""
NAME = 100
"""Characters of a name: it is in names of instances and in the value of our tag, beside the cluster's OCID."""
_TAINT = re.compile(r"(?P<key>[\w./-]+)(=(?P<value>[\w.-]*))?:(?P<effect>\w+)")


class PoolSpec(PoolFields):
    """Options of oci_rdma_node_pool; "" and empty = unchanged, or OCI's default."""

    @property
    def whole(self) -> bool:
        """Whether the call describes the whole pool; else it changes only what it names."""
        return all(getattr(self, name) for name in NEEDED)


def normal(wanted: PoolSpec) -> PoolSpec:
    """The options as OCI returns them: a version with v, a key without the newline of its file, values of tags as
    text. InputError for defined tags that are none."""
    wrong = [name for name, of in wanted.defined_tags.items() if not isinstance(of, Mapping)]
    if wrong:
        raise InputError(
            f"defined_tags: {', '.join(wrong)}: expected NAMESPACE: {{KEY: VALUE}}, as in Operations: {{Team: ml}}."
        )
    defined = {name: {key: _text(value) for key, value in of.items()} for name, of in wanted.defined_tags.items()}
    version = wanted.kubernetes_version.strip()
    version = f"v{version}" if version[:1].isdigit() else version
    tags = {str(key): _text(value) for key, value in wanted.tags.items()}
    key = wanted.ssh_public_key.strip()
    return replace(wanted, kubernetes_version=version, ssh_public_key=key, defined_tags=defined, tags=tags)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(wanted: PoolSpec) -> None:
    """Checks the options without asking OCI. Raises InputError."""
    check_tags(wanted.tags, 1)
    if not 1 <= len(wanted.name) <= NAME:
        raise InputError(f"name: {len(wanted.name)} characters; expected 1 to {NAME}.")
    if not all(item.strip() for item in wanted.remove_nodes):
        raise InputError("remove_nodes has a blank entry, which would match a node without an address. Name the nodes.")
    if wanted.nodes < 2:
        raise InputError(
            f"nodes: {wanted.nodes}: an RDMA pool needs at least two nodes. "
            "Create a single node without RDMA, or remove the pool with state: absent."
        )
    if re.search(r"\.GB[23]00", wanted.shape):
        raise InputError(
            f"{wanted.shape} belongs in a GPU memory cluster, which this module does not create. Create it with "
            "Oracle's stack, then run site.yml on its nodes."
        )
    for text in wanted.taints:
        match = _TAINT.fullmatch(text)
        if not match or match["effect"] not in EFFECTS:
            raise InputError(
                f"taints: {text!r} is not a taint; expected KEY=VALUE:EFFECT with one of {', '.join(EFFECTS)}."
            )
    if not -1 <= wanted.eviction_minutes <= 60:
        raise InputError(f"eviction_minutes: {wanted.eviction_minutes}: OKE evicts pods for 0 to 60 minutes.")
    _check_kind(wanted)


def check_tags(tags: Mapping[str, str], ours: int) -> None:
    """InputError for tags that OCI would refuse. ``ours``: how many the collection adds."""
    wrong = [key for key in tags if not 1 <= len(str(key)) <= TAG_KEY or re.search(r"[.\s]", str(key))]
    wrong += [key for key, value in tags.items() if len(str(value)) > TAG_VALUE]
    if wrong:
        raise InputError(
            f"tags: {', '.join(map(repr, wrong))}: OCI accepts keys of up to {TAG_KEY} characters without periods and "
            f"spaces, and values of up to {TAG_VALUE}."
        )
    if len(tags) + ours > TAGS:
        raise InputError(
            f"tags: {len(tags)} tags and {ours} of this collection; a resource can have {TAGS}. Leave some out, or use "
            "defined_tags."
        )


def _check_kind(wanted: PoolSpec) -> None:
    """InputError for an option that this kind of pool does not have, and for places that contradict each other."""
    managed = wanted.kind == "managed_compute_cluster"
    for name in () if managed else ("host_group", "fault_domains"):
        if getattr(wanted, name):
            raise InputError(f"{name} is only for node pools; a cluster network chooses its hosts itself.")
    if wanted.boot_volume_vpus and managed:
        raise InputError("boot_volume_vpus is only for cluster networks: OKE's node pools have no such setting.")
    if wanted.boot_volume_vpus and wanted.boot_volume_vpus not in range(10, 121, 10):
        raise InputError(f"boot_volume_vpus: {wanted.boot_volume_vpus}: expected 10, 20 or 30 to 120 in steps of 10.")
    if wanted.cycle and not managed:
        raise InputError(
            "cycle is only for node pools. Replace the nodes of a cluster network by naming them in remove_nodes."
        )
    limits = (wanted.cycle_surge.strip(), wanted.cycle_unavailable.strip())
    if not all(re.fullmatch(r"\d+%?", item) for item in limits):
        raise InputError(f"cycle_surge, cycle_unavailable: {', '.join(limits)}: expected a number such as 1, or 25%.")
    if wanted.cycle and not any(int(item.rstrip("%")) for item in limits):
        raise InputError("cycle_surge and cycle_unavailable are both 0: OKE could not cycle a node. Set one of them.")
    if wanted.network_blocks and not wanted.hpc_island:
        raise InputError(
            "rdma_oci_network_blocks: set rdma_oci_hpc_island as well, the island that these blocks are in."
        )
    if wanted.compute_cluster and (wanted.hpc_island or wanted.placement_constraint):
        raise InputError(
            "hpc_island, network_blocks and placement_constraint apply only to a new compute cluster, but "
            "compute_cluster is an existing one."
        )


def for_new(wanted: PoolSpec) -> None:
    """InputError if an option is missing that a new pool needs."""
    missing = [name for name in NEEDED if not getattr(wanted, name)]
    if missing:
        raise InputError(f"The pool {wanted.name!r} does not exist; to create it, set {', '.join(missing)} as well.")
