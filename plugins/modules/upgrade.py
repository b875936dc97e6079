# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: upgrade
short_description: Plan an upgrade of the operators, or perform it in waves of nodes
version_added: 0.1.0
description:
- Upgrades a GPU Operator and a Network Operator that Helm installed to the plan's releases.
- It reads the progress of a node from the cluster, so the next run continues a killed one. It keeps cordons of other
  owners and never deletes their pods.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  state:
    description:
    - V(planned) compares what is installed with the plan, and prints releases (from and to), definitions, fields of the
      two policies, images, leftovers, which operands restart on how many nodes, what sets their pace, how running pods
      are affected, which changes cannot be held back and need idle nodes first, nodes that are in use, and the waves of
      nodes. It is read-only; upgrade.json next to the plan has the same content as data, and the other states read it.
    - V(held) checks the permissions, requires idle nodes if all of them are interrupted, measures two idle nodes of
      each shape with O(pair), and upgrades the GPU Operator, whose operands keep their pods.
    - V(done) upgrades the nodes wave by wave. It cordons a wave, replaces its operand pods of an older revision, waits
      for them and for GPUs and VFs, checks the hosts, measures every port, and uncordons the nodes. A wave that fails
      stays cordoned and ends the task. The node's annotation C(gpuops.rdma/upgraded) has the time, the releases and the
      result.
    type: str
    choices: [planned, held, done]
    default: planned
  wave:
    description: Number of nodes per wave, or a percentage of the plan's nodes.
    type: str
    default: 10%
  busy:
    description:
    - What to do about nodes in use. V(fail) lists their pods and changes nothing. V(wait) waits until the pods end.
      V(skip) leaves the nodes out, and fails where all nodes must be idle.
    type: str
    choices: [skip, wait, fail]
    default: fail
  busy_timeout:
    description: Seconds for O(busy=wait).
    type: int
    default: 3600
  vfs:
    description: Whether the nodes have VFs, so that leftovers and VFs are part of the upgrade.
    type: bool
    default: true
  host_checks:
    description: Whether the hosts of a wave are checked before the next one.
    type: bool
    default: true
  pair:
    description: Whether ib_write_bw runs between an upgraded node of each wave and a good one before the next wave.
    type: bool
    default: true
  cuda:
    description: Whether the buffers of O(pair) are in GPU memory, as M(gpuops.rdma.perftest) has it.
    type: bool
    default: true
  dmabuf:
    description: How GPU memory is registered, as M(gpuops.rdma.perftest) has it.
    type: str
    default: auto
  seconds:
    description: Duration of each measurement.
    type: int
    default: 10
  resume:
    description: Continue a Helm release that an interrupted run left pending, as M(gpuops.rdma.release) does.
    type: bool
    default: false
  timeout:
    description: Seconds until each wait gives up, and for Helm's hook jobs.
    type: int
    default: 1200
  grace:
    description: Seconds that a state like ImagePullBackOff must last until it counts as unrecoverable.
    type: int
    default: 120
  run_dir:
    description: Folder for the results and logs of O(pair), which M(gpuops.rdma.report) reads.
    type: path
"""

EXAMPLES = r"""
- name: Print the effects of the upgrade to the plan's releases
  gpuops.rdma.upgrade:
    plan: rdma-report/run/plan.json
    wave: 4

- name: Upgrade the nodes wave by wave
  gpuops.rdma.upgrade:
    plan: rdma-report/run/plan.json
    state: done
    wave: 4
    busy: wait
"""

RETURN = r"""
nothing:
  description: Whether nothing has to be upgraded.
  returned: with O(state=planned)
  type: bool
waves:
  description: Names of the nodes in each wave.
  returned: with O(state=planned)
  type: list
  elements: list
idle_first:
  description: Why all nodes must be idle before the first change. Empty if this is not necessary.
  returned: with O(state=planned)
  type: list
  elements: str
busy:
  description: Pods that use GPUs or VFs, by node.
  returned: with O(state=planned)
  type: dict
outside:
  description: Nodes outside the plan that are not upgraded. While there are any, the operands stay held back.
  returned: with O(state=planned) and O(state=done)
  type: list
  elements: str
denied:
  description: Missing permissions that an upgrade needs in addition to those of site.yml.
  returned: with O(state=planned)
  type: list
  elements: str
text:
  description: The printed lines.
  returned: with O(state=planned)
  type: list
  elements: str
changes:
  description: What was changed, one text per object.
  returned: with O(state=held) and O(state=done), if anything changed
  type: list
  elements: str
"""
