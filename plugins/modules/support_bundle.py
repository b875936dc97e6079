#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: support_bundle
short_description: Collect a redacted support bundle
version_added: 0.1.0
description:
- Collects what a support case needs from the run folder and from the cluster. That is the report, plan, journal and
  logs of the run, the state of the operators' Deployments, DaemonSets, pods and policies, the nodes, events, the last
  200 lines of at most 40 pods of each namespace, and versions.
- Secrets are hidden. Addresses, names of nodes, hosts, users, clusters and registries, OCIDs, MAC addresses and paths
  of kubeconfigs are replaced with pseudonyms. C(manifest.json) in the archive has for each file its SHA-256, its size,
  and what was replaced how often, and lists what could not be read, with the reason.
- Secret objects are never read. Without a cluster, the bundle has the run folder alone.
- It only reads the cluster. In check mode it writes nothing.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  dir:
    description: Folder of the report, which contains the run folder, and the salt of the pseudonyms.
    type: path
    required: true
  dest:
    description: File to write. By default C(support-bundle.tar.gz) in O(dir).
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Collect a support bundle
  gpuops.rdma.support_bundle:
    dir: rdma-report
"""

RETURN = r"""
bundle:
  description: Path of the archive.
  returned: success
  type: str
files:
  description: Names of the collected files.
  returned: success
  type: list
  elements: str
unread:
  description: What could not be read. The manifest has the reasons.
  returned: success
  type: list
  elements: str
"""
