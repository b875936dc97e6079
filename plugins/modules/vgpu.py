#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: vgpu
short_description: Install driver and licence on nodes with one vGPU each
version_added: 0.1.0
description:
- Sets the guest driver in the ClusterPolicy, or in an NVIDIADriver if the ClusterPolicy uses those, and configures the
  licence as a Secret if the operator supports it, otherwise as a ConfigMap.
- Rejects a guest driver that is newer than the host's or of another branch, an operating system that differs from the
  nodes', a missing pull secret, nodes that share their GPUs, and nodes with whole GPUs that would also get the guest
  driver.
- Checks that each node can reach the licence server before the driver is rolled out.
- Proves it - the driver's pod is Ready, one GPU is allocatable, and the licence metric of the node's DCGM exporter
  is 1.
- On vSphere, creates one MachineSet per vGPU profile, as a copy of a given one with another template.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
options:
  driver:
    description: The guest driver. Required with O(state=present).
    type: dict
    suboptions:
      repository:
        description: Registry and path, such as V(registry.example.com/vgpu).
        type: str
        required: true
      image:
        description: Name of the image.
        type: str
        default: vgpu-guest-driver
      version:
        description: The guest driver's version. The operator adds the nodes' operating system to the tag. A version
          that includes it (V(550.163.01-rhcos4.18)) must match the nodes.
        type: str
        required: true
      host_version:
        description: Version of the vGPU manager on the hosts, which the guest's must not exceed. Nodes that already run
          a driver report it themselves.
        type: str
        default: ""
      pull_secrets:
        description: Pull secrets of the image, in the operator's namespace.
        type: list
        elements: str
        default: []
  license:
    description: How a node gets its licence. Required with O(state=present).
    type: dict
    suboptions:
      token:
        description: The complete client configuration token. It is never shown.
        type: str
      feature_type:
        description: 0 unlicensed, 1 vGPU, 2 RTX virtual workstation, 4 virtual compute server.
        type: int
        default: 1
      server:
        description: Legacy licence server. Not needed with a token.
        type: str
        default: ""
      server_port:
        description: Port of the licence server. V(0) is the driver's default.
        type: int
        default: 0
      proxy:
        description: Host of the proxy through which the licence server is reached, without scheme and user.
        type: str
        default: ""
      proxy_port:
        description: Port of the proxy.
        type: int
        default: 0
      reach:
        description: Licence servers as V(host:port) that the nodes must reach. The default is those in the token.
        type: list
        elements: str
        default: []
  name:
    description: Name of the Secret or ConfigMap with the licence, in the operator's namespace.
    type: str
    default: gpuops-vgpu-licensing
  nodes:
    description: The vGPU nodes.
    type: list
    elements: str
    default: []
  selector:
    description: Labels of the vGPU nodes, instead of their names.
    type: str
    default: ""
  machine_set:
    description: MachineSet of OpenShift to copy for the profiles.
    type: str
    default: ""
  profiles:
    description: Profiles with one MachineSet each. Without O(nodes) and O(selector), their nodes are the vGPU nodes.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the MachineSet, and value of its nodes' label C(gpuops.rdma/vgpu-profile).
        type: str
        required: true
      template:
        description: RHCOS template in vSphere with this profile's vGPU device.
        type: str
        required: true
      replicas:
        description: Number of machines. By default an existing MachineSet keeps its number, and a new one starts with
          0.
        type: int
  drain:
    description: Delete pods that use GPUs if a running driver must change. Without it the task fails on such pods.
    type: bool
    default: false
  state:
    description: V(absent) removes the licence, the driver settings and the MachineSets of O(profiles) with their
      machines, and restores the earlier values of the ClusterPolicy.
  prove:
    description: When to read the licence metrics.
  image:
    description: Image with Python 3.8 or newer for the pods that test the network. The default is the image of the VF
      configuration.
    type: str
    default: ""
  image_pull_secrets:
    description: Pull secrets of this image, in the operator's namespace.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for the nodes, then for the drivers, and then for the licences.
    type: int
    default: 1800
  grace:
    description: Seconds that a pod may be unschedulable or unable to pull its image.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Create vGPU nodes with two profiles
  gpuops.rdma.vgpu:
    machine_set: cluster-worker
    profiles:
      - {name: vgpu-l40s-48q, template: rhcos-l40s-48q, replicas: 2}
      - {name: vgpu-l40s-8q, template: rhcos-l40s-8q, replicas: 4}
    driver:
      repository: nvcr.io/nvidia/vgpu
      image: vgpu-guest-driver-5
      version: 550.163.01
      host_version: 550.163.02
      pull_secrets: [ngc-secret]
    license:
      token: "{{ lookup('ansible.builtin.file', 'client_configuration_token.tok') }}"
"""

RETURN = r"""
changes:
  description: The first 50 changes.
  returned: always
  type: list
  elements: str
count:
  description: Number of vGPU nodes.
  returned: always
  type: int
images:
  description: The driver's images as the nodes pull them.
  returned: always
  type: list
  elements: str
license_kind:
  description: Kind of the object with the licence, V(Secret) or V(ConfigMap).
  returned: always
  type: str
notes:
  description: Additional notes.
  returned: always
  type: list
  elements: str
proof:
  description: C(licensed), the number of nodes, and C(metric).
  returned: always
  type: dict
"""
