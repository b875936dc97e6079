#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: inputs
short_description: Reject misspelt inputs and invalid values
version_added: 0.1.0
description:
- The first task of every playbook of the collection. Fails if the host has a variable that begins with C(rdma_) and
  is not an input of these playbooks, and names the nearest input. It checks extra variables, the inventory, AWX
  surveys and variables of plays. A misspelt C(rdma_shape) would otherwise plan every GPU node.
- Also fails for values of a wrong type and values that are not among an input's choices. It does not check values of
  secrets.
- With O(uses), compares the nodes of each use of GPUs, and fails if any exclude each other, listing all pairs.
- With C(run_once) it checks the variables of all hosts of the play.
- With O(show), and in a run with C(--tags plan), prints the inputs that are set, their sources and, except for
  secrets, their values. It accesses the cluster only with O(writes) and O(uses).
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  unknown:
    description: V(warn) only warns of variables that are no inputs.
    type: str
    choices: [refuse, warn]
    default: refuse
  show:
    description: Print the inputs that are set.
    type: bool
    default: false
  writes:
    description:
    - 'The playbook writes to the cluster: take its Lease C(gpuops-rdma/run) until the run ends, or fail and name the
      run that has it. With O(leases=nodes) only look whether another run has it. Not in check mode, and not with no
      other tags than C(plan), C(preflight) and C(report).'
    - A cluster that cannot be asked is no failure here. Whatever task writes first then takes the Lease, as it does
      without this option.
    type: bool
    default: false
  leases:
    description:
    - What the run holds from its first write on.
    - V(cluster) is the cluster's Lease C(gpuops-rdma/run). The run is refused while another run holds it, or the Lease
      of a node.
    - V(nodes) are the Leases C(gpuops-rdma/node-NAME) of the nodes that the run works on, so that runs on different
      nodes go on at once. Nodes of other runs are left as they are. With O(writes) the run is refused while another one
      holds the cluster's Lease.
    type: str
    choices: [cluster, nodes]
    default: cluster
  run_dir:
    description:
    - The folder in which this run starts, C(run) of the report's. The module locks it until the run ends, and deletes
      the previous run's files, but no results of NCCL tests if tags skip the stage C(nccl_test).
    type: path
  keep_test:
    description: Keep the results of earlier NCCL tests, whatever the tags say.
    type: bool
    default: false
  uses:
    description:
    - The requested uses of GPUs (time slicing, MPS, MIG, vGPU, serving). An entry without O(uses[].nodes) and
      O(uses[].selector) is ignored.
    type: list
    elements: dict
    default: []
    suboptions:
      use:
        description: The use.
        type: str
        required: true
        choices: [mig, mps, serving, time_slicing, vgpu]
      nodes:
        description: Names of its nodes.
        type: list
        elements: str
        default: []
      selector:
        description: Labels of its nodes.
        type: str
        default: ""
      resources:
        description: Shared resources, if they are not whole GPUs. C(nvidia.com/mig-<profile>) can be combined with MIG.
        type: list
        elements: str
        default: []
  plan:
    description: With O(show), plan.json whose decisions are printed, with their reasons, if the file is there.
    type: path
"""

EXAMPLES = r"""
- name: Refuse misspelt inputs
  gpuops.rdma.inputs:

- name: Also refuse uses of GPUs that exclude each other on a node
  gpuops.rdma.inputs:
    uses:
      - use: time_slicing
        selector: pool=small-jobs
      - use: mig
        selector: pool=notebooks

- name: Print what a run was given, and what it decided
  gpuops.rdma.inputs:
    show: true
    plan: rdma-report/run/plan.json
"""

RETURN = r"""
busy:
  description: Which other run has the cluster's Lease; empty without one, and unless O(leases=nodes).
  returned: success
  type: str
unknown:
  description: Variables that are named like inputs and are none.
  returned: success
  type: list
  elements: str
given:
  description: Where each input is set that is set, by its name.
  returned: success
  type: dict
  sample: {rdma_shape: -e or a survey}
secrets:
  description: Inputs that are set, and are secrets or have one in their value.
  returned: success
  type: list
  elements: str
"""
