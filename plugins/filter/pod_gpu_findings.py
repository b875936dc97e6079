# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a pod asks for GPUs, as a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

DOCUMENTATION = r"""
name: pod_gpu_findings
short_description: What is wrong with the way a pod asks for GPUs
version_added: 0.1.0
description:
- The rules of M(gpuops.rdma.pod_gpu_check), without a cluster.
positional: taints, single
options:
  _input:
    description: A Pod, a workload with a pod template, or a pod's spec.
    type: dict
    required: true
  taints:
    description: Taints of the pool, as V(key=value:effect) or mappings.
    type: list
    elements: raw
    default: []
  single:
    description: Shared resources of which a container may ask for one only.
    type: list
    elements: str
    default: []
author:
- gpuops maintainers (@gpuops)
"""

EXAMPLES = r"""
- name: Refuse the Job before it hangs
  ansible.builtin.assert:
    that: job | gpuops.rdma.pod_gpu_findings(['nvidia.com/gpu=present:NoSchedule']) == []
"""

RETURN = r"""
_value:
  description: What is wrong, each with C(id), C(subject) (the path), C(found), C(expected) and C(remedy).
  type: list
  elements: dict
"""


def pod_gpu_findings(pod: Any, taints: Sequence[Any] = (), single: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns the findings about a pod's GPU requests as dictionaries. AnsibleFilterError for input that is not a
    pod."""
    try:
        return [to_dict(one) for one in pod_gpu.check(pod, taints, single)]
    except RdmaError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Any]:
        """Returns filter name -> function, as Ansible expects it."""
        return {"pod_gpu_findings": pod_gpu_findings}
