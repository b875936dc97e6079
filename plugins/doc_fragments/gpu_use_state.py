# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs: options of all modules that make, prove and remove one."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  state:
    description: V(absent) removes the module's objects and settings.
    type: str
    choices: [present, absent]
    default: present
  prove:
    description: When to test that it works.
    type: str
    choices: [changed, always, never]
    default: changed
  priority_class:
    description: >-
      PriorityClass of the test's pods. The default one is created. Another one must exist and have
      C(preemptionPolicy=Never).
    type: str
    default: gpuops-rdma
"""
