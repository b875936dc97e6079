#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: nccl_topology
short_description: Create, check and compare NCCL topology files
version_added: 0.1.0
description:
  - Takes a topology file (O(src), O(content)) or creates one from the table of shapes (O(shape) alone), from a host's
    PCI
    tree (O(host)) or from a saved one (O(tree)).
  - Checks it by the rules of NCCL's own reader, which is not an XML parser and silently ignores some files.
  - Reports what differs in meaning from another file (O(against)), and which of its devices given hosts lack
    (O(hosts)).
  - It accesses no cluster. The task does not fail if the file is wrong; check RV(valid) and RV(fits).
  - With O(plan) alone it fails when the plan's files do not fit the hosts, as the host checks of the same run found.
extends_documentation_fragment:
  - gpuops.rdma.attributes.diff
  - gpuops.rdma.attributes
  - gpuops.rdma.shapes
options:
  src:
    description: A topology file on the control node.
    type: path
  content:
    description: The text of one.
    type: str
  shape:
    description:
      - Shape to render. With O(tree) or O(host) it says which ports are the RDMA ports, and their order.
      - Only shapes with a known PCI tree can be rendered; C(docs/shapes.md) says which.
    type: str
  tree:
    description: Folder with a saved tree of a host (O(gpuops.rdma.host_info#module:collect), extracted), or C(/).
    type: path
  host:
    description: Host document with the section C(pci) (O(gpuops.rdma.host_info#module:pci)), or host_info's result.
    type: dict
  nic_names:
    description:
      - RDMA devices as the pod sees them, in the order of the shape's rails, else of PCI addresses.
      - Without, those of the host, or for O(shape) alone those that OCI's own files have.
    type: list
    elements: str
  devices:
    description:
      - Whether pods see VFs or ports (PFs). V(auto) makes a file of VFs where the host has some, and takes the names of
        both for names on O(hosts).
    type: str
    choices: [auto, vf, pf]
    default: auto
  against:
    description: Another topology file, or a shape to render.
    type: path
  hosts:
    description:
      - Host documents (or results of host_info) to hold the file against, as a mapping by name or as a list; or the
        folder of a run, with the documents that its host checks have kept.
    type: raw
  dest:
    description: Where to write the file. It is written only when it differs, and never when NCCL would not use it.
    type: path
  plan:
    description:
      - The plan of a run, in the run folder with the results of its host checks. No other option is looked at.
      - Passes when the host checks have not run.
    type: path
"""

EXAMPLES = r"""
- name: Check a file of one's own
  gpuops.rdma.nccl_topology:
    src: topo.xml
  register: topology
  failed_when: not topology.valid

- name: Read the PCI tree of a host
  gpuops.rdma.host_info:
    pci: true
  become: true
  register: read

- name: Make the file of that host, and tell how it differs from the shape's
  gpuops.rdma.nccl_topology:
    host: "{{ read.host }}"
    shape: BM.GPU.H100.8
    against: BM.GPU.H100.8
    dest: topo.xml

- name: Hold a file against all hosts of the play
  gpuops.rdma.nccl_topology:
    src: topo.xml
    hosts: "{{ ansible_play_hosts | map('extract', hostvars, 'read') | list }}"
  register: topology
  failed_when: not topology.fits

- name: Stop a run whose file does not fit its nodes
  gpuops.rdma.nccl_topology:
    plan: rdma-report/run/plan.json
"""

RETURN = r"""
valid:
  description: NCCL reads it.
  type: bool
  returned: without O(plan)
problems:
  description:
    - What is wrong with it, with C(line) and C(message).
    - C(status) is V(refused) (NCCL's init fails), V(ignored) (it goes on without the file, and does not say so) or
      V(doubtful) (read, but hardly as meant).
  type: list
  elements: dict
  returned: without O(plan)
  sample:
    - {status: refused, line: 1, message: "expected '>' in <?xml>, found '?'"}
differences:
  description: What differs in meaning, this file first. At most 50.
  type: list
  elements: str
  returned: with O(against)
  sample: ["pci 0000:0f:00.0 path: cpu 0 > 0000:08:00.0 > 0000:0d:00.0 | cpu 1"]
different:
  description: How many differences there are.
  type: int
  returned: with O(against)
only_one:
  description: What only one of the two states, and NCCL else detects itself, counted by attribute.
  type: list
  elements: str
  returned: with O(against)
fits:
  description: Every GPU and NIC of it is on all O(hosts).
  type: bool
  returned: with O(hosts), when NCCL would use the file
unfit:
  description: Names of the hosts that it does not fit, or for which that is not known. At most 50.
  type: list
  elements: str
  returned: with O(hosts), when NCCL would use the file; with O(plan) when it fails
files:
  description: Keys of the ConfigMap that the plan's tests use.
  type: list
  elements: str
  returned: with O(plan)
missing:
  description:
    - By host, what does not fit. C(kind) is V(gpu), V(nic), V(name) or V(place); C(items) the addresses or names.
    - C(status) is V(fail), V(unknown), or V(warn) where NCCL finds the device in another way.
  type: dict
  returned: with O(hosts), when NCCL would use the file
  sample:
    gpu-7:
      - status: fail
        kind: gpu
        items: ["0000:0f:00.0"]
        message: the topology file has GPUs at 0000:0f:00.0, where the host has none
xml:
  description: The text, when it was made and not written to O(dest).
  type: str
  returned: with O(shape), O(tree) or O(host), without O(dest)
dest:
  description: Where it was written.
  type: str
  returned: with O(dest)
"""
