# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: release
short_description: Install, upgrade or adopt one operator
version_added: 0.1.0
description:
- Brings one operator of the plan to the planned version and values, or leaves it unchanged if it already has them,
  without starting a Helm process.
- A release of the same chart under another name or in another namespace is adopted, never installed twice.
  Duplicates, an installation without Helm (an OKE add-on, OLM), a newer version and a pending release are refused
  with the reason and the remedy.
- Helm runs through M(kubernetes.core.helm) and never waits for the chart's objects; M(gpuops.rdma.wait) does.
- Operators that the plan installs through OLM are installed like with M(gpuops.rdma.olm_operator), including the wait.
- An operator without a chart (the MPI Operator) is installed from a manifest with server-side apply if it is absent.
requirements:
- Helm 3.10 or newer. Helm 4 with kubernetes.core 6.4 or newer; kubernetes.core 6.2 and 6.3 drive Helm 3 only.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  state:
    description:
    - V(absent) uninstalls the one release of the chart, under whatever name, or removes what was applied of the
      operator's manifest. Definitions (CRDs) stay, with all that users made of them. Two releases are refused.
    type: str
    choices: [present, absent]
    default: present
  plan:
    description: plan.json with the release. With it come all options from O(name) to O(install).
    type: path
  operator:
    description:
    - 'Which release of the plan: V(gpu_operator), V(network_operator) or V(batch).'
    - Without a plan a name for messages; with O(state=absent) the operator, whose chart has the same name with dashes.
    type: str
  name:
    description: Name of the release.
    type: str
  namespace:
    description: Namespace of the release; made when it does not exist.
    type: str
  chart:
    description: Name of the chart, as its Chart.yaml has it; by it an existing release is recognised.
    type: str
  ref:
    description: 'Where the chart is, when it is not in O(repo) under its name: a directory, or an C(oci://) reference.'
    type: str
  repo:
    description: URL of the chart repository.
    type: str
    default: ''
  version:
    description: Version of the chart. For a chart directory its own version counts.
    type: str
  values:
    description: Values of the chart.
    type: dict
    default: {}
  manifest:
    description: A manifest to apply instead of a chart; a path or a URL.
    type: str
  images:
    description:
    - Names of the operator's images, without registry and tag.
    - A Deployment that runs one of them is recognised as the operator, however it was installed. Default is O(chart).
    type: list
    elements: str
    default: []
  keep:
    description: Leave what is installed as it is, whatever its version, values and way of installation.
    type: bool
    default: false
  install:
    description: V(existing) installs nothing, and fails when the operator is not there.
    type: str
    choices: [helm, existing]
    default: helm
  hold:
    description:
    - Hold the operands of the GPU Operator back while its release changes, by C(daemonsets.updateStrategy=OnDelete)
      and C(driver.upgradePolicy.autoUpgrade=false) of its chart, so that a pod gets its new revision only when the old
      one is deleted.
    - The release keeps a note of its values of before, C(gpuopsRdmaBeforeHold). Without this option a release that was
      held gets them again, and so does a ClusterPolicy that an upgrade which did not end has held back without its
      release.
    - Of the Network Operator, stop its Deployment and apply the plan's NicClusterPolicy before the release changes,
      where that differs. Helm starts it again, and it makes its DaemonSets from the new policy at once, not from that
      of before first.
    type: bool
    default: false
  resume:
    description:
    - Go on over a Helm release that an interrupted run left pending.
    - V(true) deletes the record of that one revision and starts again; the objects that it made stay and are taken
      over. V(false) fails.
    type: bool
    default: false
  pending_timeout:
    description: Seconds after which a pending release counts as abandoned. A younger one is never touched.
    type: int
    default: 900
  timeout:
    description:
    - Seconds that Helm may take for the chart's hook jobs, or that an operator is awaited which the plan installs
      through OLM.
    type: int
    default: 600
  grace:
    description: Seconds after which a state such as ImagePullBackOff is not awaited any longer, through OLM.
    type: int
    default: 60
  helm_binary:
    description: Path of Helm. By default the one in E(PATH).
    type: path
seealso:
- module: kubernetes.core.helm
- module: gpuops.rdma.wait
"""

EXAMPLES = r"""
- name: Install or adopt the GPU Operator as planned
  gpuops.rdma.release:
    plan: rdma-report/run/plan.json
    operator: gpu_operator

- name: Install a chart from a directory
  gpuops.rdma.release:
    name: gpu-operator
    namespace: gpu-operator
    chart: gpu-operator
    ref: /srv/charts/gpu-operator
    version: v26.7.0
    values:
      driver:
        enabled: false

- name: Uninstall the Network Operator, whatever its release is called
  gpuops.rdma.release:
    state: absent
    operator: network_operator
"""

RETURN = r"""
action:
  description: What was, or in check mode would be, done.
  returned: success
  type: str
  sample: upgrade
why:
  description: The reason.
  returned: success
  type: str
  sample: "v26.3.3 -> v26.7.0; values differ: cdi.enabled"
name:
  description: Name of the release; that of an adopted one where there was one.
  returned: success
  type: str
namespace:
  description: Namespace of the release.
  returned: success
  type: str
chart:
  description: Name of the chart.
  returned: success
  type: str
version:
  description: Version of the chart.
  returned: success
  type: str
values_changed:
  description: Paths of the values that differ from those of the installed release, at most 20.
  returned: success
  type: list
  elements: str
definitions:
  description:
    - The CustomResourceDefinitions of the chart and of its enabled sub-charts that are applied before Helm runs, which
      adds them to new releases only. With C(--diff) the versions and fields that they bring.
  returned: when the cluster lacks some of them, or some of their versions or fields
  type: list
  elements: str
  sample: [create sriovoperatorconfigs.sriovnetwork.openshift.io, update nicclusterpolicies.mellanox.com]
objects:
  description: Number of objects of the manifest.
  returned: when a manifest was applied
  type: int
requests:
  description: Requests sent to the API server, Helm's own apart.
  returned: always
  type: int
"""
