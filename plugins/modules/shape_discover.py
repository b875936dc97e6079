# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: shape_discover
short_description: Write a shape file from the nodes themselves
version_added: 0.1.0
description:
- Describes machines of unknown shapes (C(docs/other-hardware.md)) - GPUs, RDMA ports with their ids, rails, nearest
  GPU and NUMA node, line rate, link layer, VFs, and the ports of the management network. Each value has the file from
  which it was read; a value that no file states is left out, with the reason.
- Hosts that differ from the majority are listed with their values. Without a majority the module writes nothing.
- With O(source=daemonset) a temporary DaemonSet reads the nodes, as in the host checks. With
  O(source=inventory) the documents come from M(gpuops.rdma.host_info), which has run on all hosts of the play.
- It changes nothing on the hosts.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.probe_pods
- gpuops.rdma.shapes
options:
  name:
    description: Name of the shape, a valid label value. Names of the collection's own shapes are rejected.
    type: str
    required: true
  source:
    description: Where the documents come from.
    type: str
    choices: [daemonset, inventory, documents]
    default: daemonset
  dest:
    description: Path of the file to write, such as C(shapes/lab.yml). Without it the shape is only returned.
    type: path
  force:
    description: Replace O(dest) if it differs.
    type: bool
    default: false
  match:
    description: Labels of the shape's nodes, each with a value or a list of values, for C(nodes) of the file.
    type: dict
    default: {}
  ports:
    description:
    - Network devices, RDMA devices or PCI addresses of the fabric's ports, in the order of their rails. The default is
      the ports that are named C(rdmaN), else those below a PCIe switch with a GPU, else those with InfiniBand, else all
      except the port of the default route.
    type: list
    elements: str
    default: []
  nodes:
    description: Nodes to read, for O(source=daemonset). The default is the GPU nodes that no shape describes.
    type: list
    elements: str
    default: []
  hosts:
    description: Host documents for O(source=documents), as a mapping by name, a list, or the folder of a run.
    type: raw
  facts:
    description: Name of the variable that holds host_info's result on each host, for O(source=inventory).
    type: str
    default: shape_discover_facts
  namespace:
    description: Namespace of the DaemonSet.
    type: str
    default: gpuops-rdma
"""

EXAMPLES = r"""
- name: Describe the GPU nodes without a known shape
  gpuops.rdma.shape_discover:
    name: DGX-H100
    match: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
    dest: shapes/dgx-h100.yml

- name: Describe what host_info has read
  gpuops.rdma.shape_discover:
    name: lab-l40s
    source: inventory
    dest: shapes/lab-l40s.yml
  run_once: true
"""

RETURN = r"""
shape:
  description: The shape, as in the file.
  returned: always
  type: dict
missing:
  description: Values that are left out, with the reason.
  returned: when hosts were read
  type: dict
  sample: {nic.line_gbps: "a port without a link has no rate: ibp24s0 is DOWN"}
same:
  description: Number of hosts that match the shape.
  returned: when hosts were read
  type: int
differing:
  description: Up to 50 hosts that differ, with their differences.
  returned: when hosts were read
  type: dict
  sample: {gpu-7: ["nic.line_gbps: 200, not 400"]}
silent:
  description: Up to 50 hosts that could not be read, with the reason.
  returned: always
  type: dict
notes:
  description: What the shape means for the playbooks.
  returned: when hosts were read
  type: list
  elements: str
dest:
  description: Path of the file.
  returned: when O(dest) is given
  type: str
would:
  description: Objects that would be applied to read the nodes. No shape is returned then.
  returned: in check mode, with source daemonset
  type: list
  elements: str
"""
