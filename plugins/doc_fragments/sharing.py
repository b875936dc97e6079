# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations that share GPUs: options of all modules that render or apply them."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  share:
    description: Configurations that share GPUs, one per key.
    type: list
    elements: dict
    default: []
    suboptions:
      key:
        description: The key in the ConfigMap, and the value of the node label C(nvidia.com/device-plugin.config).
        type: str
        required: true
      strategy:
        description: How a GPU is shared. V(mps) does not work with MIG.
        type: str
        required: true
        choices: [time-slicing, mps]
      replicas:
        description: Number of pods that share one device, at least 2.
        type: int
        required: true
      resources:
        description: C(nvidia.com/gpu) (the default) or C(nvidia.com/mig-<profile>).
        type: list
        elements: str
        default: []
      rename:
        description: Publish C(nvidia.com/gpu.shared) instead, so that a replica is not mistaken for a whole GPU.
        type: bool
        default: false
      fail_requests_greater_than_one:
        description: Reject pods that request more than one replica. The plugin's default is V(false), with MPS V(true).
        type: bool
  configs:
    description: Further configurations by key, each a document of the device plugin or its YAML string.
    type: dict
    default: {}
  mig_configs:
    description: Your own layouts in the MIG manager's format, C(mig-configs) by name. They replace its own file.
    type: dict
    default: {}
  name:
    description: Name of the ConfigMap in the GPU Operator's namespace. The MIG manager's has the suffix C(-mig).
    type: str
    default: gpuops-gpu-sharing
"""
