# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies of RDMA pools on OCI: options of the modules that judge and write them."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  boot_volume_key_compartment:
    description: OCID of the compartment of O(boot_volume_key). Without it the statements about the key are unknown.
    type: str
    default: ''
  policy_options:
    description: Features that need further statements.
    type: list
    elements: str
    choices: [create_policies, host_group, replace]
    default: []
"""
