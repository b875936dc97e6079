#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: nccl_topology
short_description: Create, check and compare NCCL topology files
version_added: 0.1.0
description:
  - Reads a topology file (O(src), O(content)) or creates one from the table of shapes (O(shape) alone), from a host's
    PCI tree (O(host)) or from a saved one (O(tree)).
  - Checks it by the rules of NCCL's reader, which is not an XML parser and silently ignores some files.
  - Reports differences in meaning from another file (O(against)), and which of its devices are missing on hosts
    (O(hosts)).
  - It accesses no cluster. The task does not fail if the file is wrong; check RV(valid) and RV(fits).
extends_documentation_fragment:
  - gpuops.rdma.attributes.diff
  - gpuops.rdma.attributes
  - gpuops.rdma.shapes
options:
  src:
    description: A topology file on the control node.
    type: path
  content:
    description: Text of a topology file.
    type: str
  shape:
    description:
      - Shape to render. With O(tree) or O(host) it defines the RDMA ports and their order.
      - Only shapes with a known PCI tree can be rendered. C(docs/shapes.md) lists them.
    type: str
  tree:
    description: Folder with a saved tree of a host (O(gpuops.rdma.host_info#module:collect), extracted), or C(/).
    type: path
  host:
    description: Host document with the section C(pci) (O(gpuops.rdma.host_info#module:pci)), or host_info's result.
    type: dict
  nic_names:
    description:
      - Names of the RDMA devices in the pod, in the order of the shape's rails, or else of PCI addresses.
      - The default is the host's names, or for O(shape) alone the names in OCI's own files.
    type: list
    elements: str
  devices:
    description:
      - Whether pods use VFs or PFs. V(auto) creates a file of VFs if the host has any, and accepts the names of both on
        O(hosts).
    type: str
    choices: [auto, vf, pf]
    default: auto
  against:
    description: Another topology file, or a shape to render.
    type: path
  hosts:
    description:
      - Host documents (or results of host_info) to compare the file with, as a mapping by name or a list, or the folder
        of a run with the documents of its host checks.
    type: raw
  dest:
    description: Path of the file to write. It is written only if it differs and NCCL would use it.
    type: path
"""

EXAMPLES = r"""
- name: Check your own file
  gpuops.rdma.nccl_topology:
    src: topo.xml
  register: topology
  failed_when: not topology.valid

- name: Read the PCI tree of a host
  gpuops.rdma.host_info:
    pci: true
  become: true
  register: read

- name: Create the file of that host, and compare it with the shape's
  gpuops.rdma.nccl_topology:
    host: "{{ read.host }}"
    shape: BM.GPU.H100.8
    against: BM.GPU.H100.8
    dest: topo.xml

- name: Compare a file with all hosts of the play
  gpuops.rdma.nccl_topology:
    src: topo.xml
    hosts: "{{ ansible_play_hosts | map('extract', hostvars, 'read') | list }}"
  register: topology
  failed_when: not topology.fits
"""

RETURN = r"""
valid:
  description: Whether NCCL reads the file.
  type: bool
  returned: success
problems:
  description:
    - Problems of the file, with C(line) and C(message).
    - C(status) is V(refused) (NCCL's init fails), V(ignored) (NCCL silently continues without the file) or V(doubtful)
      (NCCL reads it, but probably not as intended).
  type: list
  elements: dict
  returned: success
  sample:
    - {status: refused, line: 1, message: "expected '>' in <?xml>, found '?'"}
differences:
  description: Up to 50 differences in meaning, this file first.
  type: list
  elements: str
  returned: with O(against)
  sample: ["pci 0000:0f:00.0 path: cpu 0 > 0000:08:00.0 > 0000:0d:00.0 | cpu 1"]
different:
  description: Number of differences.
  type: int
  returned: with O(against)
only_one:
  description: Attributes that only one of the two files has and NCCL otherwise detects, with their number.
  type: list
  elements: str
  returned: with O(against)
fits:
  description: Whether all O(hosts) have every GPU and NIC of the file.
  type: bool
  returned: with O(hosts), when NCCL would use the file
unfit:
  description: Up to 50 hosts that the file does not match, or for which this is unknown.
  type: list
  elements: str
  returned: with O(hosts), when NCCL would use the file
missing:
  description:
    - Mismatches by host. C(kind) is V(gpu), V(nic), V(name) or V(place), and C(items) are the addresses or names.
    - C(status) is V(fail), V(unknown), or V(warn) if NCCL finds the device in another way.
  type: dict
  returned: with O(hosts), when NCCL would use the file
  sample:
    gpu-7:
      - status: fail
        kind: gpu
        items: ["0000:0f:00.0"]
        message: the topology file has GPUs at 0000:0f:00.0, where the host has none
xml:
  description: Text of the new file, if it was not written to O(dest).
  type: str
  returned: with O(shape), O(tree) or O(host), without O(dest)
dest:
  description: Path of the file that was written.
  type: str
  returned: with O(dest)
"""
