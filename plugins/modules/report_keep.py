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
    description: Folder of the report. The module P(gpuops.rdma.report#module) writes it.
    type: path
    required: true
  keep:
    description:
    - Additional place for report.html. V(none) keeps no copy.
    - V(configmap) and V(secret) store it in the cluster. The next report overwrites it.
    - V(object_storage) writes C(PREFIX/CLUSTER/TIME-report.html) into a bucket. Earlier reports are kept.
    - V(artifact) stores the page, compressed with gzip and encoded in base64, in C(rdma_report_html) of the job's
      artifacts, by cluster. At most 256 KiB.
    type: str
    required: true
    choices: [none, configmap, secret, object_storage, artifact]
  name:
    description: Name of the ConfigMap or Secret.
    type: str
    default: gpuops-report
  namespace:
    description: Namespace of the ConfigMap or Secret. It must exist.
    type: str
    default: gpuops-nccl
  bucket:
    description:
    - Bucket of Object Storage, for V(object_storage). The connection to OCI comes from the environment or
      C(module_defaults) of C(group/gpuops.rdma.oci).
    type: str
    default: ''
  prefix:
    description: Prefix of the object's name.
    type: str
    default: ''
  failed:
    description: Whether the report's verdict fails the job. By default every verdict except pass does.
    type: bool
"""

EXAMPLES = r"""
- name: Store the report in the cluster
  gpuops.rdma.report_keep:
    dir: rdma-report
    keep: configmap

- name: Store each report in a bucket
  gpuops.rdma.report_keep:
    dir: rdma-report
    keep: object_storage
    bucket: rdma-reports
    auth_type: instance_principal
"""

RETURN = r"""
place:
  description: Location of the report.
  returned: always
  type: str
  sample: configmap gpuops-nccl/gpuops-report
fetch:
  description: Command that fetches it.
  returned: always
  type: str
"""
