# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stacks of OCI's Resource Manager: options of all modules that apply one."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  compartment:
    description: OCID of the compartment of the stack. It is also the default of its variable C(compartment_ocid).
    type: str
    required: true
  stack:
    description: OCID of a stack, instead of O(name).
    type: str
    default: ''
  zip:
    description: Zip file with the Terraform configuration. Without it an existing stack keeps its files.
    type: path
  working_directory:
    description: Folder of the root module in the zip.
    type: str
    default: ''
  terraform_version:
    description: Terraform version of a new stack, for example V(1.5.x). The default is Resource Manager's newest.
    type: str
    default: ''
  variables:
    description:
    - Variables of the configuration. Other variables of an existing stack are kept. Lists and objects are written
      as JSON.
    - C(tenancy_ocid), C(compartment_ocid) and C(region) are set if the configuration has them.
    type: dict
    default: {}
  secret_variables:
    description: Further variables. Their values are never shown, not even in the job's log.
    type: dict
    default: {}
  tags:
    description: Freeform tags of a new stack.
    type: dict
    default: {}
  allow_removal:
    description: Apply a plan that destroys or replaces resources.
    type: bool
    default: false
  confirm:
    description: Name of the stack, to confirm O(state=absent).
    type: str
    default: ''
"""
