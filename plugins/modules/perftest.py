# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: perftest
short_description: Measure every RDMA port between pairs of nodes
version_added: 0.1.0
description:
- Runs C(ib_write_bw) of perftest between disjoint pairs of nodes of one shape, all pairs and all ports at the same
  time, from GPU memory, and compares each port with files/perftest.yml.
- Each node of a bad pair is tested again with a node that passed, to identify the faulty node and its rail.
- Pods request all GPUs and VFs of their node, like the NCCL test. All objects are removed afterwards, also after a
  failure.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  run_dir:
    description: Folder for perftest.json, findings-perftest.json and the clients' logs. Without it nothing is written.
    type: path
  nodes:
    description: Pair these nodes of the plan, in this order. The default is all nodes that are not excluded.
    type: list
    elements: str
    default: []
  before:
    description: C(slowest) of an earlier measurement. A port that is more than 5 % slower is also a fault.
    type: dict
    default: {}
  cordoned:
    description: Also test cordoned nodes, for callers that have cordoned the nodes themselves.
    type: bool
    default: false
  cuda:
    description: Use GPU memory (C(--use_cuda)), which needs GPUDirect RDMA. With V(false) host memory is used.
    type: bool
    default: true
  dmabuf:
    description:
    - How GPU memory is registered. V(auto) uses what the host checks of this run found on the node, else nvidia_peermem
      if the plan's driver pods load it or the kernel is older than 5.12, else DMA-BUF. V(true) uses DMA-BUF
      (C(--use_cuda_dmabuf)) and V(false) nvidia_peermem on all nodes.
    type: str
    default: auto
  seconds:
    description: Duration of one measurement in seconds.
    type: int
    default: 10
  image:
    description: Image with ib_write_bw. The default is the image of the NCCL test.
    type: str
    default: ''
  timeout:
    description: Seconds to wait until a pod runs, including image pulls.
    type: int
    default: 900
  grace:
    description: Seconds after which a pod that is unschedulable or cannot pull its image counts as unrecoverable.
    type: int
    default: 60
  fail_on_verdict:
    description: Fail unless the verdict is V(pass).
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Measure all ports of all nodes
  gpuops.rdma.perftest:
    plan: rdma-report/run/plan.json
    run_dir: rdma-report/run

- name: Measure between two nodes, from host memory
  gpuops.rdma.perftest:
    plan: rdma-report/run/plan.json
    nodes: [10.140.0.1, 10.140.0.2]
    cuda: false
"""

RETURN = r"""
verdict:
  description: The worst verdict of all shapes, V(pass), V(fail), V(incomplete) or V(unjudged).
  returned: always
  type: str
reason:
  description: The reason, in one sentence.
  returned: always
  type: str
tests:
  description: Per shape C(verdict), C(reason), C(threshold) and C(worst) in Gb/s, C(source), C(nodes), C(seconds).
  returned: when pods ran
  type: list
  elements: dict
slowest:
  description: Bandwidth of the slowest port in Gb/s, by shape.
  returned: when pods ran
  type: dict
findings:
  description: Up to 20 findings, with the node and its rails.
  returned: when pods ran
  type: list
  elements: dict
would:
  description: The pairs that would be tested.
  returned: in check mode
  type: list
  elements: str
"""
