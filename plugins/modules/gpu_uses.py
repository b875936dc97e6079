#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_uses
short_description: Refuse uses of GPUs that exclude each other on one node
version_added: 0.1.0
description:
- Compares the nodes of each use (time slicing, MPS, MIG, vGPU, serving), and fails with all pairs that exclude each
  other before the first change. It changes nothing.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  uses:
    description: The uses that are asked for; one without O(uses[].nodes) and O(uses[].selector) is none.
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
        description: What is shared, where it is not whole GPUs; C(nvidia.com/mig-<profile>) goes with MIG.
        type: list
        elements: str
        default: []
"""

EXAMPLES = r"""
- name: Two pools, two uses
  gpuops.rdma.gpu_uses:
    uses:
      - use: time_slicing
        selector: pool=small-jobs
      - use: mig
        selector: pool=notebooks
"""

RETURN = r"""
uses:
  description: Number of nodes of each use that is asked for.
  returned: success
  type: dict
requests:
  description: Requests to the API server.
  returned: success
  type: int
"""
