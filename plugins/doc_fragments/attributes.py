# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of the plugins, told once."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return a prediction without changing the target.
  diff_mode:
    description: Returns details of what changes when run in diff mode.
  action:
    description: Runs on the control node.
    support: full
"""

    CLUSTER = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return a prediction without changing the target.
    support: full
  diff_mode:
    description: Returns details of what changes when run in diff mode.
    support: full
  action:
    description: Runs on the control node.
    support: full
  action_group:
    description: Use C(group/gpuops.rdma.cluster) in C(module_defaults) to set connection options once.
    support: full
    membership:
      - gpuops.rdma.cluster
"""
