# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stacks of OCI's Resource Manager: options of all modules that apply one."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  compartment:
    description: OCID of the compartment of the stack; also its variable C(compartment_ocid) where none is given.
    type: str
    required: true
  stack:
    description: OCID of a stack, instead of O(name).
    type: str
    default: ''
  zip:
    description: Zip file with the Terraform configuration. Without it the files of an existing stack stay.
    type: path
  working_directory:
    description: Folder in the zip that has the root module.
    type: str
    default: ''
  terraform_version:
    description: For a new stack, e.g. V(1.5.x); Resource Manager's newest by default.
    type: str
    default: ''
  variables:
    description:
    - Variables of the configuration. Those of an existing stack that are not named stay. Lists and objects are written
      as JSON.
    - C(tenancy_ocid), C(compartment_ocid) and C(region) are filled in where the configuration has them.
    type: dict
    default: {}
  secret_variables:
    description: More variables. Their values are never shown, also not in the job's log.
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
    description: The stack's name again, with O(state=absent).
    type: str
    default: ''
"""
