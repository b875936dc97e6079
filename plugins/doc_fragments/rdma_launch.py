# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes of RDMA pools on OCI are launched with: options of the modules that make them and judge their policies."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  capacity_reservation:
    description: OCID of a capacity reservation for the nodes. Limit and free capacity are then not checked.
    type: str
    default: ''
  boot_volume_key:
    description: OCID of a key of OCI Vault to encrypt boot volumes, instead of Oracle's key.
    type: str
    default: ''
"""
