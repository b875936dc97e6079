#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: evidence_verify
short_description: Verify the evidence of a run
version_added: 0.1.0
description:
- Verifies the signature of C(evidence.dsse.json), that it is a statement of a known version, and that C(report.json) is
  the one that it is about, and prints what it proves.
- Fails if any byte was changed, if the key is another one, if the version of the predicate is unknown, or if a key was
  given and the evidence is not signed.
- It accesses no cluster.
extends_documentation_fragment:
- gpuops.rdma.attributes
options:
  evidence:
    description:
    - The signed C(evidence.dsse.json), or the plain C(evidence.json), which proves only that C(report.json) belongs to
      it.
    - Of a folder, C(evidence.dsse.json) is taken, if there is one or O(public_key_file) is set.
    type: path
    required: true
  public_key_file:
    description: Public key in PEM, ed25519 or ECDSA P-256. Required for signed evidence.
    type: path
    default: ''
  report:
    description: The C(report.json). By default the file of this name beside the evidence, if there is one.
    type: path
    default: ''
  salt_file:
    description:
    - C(evidence-salt) of the report's folder. With it and the C(report.json), the nodes' names are printed.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Verify the evidence of a run
  gpuops.rdma.evidence_verify:
    evidence: rdma-report/evidence.dsse.json
    public_key_file: evidence.pub
"""

RETURN = r"""
verdict:
  description: Verdict of the run.
  returned: success
  type: str
made:
  description: Time of the report.
  returned: success
  type: str
simulated:
  description: Whether any GPU of the run was simulated.
  returned: success
  type: bool
versions:
  description: Versions of the collection, Kubernetes and the operators.
  returned: success
  type: dict
cluster:
  description: Pseudonym of the cluster, or V(unknown).
  returned: success
  type: str
nodes:
  description: Number of nodes.
  returned: success
  type: int
signed:
  description: Whether a signature was verified.
  returned: success
  type: bool
report_checked:
  description: Whether C(report.json) was there and is unchanged.
  returned: success
  type: bool
names:
  description: Names of the nodes by pseudonym, with O(salt_file).
  returned: success
  type: dict
"""
