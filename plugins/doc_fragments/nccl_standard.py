# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site judges NCCL's results by, besides the collection's own table."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  thresholds:
    description: >-
      Thresholds that take precedence over those of files/nccl.yml. Each has C(nodes) ("2", or "4+" for four and more),
      and C(gbytes) in GB/s or C(fraction) of the limit. Optional are C(shapes) (default all), C(collectives) (default
      all_reduce), C(algo) (V(RING) or V(default)) and C(source). See docs/nccl.md.
    type: list
    elements: dict
    default: []
  baseline:
    description:
    - A report.json of a known good run. If no published number and no entry of O(thresholds) applies, the threshold is
      0.95 of its bandwidth (C(baseline_share) of files/nccl.yml), for the same shape, collective and number of nodes.
      Without it such a test is V(unjudged). A report of another mode is rejected.
    - Or a baseline file that a site's history made. Its limits apply to runs of the same shape, mode, collective,
      number of nodes, algorithm, size and NCCL version, until the site has eight of its own. A scan does not use them.
      A damaged file, and one of another schema version, mode or shape, is rejected.
    type: path
"""
