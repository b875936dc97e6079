# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that read nodes for a module that has no plan."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  images:
    description:
    - Other images, like C(rdma_images). The DaemonSet uses the image C(vf_config), which needs Python 3.8 or newer.
    type: dict
    default: {}
  image_pull_secrets:
    description: Pull secrets of the image.
    type: list
    elements: str
    default: []
  tolerations:
    description: Further tolerations of its pods, as C(key=value:effect) or mappings.
    type: list
    elements: raw
    default: []
  priority_class:
    description: >-
      PriorityClass of its pods. The default one is created. Another one must exist and have C(preemptionPolicy=Never).
    type: str
    default: gpuops-rdma
  timeout:
    description: Seconds to wait until all nodes have written their document. Later ones are listed.
    type: int
    default: 600
  grace:
    description: Seconds after which a pod in a state like ImagePullBackOff counts as unrecoverable.
    type: int
    default: 60
"""
