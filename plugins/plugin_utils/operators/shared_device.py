# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of the RDMA shared device plugin, of the Network Operator. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import INFINIBAND, SHARED_SLOTS, Json, Shape


def config(shapes: Sequence[Shape], resource: str) -> Json:
    """One resource with the RDMA ports of all these shapes. The plugin gives a pod every port that it selects, so ports
    are selected by name where all have one: other NICs of a node may be of the same model. InputError where they cannot
    be told from a management NIC, or nothing selects them."""
    prefix, _slash, name = resource.rpartition("/")
    ports = [pf for shape in shapes for pf in shape.pfs]
    names = sorted({pf.netdev for pf in ports})
    ids = sorted({shape.pf_id for shape in shapes if shape.pf_id})
    management = [(shape.name, nic) for shape in shapes for nic in shape.vcn]
    selectors: Json = {"vendors": sorted({one.partition(":")[0] for one in ids}) or ["15b3"]}
    if ports and all(names):
        clash = [f"{nic.netdev} of {shape}" for shape, nic in management if nic.netdev in names]
        selectors["ifNames"] = names
    else:
        clash = [f"{nic.pci} of {shape}" for shape, nic in management if nic.pf_id in ids]
        selectors["deviceIDs"] = [one.partition(":")[2] for one in ids]
    what = ", ".join(shape.name for shape in shapes)
    if clash:
        raise InputError(
            f"{resource}: the RDMA ports of {what} cannot be distinguished from the management NIC {clash[0]}"
        )
    if not (ids or all(names)):
        raise InputError(
            f"{resource}: {what} has neither the names (pfs[].netdev) nor the device id (nic.pf_id) of its ports"
        )
    if all(shape.link_layer == INFINIBAND for shape in shapes):
        selectors["linkTypes"] = ["infiniband"]
    entry = {"resourceName": name, "resourcePrefix": prefix, "rdmaHcaMax": SHARED_SLOTS, "selectors": selectors}
    return {"configList": [entry]}
