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
- A release of the same chart under another name or in another namespace is adopted, never installed twice. The task
  fails, with reason and remedy, on duplicates, an installation without Helm (an OKE add-on, OLM), a newer version and a
  pending release.
- Helm runs through M(kubernetes.core.helm) and does not wait for the chart's objects. M(gpuops.rdma.wait) does.
- Operators that the plan installs through OLM are installed as by M(gpuops.rdma.olm_operator), including the wait.
- An operator without a chart (the MPI Operator) is installed from a manifest with server-side apply if it is absent.
requirements:
- Helm 3.10 or newer. Helm 4 with kubernetes.core 6.4 or newer; kubernetes.core 6.2 and 6.3 drive Helm 3 only.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  state:
    description:
    - V(absent) uninstalls the chart's only release, regardless of its name, or removes the applied objects of the
      operator's manifest. CRDs and the users' custom resources are kept. The task fails if there are two releases.
    type: str
    choices: [present, absent]
    default: present
  plan:
    description: plan.json with the release. It sets all options from O(name) to O(install).
    type: path
  operator:
    description:
    - 'Which release of the plan: V(gpu_operator), V(network_operator) or V(batch).'
    - Without a plan, the name in messages. With O(state=absent) the operator, whose chart has the same name with
      dashes.
    type: str
  name:
    description: Name of the release.
    type: str
  namespace:
    description: Namespace of the release. It is created if it does not exist.
    type: str
  chart:
    description: Name of the chart, as in its Chart.yaml. An existing release is recognised by it.
    type: str
  ref:
    description: 'Directory or C(oci://) reference of the chart, if it is not in O(repo) under its name.'
    type: str
  repo:
    description: URL of the chart repository.
    type: str
    default: ''
  version:
    description: Version of the chart. It is ignored for a chart directory.
    type: str
  values:
    description: Values of the chart.
    type: dict
    default: {}
  manifest:
    description: Path or URL of a manifest to apply instead of a chart.
    type: str
  images:
    description:
    - Names of the operator's images, without registry and tag.
    - A Deployment that runs one of them is recognised as the operator, regardless of how it was installed. The default
      is O(chart).
    type: list
    elements: str
    default: []
  keep:
    description: Do not change an installed operator, regardless of its version, values and method of installation.
    type: bool
    default: false
  install:
    description: V(existing) installs nothing, and fails if the operator is not installed.
    type: str
    choices: [helm, existing]
    default: helm
  hold:
    description:
    - For the GPU Operator, hold back its operands while its release changes, by C(daemonsets.updateStrategy=OnDelete)
      and C(driver.upgradePolicy.autoUpgrade=false) of its chart, so that a pod gets its new revision only after the old
      one is deleted.
    - The release keeps its earlier values in C(gpuopsRdmaBeforeHold). Without this option they are restored in the
      release, and in a ClusterPolicy that an unfinished upgrade has held back without its release.
    - For the Network Operator, stop its Deployment and apply a changed NicClusterPolicy before the release changes.
      Helm starts it again, so that it creates its DaemonSets only from the new policy.
    type: bool
    default: false
  resume:
    description:
    - Continue if an interrupted run left a Helm release pending.
    - V(true) deletes the record of that revision and starts again. Its objects are kept and taken over. V(false) fails.
    type: bool
    default: false
  pending_timeout:
    description: Seconds after which a pending release counts as abandoned. A younger one is never changed.
    type: int
    default: 900
  timeout:
    description:
    - Seconds for the chart's hook jobs, or for an operator that the plan installs through OLM.
    type: int
    default: 600
  grace:
    description: With OLM, seconds after which a state such as ImagePullBackOff counts as unrecoverable.
    type: int
    default: 60
  helm_binary:
    description: Path of Helm. The default is Helm in E(PATH).
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

- name: Uninstall the Network Operator, regardless of its release's name
  gpuops.rdma.release:
    state: absent
    operator: network_operator
"""

RETURN = r"""
action:
  description: The action, or in check mode the action that would be taken.
  returned: success
  type: str
  sample: upgrade
why:
  description: The reason.
  returned: success
  type: str
  sample: "v26.3.3 -> v26.7.0; values differ: cdi.enabled"
name:
  description: Name of the release, also of an adopted one.
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
    - The CustomResourceDefinitions of the chart and its enabled sub-charts. They are applied before Helm runs, because
      Helm adds them to new releases only. With C(--diff), also their new versions and fields.
  returned: when the cluster lacks some of them, or some of their versions or fields
  type: list
  elements: str
  sample: [create sriovoperatorconfigs.sriovnetwork.openshift.io, update nicclusterpolicies.mellanox.com]
objects:
  description: Number of objects in the manifest.
  returned: when a manifest was applied
  type: int
requests:
  description: Number of requests to the API server, without those of Helm.
  returned: always
  type: int
"""
