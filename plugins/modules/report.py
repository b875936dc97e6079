# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: report
short_description: Write the report with its verdict, keep its page, compare, verify, or bundle for support
version_added: 0.1.0
description:
- Writes C(report.json), C(report.html), C(junit.xml) and C(report.prom) from a run folder, prints the summary, and
  fails if the verdict is not pass.
- The report of the last earlier run with a test result is kept as C(previous.json); the new report also shows its
  curve.
- The report is always written, even if a stage failed.
- An AWX job's pod is deleted together with the folder of the report. O(state=kept) copies C(report.html) into the
  cluster that it describes, into a bucket of OCI Object Storage, or into the job's artifacts. With every O(keep) the
  artifacts get C(rdma_report) for a later job of a workflow. It contains for each cluster the verdict, whether it fails
  the job, its reason, the report's path, the place where it is kept, and the bad nodes. AWX reads artifacts only of
  tasks that do not fail, so this is a task of its own.
- O(state=compared) reports what became slower or faster between two C(report.json) files, per test and message size,
  which nodes changed their verdict, which faults scans newly find, and which versions differ. Tests are compared if
  shape, collective, number of nodes and GPUs, and the largest message are the same. It accesses no cluster.
- O(state=verified) verifies the signature of C(evidence.dsse.json), that it is a statement of a known version, and that
  C(report.json) is the one that it is about, and prints what it proves. It fails if any byte was changed, if the key is
  another one, if the version of the predicate is unknown, or if a key was given and the evidence is not signed. It
  accesses no cluster.
- O(state=bundled) collects what a support case needs from the run folder and from the cluster. That is the report,
  plan, journal and logs of the run, the state of the operators' Deployments, DaemonSets, pods and policies, the nodes,
  events, the last 200 lines of at most 40 pods of each namespace, and versions. Secrets are hidden, and Secret objects
  are never read. Addresses, names of nodes, hosts, users, clusters and registries, OCIDs, MAC addresses and paths of
  kubeconfigs are replaced with pseudonyms. C(manifest.json) in the archive has for each file its SHA-256, its size,
  and what was replaced how often, and lists what could not be read, with the reason. Without a cluster, the bundle has
  the run folder alone. It only reads the cluster.
- A page of more than 1,000 KiB is compressed to C(report.html.gz) before it is stored in a ConfigMap or Secret.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
options:
  state:
    description: V(written) writes the report. V(kept) copies the page of a report that was written. V(compared)
      compares two reports. V(verified) verifies the evidence of a run. V(bundled) collects a redacted support bundle.
    type: str
    choices: [written, kept, compared, verified, bundled]
    default: written
  dir:
    description: Folder of the report, which contains the run folder, and the salt of the pseudonyms.
    type: path
    default: rdma-report
  fail_on_verdict:
    description: Fail if the verdict is not pass.
    type: bool
    default: true
  again:
    description: Write the report again from the run folder, without reading the cluster.
    type: bool
    default: false
  without_test:
    description:
    - The NCCL test was left out on purpose. The best verdict is then V(incomplete), which does not fail the task if
      there is no other problem.
    - Tags that skip C(nccl_test) have the same effect.
    - Results of an earlier run in the run folder count, unless something was changed afterwards.
    type: bool
    default: false
  record_state:
    description:
    - V(true) records the state of a cluster whose run passed, in the Secret C(gpuops-rdma/gpuops-last-pass).
    - V(false) writes nothing. With C(--diff), the report then lists what differs from the recorded state. That does not
      change the verdict.
    type: bool
    default: true
  evidence:
    description:
    - Write C(evidence.json) beside C(report.json), an in-toto statement of what was tested, with which versions, images
      and thresholds, and with pseudonyms in place of names. Their salt is C(evidence-salt) in the same folder.
    - A run in check mode writes none.
    type: bool
    default: false
  evidence_key_file:
    description:
    - Private key in PEM, ed25519 or ECDSA P-256, without a passphrase, that signs the evidence. The signed envelope is
      C(evidence.dsse.json).
    type: path
    default: ''
  keep:
    description:
    - Additional place for report.html. V(none) keeps no copy.
    - V(configmap) and V(secret) store it in the cluster. The next report overwrites it.
    - V(object_storage) writes C(PREFIX/CLUSTER/TIME-report.html) into a bucket. Earlier reports are kept.
    - V(artifact) stores the page, compressed with gzip and encoded in base64, in C(rdma_report_html) of the job's
      artifacts, by cluster. At most 256 KiB.
    type: str
    default: none
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
  old:
    description: With O(state=compared), the earlier C(report.json). The default is C(previous.json) in O(dir), the
      report of the previous run.
    type: path
  new:
    description: With O(state=compared), the later C(report.json). The default is the one in O(dir).
    type: path
  dest:
    description: With O(state=compared), a file for the whole comparison, as JSON. With O(state=bundled), the archive,
      by default C(support-bundle.tar.gz) in O(dir).
    type: path
  tolerance:
    description: Percentage by which the bandwidth of a healthy cluster may vary between runs.
    type: float
    default: 5.0
  fail_when:
    description: With O(state=compared), fail the task if RV(verdict) is V(slower), or if it is V(slower) or V(worse).
    type: str
    default: never
    choices: [never, slower, worse]
  evidence_file:
    description:
    - With O(state=verified), the signed C(evidence.dsse.json), or the plain C(evidence.json), which proves only that
      C(report.json) belongs to it. The default is the one in O(dir).
    - Of a folder, C(evidence.dsse.json) is taken, if there is one or O(public_key_file) is set.
    type: path
  public_key_file:
    description: Public key in PEM, ed25519 or ECDSA P-256. Required for signed evidence.
    type: path
    default: ''
  report_file:
    description: With O(state=verified), the C(report.json). The default is the file of this name beside the evidence,
      if there is one.
    type: path
    default: ''
  salt_file:
    description:
    - C(evidence-salt) of the report's folder. With it and the C(report.json), the nodes' names are printed.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Report
  gpuops.rdma.report:
    dir: rdma-report

