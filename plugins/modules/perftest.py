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
- Each node of a bad pair is tested again with a node that passed, which identifies the faulty node and its rail.
- Pods request all GPUs and VFs of their node, like the NCCL test. All objects are removed afterwards, also after a
  failure.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  run_dir:
    description: Where perftest.json, findings-perftest.json and the clients' logs go. Without it nothing is written.
    type: path
  nodes:
    description: Pair these nodes of the plan, in this order. Empty takes all that are not left out.
    type: list
    elements: str
    default: []
  before:
    description: C(slowest) of an earlier measurement. A port that is more than 5 % slower than that is at fault, too.
    type: dict
    default: {}
  cordoned:
    description: Test on nodes that are cordoned, too; for nodes that the caller has cordoned itself.
    type: bool
    default: false
  cuda:
    description: Read and write GPU memory (C(--use_cuda)). Needs GPUDirect RDMA; off, host memory is used.
    type: bool
    default: true
  dmabuf:
    description:
    - How GPU memory is registered. V(auto) takes the path that the host checks of this run found on the node, else
      nvidia_peermem where the plan's driver pods load it or the kernel is older than 5.12, else DMA-BUF; V(true) is
      DMA-BUF (C(--use_cuda_dmabuf)) and V(false) nvidia_peermem on all nodes.
    type: str
    default: auto
  seconds:
    description: Duration of one measurement.
    type: int
    default: 10
  image:
    description: Image with ib_write_bw. Empty takes that of the NCCL test.
    type: str
    default: ''
  timeout:
    description: Seconds until a pod runs, image pulls included.
    type: int
    default: 900
  grace:
    description: Seconds after which a pod that finds no place or no image counts as unrecoverable.
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

- name: The same between two nodes, from host memory
  gpuops.rdma.perftest:
    plan: rdma-report/run/plan.json
    nodes: [10.140.0.1, 10.140.0.2]
    cuda: false
"""

RETURN = r"""
verdict:
  description: V(pass), V(fail), V(incomplete) or V(unjudged), the worst of all shapes.
  returned: always
  type: str
reason:
  description: One sentence.
  returned: always
  type: str
tests:
  description: Per shape C(verdict), C(reason), C(threshold) and C(worst) in Gb/s, C(source), C(nodes), C(seconds).
  returned: when pods ran
  type: list
  elements: dict
slowest:
  description: Shape to the bandwidth of its slowest port in Gb/s.
  returned: when pods ran
  type: dict
findings:
  description: Up to 20 findings, with the node and its rails.
  returned: when pods ran
  type: list
  elements: dict
would:
  description: The pairs.
  returned: in check mode
  type: list
  elements: str
"""
