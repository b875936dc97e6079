#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_uses
short_description: Reject uses of GPUs that exclude each other on a node
version_added: 0.1.0
description:
- Compares the nodes of each use (time slicing, MPS, MIG, vGPU, serving), and fails if any exclude each other, listing
  all pairs. It changes nothing.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  uses:
    description: The requested uses. An entry without O(uses[].nodes) and O(uses[].selector) is ignored.
    type: list
    elements: dict
    required: true
    suboptions:
      use:
        description: The use.
        type: str
        required: true
        choices: [mig, mps, serving, time_slicing, vgpu]
      nodes:
        description: Names of its nodes.
        type: list
        elements: str
        default: []
      selector:
        description: Labels of its nodes.
        type: str
        default: ""
      resources:
        description: Shared resources, if they are not whole GPUs. C(nvidia.com/mig-<profile>) can be combined with MIG.
        type: list
        elements: str
        default: []
"""

EXAMPLES = r"""
- name: Check the uses of two pools
  gpuops.rdma.gpu_uses:
    uses:
      - use: time_slicing
        selector: pool=small-jobs
      - use: mig
        selector: pool=notebooks
"""

RETURN = r"""
uses:
  description: Number of nodes of each requested use.
  returned: success
  type: dict
requests:
  description: Number of requests to the API server.
  returned: success
  type: int
"""
