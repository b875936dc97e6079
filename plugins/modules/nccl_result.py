#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: nccl_result
short_description: Evaluate the output of nccl-tests
version_added: 0.1.0
description:
  - Reads what nccl-tests or rccl-tests printed, as text (versions 1.x to 2.19) or JSON (from 2.17.3), and compares it
    with the network of a shape.
  - It uses the row with the largest message, never the average. The result passes only if the run is complete, ranks
    and nodes match the request, no value was wrong and the log shows that all traffic used RDMA.
  - It accesses no cluster. It reads the log as a stream, so the log may have any size.
  - The task does not fail if the verdict is not V(pass); check RV(verdict).
extends_documentation_fragment:
  - gpuops.rdma.attributes
  - gpuops.rdma.nccl_standard
  - gpuops.rdma.shapes
options:
  src:
    description: File with the output, on the control node. Either O(src) or O(content) is needed.
    type: path
  content:
    description: The output itself.
    type: str
  shape:
    description:
      - Shape of the nodes, for example V(BM.GPU.H100.8), or a shape of O(shapes_dir). Without a known shape the verdict
        is V(unjudged) unless O(threshold) is set.
    type: str
  nodes:
    description: Number of nodes that were requested. The default is the number in the log.
    type: int
  gpus:
    description: GPUs per node, if not all of them took part. Thresholds of shapes apply to whole nodes only.
    type: int
  threshold:
    description: Required bus bandwidth in GB/s (1e9 bytes per second), instead of the table's threshold.
    type: float
  history:
    description:
      - File with this site's earlier results, one JSON object per line. It does not have to exist.
      - After eight passed runs of the same shape, O(mode), collective, number of nodes, algorithm, size and NCCL
        version, a run that passes but is below the limit of the last 50 is V(degraded).
    type: path
  mode:
    description:
      - How the test's pods reached the fabric. A O(baseline) of another mode is rejected, and results of another mode
        in O(history) do not count. Without it the mode is not compared.
    type: str
    choices: [sriov, shared, host]
  record:
    description: Add the result to O(history). Needs O(shape). Nothing is written in check mode.
    type: bool
    default: false
  transport:
    description:
      - The log must prove the transport on every host (E(NCCL_DEBUG=INFO) on all ranks), otherwise the verdict is
        V(incomplete). A transport that the log shows is always checked.
    type: bool
    default: false
  checked:
    description: nccl-tests must have checked the results of every row, otherwise the verdict is V(incomplete).
    type: bool
    default: false
  hosts:
    description:
      - Names of exactly the hosts that must have taken part, as in the log, without domains. Otherwise the verdict is
        V(incomplete). By default any hosts may take part.
    type: list
    elements: str
    default: []
  topology:
    description: Path of the topology file that NCCL must have loaded, as in the log.
    type: str
  hcas:
    description: Number of RDMA devices that NCCL must have found on each node, instead of the shape's number.
    type: int
  collective:
    description:
      - Evaluate only runs of this collective. Logs of nccl-tests before 2.16.7 do not always name it.
    type: str
  algo:
    description:
      - Value of E(NCCL_ALGO) in the test, V(default) for NCCL's own choice. The default is the algorithm of the shape's
        reference numbers.
    type: str
    default: ""
  max_bytes:
    description: Largest requested message size, in bytes or as V(8G). The default is the size in the log.
    type: str
  exit_code:
    description: Exit code of the test, if known. Any value other than V(0) prevents a pass.
    type: int
"""

EXAMPLES = r"""
- name: Evaluate a log of two H100 nodes
  gpuops.rdma.nccl_result:
    src: logs/nccl-h100-8.log
    shape: BM.GPU.H100.8
    nodes: 2
  register: result
  failed_when: result.verdict != 'pass'

- name: Compare with your own threshold
  gpuops.rdma.nccl_result:
    content: "{{ launcher_log.log }}"
    threshold: 350

- name: Compare your own hardware with a known good run
  gpuops.rdma.nccl_result:
    src: logs/nccl-lab-l40s.log
    shape: lab-l40s
    shapes_dir: shapes
    baseline: good/report.json

- name: Compare with this site's earlier results, and record the new one
  gpuops.rdma.nccl_result:
    src: logs/nccl-h100-8.log
    shape: BM.GPU.H100.8
    thresholds:
      - shapes: [BM.GPU.H100.8]
        nodes: "2"
        gbytes: 455
    history: nccl-history.jsonl
    record: true
"""

RETURN = r"""
verdict:
  description: The worst verdict of all runs in the log.
  type: str
  returned: success
  choices: [pass, degraded, unjudged, incomplete, fail]
reason:
  description: The reason, in one sentence.
  type: str
  returned: success
  sample: "all_reduce 8 GiB: 371 GB/s; NIC line 400, threshold 360 (0.9)"
runs:
  description:
    - One entry for each test run in the log, with C(status), C(collective), C(rows) (the last 64), C(errors),
      C(transport), versions, and its C(verdict) with bounds, threshold and source.
  type: list
  elements: dict
  returned: success
"""
