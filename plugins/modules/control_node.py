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
- With O(install=true) it downloads Helm if none is usable. The SHA-256 of the download is pinned in the collection.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  install:
    description: Install Helm if E(PATH) has none, or an unsupported version.
    type: bool
    default: false
  bin_dir:
    description: Folder for Helm. In E(PATH) it must precede the folder of any other Helm.
    type: path
    default: ~/.local/bin
  tolerate_helm:
    description: >-
      Do not fail if Helm is missing or unsupported. Use it if the preflight stage follows, which reports this with all
      other problems, and only if a chart has to be installed. No effect with O(install=true).
    type: bool
    default: false
  helm_url:
    description: URL of Helm's archive on a mirror. Needs O(helm_checksum).
    type: str
  helm_checksum:
    description: SHA-256 of the archive of O(helm_url).
    type: str
  cluster:
    description: Also check the kubeconfig and the API server. Use V(false) while building a container image.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Check the control node
  gpuops.rdma.control_node:

- name: Install Helm if needed
  gpuops.rdma.control_node:
    install: true

- name: Complete and check the image of an execution environment
  gpuops.rdma.control_node:
    install: true
    bin_dir: /usr/local/bin
    cluster: false
"""

RETURN = r"""
findings:
  description: 'Problems, each with C(id), C(severity), C(subject), C(found), C(expected), C(remedy) and C(stage).'
  returned: always
  type: list
  elements: dict
helm:
  description: C(path) and C(version) of the Helm in use. Empty if there is none.
  returned: always
  type: dict
"""
