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
    - A name of files/olm.yml, V(nfd), V(gpu_operator), V(network_operator) or V(sriov_operator); gives O(package),
      O(namespace), O(source) and O(resources).
    type: str
  package:
    description: The package in the catalog.
    type: str
    default: ""
  namespace:
    description: Where the operator runs. A namespace that is there is used; so is its OperatorGroup, when it fits.
    type: str
    default: ""
  source:
    description: The CatalogSource.
    type: str
    default: ""
  source_namespace:
    description: Its namespace.
    type: str
    default: openshift-marketplace
  channel:
    description: Channel of the Subscription; by default the one that is subscribed to, else the package's default.
    type: str
    default: ""
  csv:
    description: The version to install, or to upgrade to. Without it, what is installed stays, else the channel's head.
    type: str
    default: ""
  approval:
    description:
    - With V(Manual) the InstallPlan that installs exactly this version is approved, and no later one. V(Automatic)
      lets OLM upgrade by itself.
    type: str
    default: Manual
    choices: [Manual, Automatic]
  every_namespace:
    description: The operator watches all namespaces, as its version must allow.
    type: bool
    default: false
  config:
    description: Of the operator's own pod, C(spec.config) of the Subscription, such as C(tolerations) or C(env).
    type: dict
    default: {}
  catalog_image:
    description: Make O(source) from this index image, on clusters without the internet.
    type: str
    default: ""
  catalog_pull_secrets:
    description: Secrets in O(source_namespace) for it.
    type: list
    elements: str
    default: []
  mirrors:
    description:
    - Registry or repository to its mirror (or a list of them); makes an ImageDigestMirrorSet and an
      ImageTagMirrorSet. The Machine Config Operator rolls them out to all nodes.
    type: dict
    default: {}
  values:
    description: For C(spec) of the one custom resource of O(operator).
    type: dict
    default: {}
  resources:
    description: Custom resources to make, instead of those of O(operator).
    type: list
    elements: dict
    suboptions:
      kind:
        description: One that the operator has an example of.
        type: str
        required: true
      name:
        description: By default the example's.
        type: str
        default: ""
      values:
        description: For C(spec), laid over the example; lists are replaced whole.
        type: dict
        default: {}
      await:
        description: What shows that it is done, C(status.state), the condition C(Available), or nothing.
        type: str
        choices: [state, conditions, none]
        default: state
  expected_nodes:
    description: How many nodes must offer GPUs at least; with 0 none has to, as where pools start from zero.
    type: int
    default: 1
  state:
    description:
    - With V(absent) the custom resources go first, while the operator runs, then Subscription, ClusterServiceVersion,
      OperatorGroup, catalog and namespace, as far as they are this collection's. Definitions stay.
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
- name: The GPU Operator of the catalog's default channel
  gpuops.rdma.olm_operator:
    operator: gpu_operator
    values:
      mig:
        strategy: mixed

- name: A pinned version from a mirrored catalog
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
  description: What was found or made, one entry per operator.
  returned: always
  type: list
  elements: dict
  contains:
    package:
      description: The package.
      type: str
    namespace:
      description: Where it runs.
      type: str
    channel:
      description: The channel that is subscribed to.
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
      description: How many C(nodes) offer which C(resource), and on how many the operator has C(validated) its work.
      type: dict
    notes:
      description: What an upgrade by OLM has left as it was.
      type: list
      elements: str
changes:
  description: What was written, at most 20 lines.
  returned: always
  type: list
  elements: str
requests:
  description: Requests to the API server.
  returned: success
  type: int
"""
