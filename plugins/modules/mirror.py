#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: mirror
short_description: List all images, charts and files that a plan needs
version_added: 0.1.0
description:
- Lists what has to be brought into a network without the internet for a plan. These are the images of its charts with
  their hooks, of its objects, of what the operators make of these, and of the collection's own pods. To them come
  charts, manifests, Helm, and the packages of the control node.
- Tags of drivers that operators complete on the nodes are listed for the plan's systems. What cannot be named is listed
  as not known, with the reason.
- Writes C(list.txt), C(list.json), C(sync.yml) for C(skopeo sync), the script C(carry.sh), C(inputs.yml) for runs in
  that network, and the charts. It reads no cluster. In check mode it writes nothing.
extends_documentation_fragment:
- gpuops.rdma.attributes
options:
  plan:
    description: Path of plan.json. If it is below O(dest), the secrets that the plan keeps beside it are removed.
    type: path
    required: true
  dest:
    description: Folder to write to.
    type: path
    required: true
  registry:
    description: Registry of the mirror, with an optional path, for the targets of the images and C(inputs.yml).
    type: str
    default: ''
  features:
    description: Images of other playbooks, by input. Empty ones are left out.
    type: dict
    default: {}
  probes:
    description: Images with Python of other playbooks, by input. An empty one is that of the plan's probe.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: List what to bring over
  gpuops.rdma.mirror:
    plan: rdma-report/mirror/run/plan.json
    dest: rdma-report/mirror
    registry: registry.example.com/rdma
"""

RETURN = r"""
dest:
  description: The folder.
  returned: success
  type: str
counts:
  description: Number of things by kind, and of unknown parts.
  returned: success
  type: dict
needs:
  description: Each thing with its kind, reference, digest where one is published, and what needs it.
  returned: success
  type: list
  elements: dict
unknown:
  description: What is needed and cannot be named, with the reason.
  returned: success
  type: list
  elements: dict
"""
