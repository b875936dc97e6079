# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: report_keep
short_description: Keep report.html in a place that outlives the control node
version_added: 0.1.0
description:
- An AWX job's pod is deleted together with the folder of the report. This module copies C(report.html) into the
  cluster that it describes, into a bucket of OCI Object Storage, or into the job's artifacts.
- With every O(keep) the job's artifacts get C(rdma_report) for a later job of a workflow. It contains for each
  cluster the verdict, whether it fails the job, its reason, the report's path, the place where it is kept, and the
  bad nodes.
- A page of more than 1,000 KiB is compressed to C(report.html.gz) before it is stored in a ConfigMap or Secret.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
options:
  dir:
    description: Folder of the report; the module P(gpuops.rdma.report#module) has written it.
    type: path
    required: true
  keep:
    description:
    - Where report.html is kept beside O(dir); V(none) keeps no page.
    - V(configmap) and V(secret) are objects of the cluster; one is overwritten by the next report.
    - V(object_storage) writes C(PREFIX/CLUSTER/TIME-report.html) into a bucket; earlier ones stay.
    - V(artifact) is the page as gzip in base64 in C(rdma_report_html) of the job's artifacts, by cluster, of at most
      256 KiB.
    type: str
    required: true
    choices: [none, configmap, secret, object_storage, artifact]
  name:
    description: Name of the ConfigMap or Secret.
    type: str
    default: gpuops-report
  namespace:
    description: Namespace of the ConfigMap or Secret. It must be there.
    type: str
    default: gpuops-nccl
  bucket:
    description:
    - Bucket of Object Storage, for V(object_storage). OCI is reached by the environment or C(module_defaults) of
      C(group/gpuops.rdma.oci).
    type: str
    default: ''
  prefix:
    description: What the object's name begins with.
    type: str
    default: ''
  failed:
    description: Whether the report's verdict fails the job; by default every verdict but pass does.
    type: bool
"""

EXAMPLES = r"""
- name: Keep the report in the cluster
  gpuops.rdma.report_keep:
    dir: rdma-report
    keep: configmap

- name: Keep each report in a bucket
  gpuops.rdma.report_keep:
    dir: rdma-report
    keep: object_storage
    bucket: rdma-reports
    auth_type: instance_principal
"""

RETURN = r"""
place:
  description: Where the report is.
  returned: always
  type: str
  sample: configmap gpuops-nccl/gpuops-report
fetch:
  description: The command that fetches it.
  returned: always
  type: str
"""
