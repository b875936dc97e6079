#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: olm_operator
short_description: Install an operator through the Operator Lifecycle Manager
version_added: 0.1.0
description:
- Creates namespace, OperatorGroup and Subscription, approves only the InstallPlan of the required version, and waits
  for the phase of the ClusterServiceVersion, which alone shows success.
- Creates the operator's custom resources from the example of that version merged with O(values); it refuses unknown
  fields and names their path and the nearest field. Later runs only enforce these values.
- Waits until the custom resources are ready and the nodes offer the operator's resources.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  operator:
    description:
    - A name of files/olm.yml, V(nfd), V(gpu_operator), V(network_operator) or V(sriov_operator). It sets the defaults
      of O(package), O(namespace), O(source) and O(resources).
    type: str
  package:
    description: Name of the package in the catalog.
    type: str
    default: ""
  namespace:
    description: Namespace of the operator. An existing namespace is used, and its OperatorGroup if it is suitable.
    type: str
    default: ""
  source:
    description: Name of the CatalogSource.
    type: str
    default: ""
  source_namespace:
    description: Namespace of O(source).
    type: str
    default: openshift-marketplace
  channel:
    description: Channel of the Subscription. The default is the current channel, or else the package's default.
    type: str
    default: ""
  csv:
    description: ClusterServiceVersion to install or upgrade to. The default is the installed one, or else the head of
      the channel.
    type: str
    default: ""
  approval:
    description:
    - With V(Manual) the module approves only the InstallPlan of exactly this version. With V(Automatic) OLM upgrades by
      itself.
    type: str
    default: Manual
    choices: [Manual, Automatic]
  every_namespace:
    description: The operator watches all namespaces. Its version must support this.
    type: bool
    default: false
  config:
    description: C(spec.config) of the Subscription for the operator's own pod, such as C(tolerations) or C(env).
    type: dict
    default: {}
  catalog_image:
    description: Create O(source) from this index image, for clusters without internet access.
    type: str
    default: ""
  catalog_pull_secrets:
    description: Pull secrets of O(catalog_image), in O(source_namespace).
    type: list
    elements: str
    default: []
  mirrors:
    description:
    - A mapping of registries or repositories to a mirror or a list of mirrors. The module creates an
      ImageDigestMirrorSet and an ImageTagMirrorSet, which the Machine Config Operator rolls out to all nodes.
    type: dict
    default: {}
  values:
    description: Values for C(spec) of the custom resource of O(operator).
    type: dict
    default: {}
  resources:
    description: Custom resources to create, instead of those of O(operator).
    type: list
    elements: dict
    suboptions:
      kind:
        description: Kind of the custom resource. The operator must have an example of it.
        type: str
        required: true
      name:
        description: Name of the custom resource. The default is the example's name.
        type: str
        default: ""
      values:
        description: Values for C(spec), merged over the example. Lists are replaced as a whole.
        type: dict
        default: {}
      await:
        description: How to detect that it is ready, by C(status.state), by the condition C(Available), or not at all.
        type: str
        choices: [state, conditions, none]
        default: state
  expected_nodes:
    description: Minimum number of nodes that must offer GPUs. Use V(0) if pools scale from zero.
    type: int
    default: 1
  state:
    description:
    - V(absent) first removes the custom resources, while the operator runs, then Subscription, ClusterServiceVersion,
      OperatorGroup, catalog and namespace, if this collection created them. Definitions are kept.
    type: str
    choices: [present, absent]
    default: present
  timeout:
    description: Seconds for each wait.
    type: int
    default: 1800
  grace:
    description: Seconds after which a state like a failed ClusterServiceVersion counts as unrecoverable.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Install the GPU Operator from the catalog's default channel
  gpuops.rdma.olm_operator:
    operator: gpu_operator
    values:
      mig:
        strategy: mixed

- name: Install a pinned version from a mirrored catalog
  gpuops.rdma.olm_operator:
    operator: nfd
    csv: nfd.v4.18.0-202509021500
    source: mirrored-operators
    catalog_image: registry.example.com/redhat/redhat-operator-index:v4.18
    mirrors:
      registry.redhat.io/openshift4: registry.example.com/openshift4
"""

RETURN = r"""
operators:
  description: One entry per operator.
  returned: always
  type: list
  elements: dict
  contains:
    package:
      description: Name of the package.
      type: str
    namespace:
      description: Namespace of the operator.
      type: str
    channel:
      description: Channel of the Subscription.
      type: str
    csv:
      description: The ClusterServiceVersion.
      type: str
    phase:
      description: V(Succeeded), or empty in check mode of a first installation.
      type: str
    approved:
      description: The InstallPlan that this run approved.
      type: str
    resources:
      description: Kind and name of the custom resources.
      type: list
      elements: str
    evidence:
      description: Number of C(nodes) that offer each C(resource), and number of nodes that the operator has
        C(validated).
      type: dict
    notes:
      description: Objects that an upgrade by OLM has not changed.
      type: list
      elements: str
changes:
  description: Up to 20 changes.
  returned: always
  type: list
  elements: str
requests:
  description: Number of requests to the API server.
  returned: success
  type: int
"""
