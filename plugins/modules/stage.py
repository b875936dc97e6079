# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: stage
short_description: Run a stage that changes the cluster, or record a stage
version_added: 0.1.0
description:
- Runs the steps of one stage of C(site.yml) in order, with the plan. Each step prints a line; a failed step ends the
  stage. The next run continues an interrupted one.
- 'C(gpu_operator): adopt an existing ClusterPolicy if the plan does, install or adopt the operator, wait until every
  node offers its GPUs, check the drivers that nodes now report.'
- 'C(network_operator): adopt an existing NicClusterPolicy if the plan does, install or adopt the operator, wait for its
  resource definitions, apply the NicClusterPolicy and what the chart lacks, wait for the operands and for drivers that
  need their OFED, remove leftovers of earlier releases, restart device plugins that run with an old configuration.'
- 'C(sriov): remove leftovers, apply the VF configuration, with O(allow_reboot) reboot nodes whose RDMA network
  namespaces change, wait for the VFs, apply the network attachment and the IP pool, wait for addresses and VFs.'
- 'C(nccl_topology): compare the plan''s topology files with the hosts that this run has checked, and apply them.'
- 'C(batch): install the batch system unless the cluster has one, and wait for its controller.'
- C(upgrade_hold), C(upgrade_vfs) and C(upgrade_leftovers) are parts of the role C(operators_upgrade).
- Leftovers are objects of earlier profiles, releases and guides; files/leftovers.yml lists them. They are removed if
  the plan was made with C(remove_leftovers), an SR-IOV device plugin from a tenth of its nodes at a time, and only if
  another one remains; the nodes' VFs are awaited before the next tenth.
- With other values of O(state) it writes the record of any stage into the run folder, from which
  M(gpuops.rdma.report) makes the report. A stage after a failed one is recorded as skipped.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  name:
    description: Name of the stage; not needed for O(state=begun).
    type: str
    default: ''
  state:
    description:
    - V(run) runs the stage.
    - V(begun) starts a run, as M(gpuops.rdma.inputs) does with O(gpuops.rdma.inputs#module:run_dir). V(started),
      V(finished) and V(failed) record what happened to a stage.
    type: str
    choices: [run, begun, started, finished, failed]
    default: run
  plan:
    description: plan.json of this run, for O(state=run); the role C(plan) writes it.
    type: path
  waves:
    description:
    - Whether an upgrade in waves of nodes does the rest. Leftovers of earlier profiles, pods of an older OFED or
      driver, and device plugins that have to read a new configuration then stay, and nodes whose upgrade has started
      are not awaited.
    type: bool
    default: false
  nodes:
    description: Only these nodes, for C(upgrade_vfs). Empty = all.
    type: list
    elements: str
    default: []
  resume:
    description: Continue a Helm release that an interrupted run left pending, as M(gpuops.rdma.release) does.
    type: bool
    default: false
  allow_reboot:
    description:
    - Reboot nodes, in batches, whose RDMA network namespaces are shared. Without it the stage names them and stops.
    - It cordons a batch and requests its reboot; the next batch starts when these nodes are Ready again. It does not
      reboot nodes with running pods that use GPUs, and names them.
    type: bool
    default: false
  reboot_batch:
    description: "How many nodes reboot at a time: a number or a percentage."
    type: str
    default: 10%
  timeout:
    description: Seconds until each wait of the stage gives up, and for Helm's hook jobs and each reboot.
    type: int
    default: 900
  grace:
    description: Seconds that a state like ImagePullBackOff must last until it counts as unrecoverable.
    type: int
    default: 60
  run_dir:
    description: The run folder, for all values of O(state) but V(run).
    type: path
  error:
    description: Message of the failed task.
    type: str
    default: ''
  task:
    description: Name of the failed task. Where a step of O(state=run) failed, the record has the step's.
    type: str
    default: ''
  needs:
    description: Stages whose failure stops this one. Empty means any.
    type: list
    elements: str
    default: []
  keep_test:
    description: Keep the results of earlier NCCL tests, whatever the tags say.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Configure the VFs of every node
  gpuops.rdma.stage:
    name: sriov
    plan: rdma-report/run/plan.json
    allow_reboot: true

- name: Begin a run
  gpuops.rdma.stage:
    state: begun
    run_dir: rdma-report/run

- name: Begin
  gpuops.rdma.stage:
    name: sriov
    state: started
    run_dir: rdma-report/run
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, changed, one text per object.
  returned: with O(state=run), if anything changed
  type: list
  elements: str
late:
  description: Name and reason of what is not ready, of the last wait, at most 20.
  returned: with O(state=run), if the stage waits
  type: dict
ready:
  description: Members that are ready, of the last wait.
  returned: with O(state=run), if the stage waits
  type: int
total:
  description: Members that are awaited, of the last wait.
  returned: with O(state=run), if the stage waits
  type: int
excluded:
  description: Nodes that the waits have left out of the plan.
  returned: if nodes were left out
  type: list
  elements: str
action:
  description: What was, or in check mode would be, done with the release.
  returned: with O(state=run), if the stage installs an operator
  type: str
why:
  description: The reason of it.
  returned: with RV(action)
  type: str
version:
  description: Version of the chart.
  returned: with RV(action), but not through OLM
  type: str
run:
  description: Whether the stage is to run; false after a failed stage.
  returned: with O(state=started)
  type: bool
blocker:
  description: What stops it, as C(stage preflight failed); empty if it is to run.
  returned: with O(state=started)
  type: str
"""
