# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan, of the modules that carry out a part of it."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  plan:
    description: plan.json of this run, which the role C(plan) writes.
    type: path
    required: true
"""
