# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU nodes, and pods that prove what is done to them: options of the modules that change nodes."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  nodes:
    description: Only these nodes.
    type: list
    elements: str
    default: []
  selector:
    description: Only nodes with these labels. Without O(selector) and O(nodes), all NVIDIA GPU nodes except vGPU
      guests.
    type: str
    default: ""
  image:
    description: Image of these pods. Its command must not exit.
    type: str
    default: registry.k8s.io/pause:3.10
  timeout:
    description: Seconds to wait for the nodes, and again for the proof.
    type: int
    default: 600
  grace:
    description: Seconds that a pod of the proof may be unschedulable or unable to pull its image.
    type: int
    default: 60
"""
