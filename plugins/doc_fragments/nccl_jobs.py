# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of a plan that run NCCL tests: options of the modules that make them."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  plan:
    description: plan.json with the tests.
    type: path
    required: true
  run_dir:
    description: Where the result and, in C(logs/), the logs are written. The plan's folder by default.
    type: path
  launcher:
    description: Overrides the plan's launcher.
    type: str
    choices: [auto, volcano, mpi]
    default: auto
  timeout:
    description: Seconds until all pods run. Waiting in a queue and pulling the image do not count.
    type: int
    default: 1800
  grace:
    description: Seconds for which a pod may have no place, or no image, before the test is given up.
    type: int
    default: 120
  keep:
    description: Leave the job and its pods, which hold their GPUs.
    type: bool
    default: false
  fail_on_verdict:
    description: Fail the task when the verdict is not V(pass).
    type: bool
    default: false
"""
