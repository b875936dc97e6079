#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: nccl_result
short_description: Read and judge the output of nccl-tests
version_added: 0.1.0
description:
  - Reads what nccl-tests or rccl-tests printed, as text (versions 1.x to 2.19) or JSON (from 2.17.3), and judges it
    against the network of a shape.
  - It uses the largest row, never the average. The result passes only if the run is complete, ranks and nodes match
    the request, no value was wrong and the log shows no path that avoids RDMA.
  - It accesses no cluster. It reads a log of any size as a stream.
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
      - Shape of the nodes, for example V(BM.GPU.H100.8), or one of O(shapes_dir). Without one, or with an unknown one,
        the verdict is V(unjudged) unless O(threshold) is given.
    type: str
  nodes:
    description: Number of nodes that were asked for. Without it, as many as the log shows.
    type: int
  gpus:
    description: GPUs per node, when not all of them took part. Thresholds of shapes hold for whole nodes only.
    type: int
  threshold:
    description: Bus bandwidth in GB/s (1e9 bytes per second) that must be reached, in place of the table's.
    type: float
  history:
    description:
      - File with this site's own results, one JSON object per line. It need not exist yet.
      - From five passed runs of the same shape, O(mode), collective, number of nodes, algorithm and size on, a run that
        passes but is an outlier (median and MAD of the last 50) is V(degraded).
    type: path
  mode:
    description:
      - How the test's pods reached the fabric. A O(baseline) of another mode is refused, and results of another mode in
        O(history) do not count. Without it neither is looked at.
    type: str
    choices: [sriov, shared, host]
  record:
    description: Add what was measured to O(history). Needs O(shape). Nothing is written in check mode.
    type: bool
    default: false
  transport:
    description:
      - The log must prove the way through the network on every host (E(NCCL_DEBUG=INFO) on all ranks); otherwise it is
        V(incomplete). What the lines of a host show is judged in any case.
    type: bool
    default: false
  checked:
    description: The results must have been compared, in every row; otherwise it is V(incomplete).
    type: bool
    default: false
  hosts:
    description:
      - Names of the hosts that must have taken part, and no others, as the log has them; domains do not count.
        Otherwise it is V(incomplete). Without names, any hosts may have.
    type: list
    elements: str
    default: []
  topology:
    description: Path of the topology file that NCCL must have loaded, as the log names it.
    type: str
  hcas:
    description: RDMA devices that NCCL must have found on each node, in place of the shape's number.
    type: int
  collective:
    description:
      - Judge only runs of this collective; also names it for logs older than nccl-tests 2.16.7, which do not always
        tell.
    type: str
  algo:
    description:
      - E(NCCL_ALGO) as it was set, V(default) for NCCL's own choice. Empty means that of the shape's reference
        numbers.
    type: str
    default: ""
  max_bytes:
    description: Size up to which the test was asked to go, in bytes or as V(8G). Without it, as the log says.
    type: str
  exit_code:
    description: Exit code of the test, when it is known. Anything but V(0) is no pass.
    type: int
"""

EXAMPLES = r"""
- name: Judge a log of two H100 nodes
  gpuops.rdma.nccl_result:
    src: logs/nccl-h100-8.log
    shape: BM.GPU.H100.8
    nodes: 2
  register: result
  failed_when: result.verdict != 'pass'

- name: Judge against a number of one's own
  gpuops.rdma.nccl_result:
    content: "{{ launcher_log.log }}"
    threshold: 350

- name: Judge a machine of your own against the run that you found good
  gpuops.rdma.nccl_result:
    src: logs/nccl-lab-l40s.log
    shape: lab-l40s
    shapes_dir: shapes
    baseline: good/report.json

- name: Hold it against this site's own results, and keep it for the next time
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
  description: One sentence why.
  type: str
  returned: success
  sample: "all_reduce 8 GiB: 371 GB/s; NIC line 400, threshold 360 (0.9)"
runs:
  description:
    - One entry for each test run found in the log, with C(status), C(collective), C(rows) (the last 64), C(errors),
      C(transport), versions, and its own C(verdict) with bounds, threshold and source.
  type: list
  elements: dict
  returned: success
"""