- name: Store the report in the cluster
  gpuops.rdma.report:
    dir: rdma-report
    state: kept
    keep: configmap

- name: Store each report in a bucket
  gpuops.rdma.report:
    dir: rdma-report
    state: kept
    keep: object_storage
    bucket: rdma-reports
    auth_type: instance_principal

- name: Compare with the previous run
  gpuops.rdma.report:
    dir: rdma-report
    state: compared
    fail_when: slower

- name: Collect a support bundle
  gpuops.rdma.report:
    dir: rdma-report
    state: bundled

- name: Verify the evidence of a run
  gpuops.rdma.report:
    state: verified
    evidence_file: rdma-report/evidence.dsse.json
    public_key_file: evidence.pub
"""

RETURN = r"""
verdict:
  description:
  - V(pass), V(degraded), V(fail) or V(incomplete).
  - With O(state=compared), V(slower) or V(faster) if the largest message of a test changed by more than O(tolerance),
    V(worse) or V(better) if only verdicts changed, else V(same). The worst of all tests.
  returned: if written, compared or verified
  type: str
reason:
  description: The reason, in one sentence. If the task fails, only report.json and the printed verdict have it.
  returned: success, if written or compared
  type: str
report:
  description: Path of report.json.
  returned: if written
  type: str
bad_nodes:
  description: At most 50 nodes that fail.
  returned: if written
  type: list
  elements: str
place:
  description: Location of the report.
  returned: with O(state=kept)
  type: str
  sample: configmap gpuops-nccl/gpuops-report
fetch:
  description: Command that fetches it.
  returned: with O(state=kept)
  type: str
nodes:
  description: With O(state=compared), at most 50 nodes that changed, with C(name), C(change), C(old), C(new) and
    C(found). With O(state=verified), the number of nodes.
  returned: if compared or verified
  type: raw
nccl:
  description: Tests, with C(shape), C(collective), C(change), C(why), C(old), C(new) and C(percent).
  returned: with O(state=compared)
  type: list
  elements: dict
made:
  description: Time of the report.
  returned: with O(state=verified)
  type: str
simulated:
  description: Whether any GPU of the run was simulated.
  returned: with O(state=verified)
  type: bool
versions:
  description: Versions of the collection, Kubernetes and the operators.
  returned: with O(state=verified)
  type: dict
cluster:
  description: Pseudonym of the cluster, or V(unknown).
  returned: with O(state=verified)
  type: str
signed:
  description: Whether a signature was verified.
  returned: with O(state=verified)
  type: bool
report_checked:
  description: Whether C(report.json) was there and is unchanged.
  returned: with O(state=verified)
  type: bool
names:
  description: Names of the nodes by pseudonym, with O(salt_file).
  returned: with O(state=verified)
  type: dict
bundle:
  description: Path of the archive.
  returned: with O(state=bundled)
  type: str
files:
  description: Names of the collected files.
  returned: with O(state=bundled)
  type: list
  elements: str
unread:
  description: What could not be read. The manifest has the reasons.
  returned: with O(state=bundled)
  type: list
  elements: str
"""
