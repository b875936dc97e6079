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
    description: Folder for the result and, in C(logs/), the logs. The default is the plan's folder.
    type: path
  launcher:
    description: Overrides the plan's launcher.
    type: str
    choices: [auto, volcano, mpi]
    default: auto
  timeout:
    description: Seconds to wait until all pods run, without the time in a queue and for pulling the image.
    type: int
    default: 1800
  grace:
    description: Seconds that a pod may be unschedulable or unable to pull its image before the test ends.
    type: int
    default: 120
  keep:
    description: Keep the job and its pods, which hold their GPUs.
    type: bool
    default: false
  fail_on_verdict:
    description: Fail the task if the verdict is not V(pass).
    type: bool
    default: false
"""
