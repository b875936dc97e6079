# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: plugin_restart
short_description: Restart the SR-IOV device plugin if its configuration is newer
version_added: 0.1.0
description:
- The device plugin reads its configuration only when it starts. Network Operators before 26.1 do not restart it when
  the configuration changes; where the plan names such a release, this deletes the pods that were made before the
  ConfigMap was last changed, and waits until their successors are ready and the nodes offer their VFs again.
- With newer releases, or if no pod is older, it does nothing.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  nodes:
    description: Only on these nodes, as the ones of a wave of an upgrade. Empty = on all.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds for the new pods to be ready, and for the VFs.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Let the device plugin read its configuration
  gpuops.rdma.plugin_restart:
    plan: rdma-report/run/plan.json
"""

RETURN = r"""
restarted:
  description: At most 50 nodes whose pod was, or in check mode would be, made anew.
  returned: always
  type: list
  elements: str
total:
  description: How many they are.
  returned: always
  type: int
"""
