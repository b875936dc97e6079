# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: control_node
short_description: Check the control node
version_added: 0.1.0
description:
- Checks Python, its packages, the required collections, Helm, the kubeconfig and the connection to the API server,
  and reports all problems at once.
- With O(install=true) and no usable Helm it downloads one whose SHA-256 is pinned in the collection.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  install:
    description: Install Helm when there is none in E(PATH), or one out of the supported range.
    type: bool
    default: false
  bin_dir:
    description: Folder for Helm. It must precede that of another Helm in E(PATH).
    type: path
    default: ~/.local/bin
  tolerate_helm:
    description: >-
      Only note a Helm that is missing or out of range, where the preflight stage of this run comes after: it tells it
      with all other problems, and only when a chart is to be installed. Without effect with O(install=true).
    type: bool
    default: false
  helm_url:
    description: Where Helm's archive is instead, for a mirror. Needs O(helm_checksum).
    type: str
  helm_checksum:
    description: SHA-256 of the archive of O(helm_url).
    type: str
  cluster:
    description: Look at the kubeconfig and the API server too; false where a container image is built.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Check this machine
  gpuops.rdma.control_node:

- name: Install Helm if need be
  gpuops.rdma.control_node:
    install: true

- name: Complete the image of an execution environment, and check it
  gpuops.rdma.control_node:
    install: true
    bin_dir: /usr/local/bin
    cluster: false
"""

RETURN = r"""
findings:
  description: 'What is not as it must be: C(id), C(severity), C(subject), C(found), C(expected), C(remedy), C(stage).'
  returned: always
  type: list
  elements: dict
helm:
  description: C(path) and C(version) of the Helm that is used; empty without one.
  returned: always
  type: dict
"""
