# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One model of an NCCL test job, and its objects for each launcher: MPIJob v2beta1 or Volcano Job. PRIVATE.

Workers run sshd and nothing else; the launcher waits for all of them, then becomes mpirun, so that the pod's exit code
is mpirun's. No pod may use the API: host names are known beforehand, and a TCP connection shows readiness.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import COLLECTIVES, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    LAST_WORDS,
    NAME_LABEL,
    OWNED,
    PRIORITY_CLASS,
    ROLE_LABEL,
    of_run,
    run_labels,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric, ports
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import settings as nccl_settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import USED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras

LAUNCHERS = ("volcano", "mpi")
PROGRAMS = {name: f"{name}_perf" for name in COLLECTIVES}
GROUP = "scheduling.k8s.io/group-name"
TEST_LABEL = "gpuops.rdma/test"
APP = "gpuops-nccl"
LAUNCH_FAILED = 97
"""Exit code of our launcher script if it fails before mpirun."""
SAYS = "gpuops: launch: "
"""How a line begins in which a script of ours says why mpirun was not reached."""
PORT = 2222
"""Port of sshd in both modes: on the host network, 22 belongs to the node."""
DEBUG_RANKS = 256
"""Ranks that may print NCCL's INFO lines; those of all ranks of a large job would overflow the log."""
BACKSTOP = 900
"""Seconds after the deadline at which the kubelet ends a pod that was not cleaned up."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
REACHED = re.compile(r"gpuops: \d+ workers reached after ")
"""The launcher's line before it becomes mpirun."""
RUNS = "gpuops: rank "
"""How a line begins in which a rank says the name of its host: ``gpuops: rank 8 HOST``."""
_FILES = "/etc/gpuops"
_MAX_NAME = 36
DIRS = ("/opt/nccl-tests/build", "/opt/nccl_tests/build", "/workspace/nccl-tests/build", "/nccl-tests/build")


@dataclass(frozen=True)
class JobTest:
    """One run of one nccl-tests program over named nodes, with one worker on each."""

    name: str
    namespace: str
    nodes: tuple[str, ...]
    image: str
    fabric: Fabric
    """What a worker needs of its node; users' jobs get the same."""
    collective: str = "all_reduce"
    min_bytes: str = "8"
    max_bytes: str = "8G"
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of iterations, see settings.COUNTS, where the program's own are not wanted."""
    mpi_args: tuple[str, ...] = ()
    """Options of mpirun, besides or instead of ours."""
    algo: str = ""
    queue: str = "default"
    """Volcano queue."""
    kueue_queue: str = ""
    """MPIJob only: Kueue LocalQueue of the job's namespace; "" = without Kueue."""
    gang: bool = False
    """MPIJob only: place all pods or none, by a PodGroup for the Volcano scheduler, which must be installed."""
    deadline: int = 1800
    """Seconds for the run itself."""
    reach: int = 300
    """Seconds in which all workers must accept SSH connections, once their containers run."""
    pull: int = 1800
    """Seconds in which the image must be pulled."""
    info_from: int = 0
    """Index of the first node whose ranks print INFO lines, where not all may: see ``info_span``."""
    priority_class: str = PRIORITY_CLASS
    keep: bool = False
    """No controller ends the workers, whose files have all of NCCL's lines."""
    suffix: str = ""
    """Of its objects' names, see Client.suffix."""
    lost: bool = False
    """Whether pods are removed without the confirmation of a kubelet that does not answer."""

    @property
    def job(self) -> str:
        """Name of the job, with which those of its other objects begin."""
        return of_run(self.name, self.suffix)

    @property
    def np(self) -> int:
        """Number of MPI ranks, one per GPU."""
        return len(self.nodes) * self.fabric.gpus

    @property
    def program(self) -> str:
        """File name of the nccl-tests program."""
        return PROGRAMS[self.collective]


# ---- the command ---------------------------------------------------------------------------------------------------


def command(test: JobTest, program: str = "", hostfile: str = f"{_FILES}/hostfile") -> list[str]:
    """The whole command line of mpirun. ``program``: path of the test program if it is not on PATH."""
    return [*mpirun(test, hostfile), program or test.program, *program_args(test)]


def mpirun(test: JobTest, hostfile: str = f"{_FILES}/hostfile") -> list[str]:
    """mpirun and its options but those of its runtime, see ``find_mpirun``.

    MPI only exchanges NCCL's ids, so it uses plain TCP: no other transport can then fail or use a VF.
    """
    options = {
        "--map-by": ["--map-by", f"ppr:{test.fabric.gpus}:node"],
        "--bind-to": ["--bind-to", "none"],
        **{f"--mca {key}": ["--mca", key, value] for key, value in _transport(test).items()},
    }
    env = nccl_settings.merged(test.fabric.env, nccl_settings.overrides(test.fabric.settings))
    for name, value in sorted(env.items()):
        options.update({} if name.startswith("NCCL_") else {f"-x {name}": ["-x", f"{name}={value}"]})
    options.update(nccl_settings.mpi_options(test.mpi_args))
    first = ["mpirun", "--allow-run-as-root", "--hostfile", hostfile, "-np", str(test.np)]
    return [*first, *(word for words in options.values() for word in words)]


def _transport(test: JobTest) -> dict[str, str]:
    own = {"btl_tcp_if_include": test.fabric.interface} if test.fabric.interface else {}
    return {"pml": "ob1", "btl": "tcp,self", "coll": "^hcoll,ucc", **own}


def runtime(test: JobTest, major: int) -> list[str]:
    """Options of mpirun's runtime for Open MPI 4 or 5, which renamed them and ignores the old names; without those that
    the user sets."""
    ssh = (
        f"-p {PORT} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
        "-o ConnectionAttempts=10"
    )
    mca, shell, own = ("--mca", "rsh", "orte") if major == 4 else ("--prtemca", "ssh", "prte")
    options = {
        f"plm_{shell}_args": ssh,
        f"plm_{shell}_no_tree_spawn": "1",
        f"plm_{shell}_num_concurrent": str(max(128, len(test.nodes))),
        f"{own}_keep_fqdn_hostnames": "true",
    }
    if test.fabric.interface:
        options["oob_tcp_if_include" if major == 4 else "prte_if_include"] = test.fabric.interface
    users = nccl_settings.mpi_options(test.mpi_args)
    return [word for key, value in options.items() if f"--mca {key}" not in users for word in (mca, key, value)]


def program_args(test: JobTest) -> list[str]:
    """Returns the arguments of the nccl-tests program: sizes by a factor of 2, one GPU per rank."""
    args = ["-b", test.min_bytes, "-e", test.max_bytes, "-f", "2", "-g", "1"]
    for name, (option, _unset) in nccl_settings.COUNTS.items():
        args += [option, str(test.counts[name])] if name in test.counts else []
    return args


def nccl_env(test: JobTest) -> dict[str, str]:
    """NCCL's variables. Its debug output goes to stderr: on stdout it would interrupt table rows."""
    env = test.fabric.nccl
    if test.algo:
        env["NCCL_ALGO"] = test.algo
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV", "NCCL_DEBUG_FILE": "/dev/stderr"}
    over = nccl_settings.overrides(test.fabric.settings)
    return nccl_settings.merged(
        {**env, **debug}, {name: value for name, value in over.items() if name.startswith("NCCL_")}
    )


# ---- the files in the pods -----------------------------------------------------------------------------------------


def workers(test: JobTest, launcher: str) -> list[str]:
    """Host names of the workers as the launcher's headless Service publishes them."""
    suffix = f"{test.job}.{test.namespace}.svc" if launcher == "mpi" else test.job
    return [f"{worker(test, index)}.{suffix}" for index in range(len(test.nodes))]


def worker(test: JobTest, index: int) -> str:
    """Name of a worker's pod, for both launchers."""
    return f"{test.job}-worker-{index}"


def hostfile(test: JobTest, launcher: str) -> str:
    """Our own hostfile: Volcano's has no slots and no final newline, and Open MPI 5 ignores the MPI Operator's."""
    return "".join(f"{host} slots={test.fabric.gpus}\n" for host in workers(test, launcher))


def worker_script() -> str:
    """The workers' script, which runs sshd. StrictModes is off because Secret volumes are group-writable."""
    options = "-o StrictModes=no -o PermitRootLogin=prohibit-password -o MaxStartups=1000 -o LogLevel=ERROR"
    return f"""set -eu
missing=
sshd=$(PATH=$PATH:/usr/sbin type -P sshd) || missing=sshd
type -P ssh-keygen >/dev/null || missing=${{missing:+$missing and no }}ssh-keygen
if [ -n "$missing" ]; then echo "{SAYS}the image has no $missing"; exit {LAUNCH_FAILED}; fi
if ! said=$(mkdir -p /run/sshd 2>&1 && ssh-keygen -A 2>&1 && "$sshd" -t 2>&1); then
  echo "{SAYS}sshd cannot start: ${{said##*$'\n'}}"
  exit {LAUNCH_FAILED}
fi
exec "$sshd" -D -e -p {PORT} {options}
"""


def unreached(port: int) -> str:
    """A shell function: why a worker cannot be reached, by its name, the seconds waited and what the shell said. A dead
    resolver takes longer than the shell had, so the name is looked up once more."""
    return f"""unreached() {{
  if type -P getent >/dev/null && ! timeout 15 getent ahosts "$1" >/dev/null; then
    echo "{SAYS}the cluster's DNS does not resolve the worker of $1 after $2 s; see the pods \
k8s-app=kube-dns of kube-system"
  else
    said=${{3:-no answer}}
    echo "{SAYS}no sshd at $1 port {port} after $2 s: ${{said##*: }}"
  fi
}}"""


def reach_of(test: JobTest, launcher: str) -> int:
    """Seconds for which the launcher waits for sshd. Only an MPIJob without a gang starts it after its workers; other
    workers may still be pulling their image."""
    return test.reach if launcher == "mpi" and not test.gang else test.reach + test.pull


def launcher_script(test: JobTest, patience: int = 0) -> str:
    """The launcher's script: waits for all workers' sshd, finds the program, then execs mpirun to pass on its exit
    code."""
    patience = patience or test.reach
    dirs = " ".join(f"{folder}/{test.program}" for folder in DIRS)
    program = f'/bin/bash {_FILES}/rank.sh "$program" {shlex.join(program_args(test))}'
    return f"""set -u -o pipefail
fail() {{ echo "{SAYS}$1"; exit {LAUNCH_FAILED}; }}
{find_mpirun("fail", test)}
{unreached(PORT)}
reach() {{
  until said=$(timeout 5 /bin/bash -c "exec 3<>/dev/tcp/$1/{PORT}" 2>&1); do
    if [ "$SECONDS" -ge {patience} ]; then
      unreached "$1" {patience} "$said"
      return 1
    fi
    sleep 1
  done
}}
waits=
while read -r host _; do reach "$host" & waits="$waits $!"; done <{_FILES}/hostfile
missing=0
for wait in $waits; do wait "$wait" || missing=$((missing + 1)); done
[ "$missing" = 0 ] || fail "$missing of {len(test.nodes)} workers cannot be reached"
echo "gpuops: {len(test.nodes)} workers reached after $SECONDS s"
program=$(command -v {test.program} || true)
for path in {dirs}; do [ -n "$program" ] || [ ! -x "$path" ] || program=$path; done
[ -n "$program" ] || fail "the image has no {test.program}"
export_path=${{LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH}}
exec "$mpirun" {shlex.join(mpirun(test)[1:])} "${{runtime[@]}}" $export_path {program}
"""


def find_mpirun(fail: str, test: JobTest) -> str:
    """Shell lines that set ``mpirun`` to its absolute path and the array ``runtime`` to the options of its version, or
    call ``fail`` with what the image lacks.

    Open MPI starts its remote daemons from the prefix of that path, as sshd's PATH may lack them. So the folder must be
    the real one: version 4 takes ``/bin/mpirun`` for the prefix ``/``.
    """
    return f"""for tool in mpirun ssh; do type -P "$tool" >/dev/null || {fail} "the image has no $tool"; done
mpirun=$(type -P mpirun)
folder=$(readlink -f "$mpirun")
folder=${{folder%/*}}
[ -x "$folder/mpirun" ] || folder=$(cd -P "${{mpirun%/*}}" && pwd)
mpirun=$folder/mpirun
case $("$mpirun" --version 2>&1) in
  *"(Open MPI) 4."*) runtime=({shlex.join(runtime(test, 4))}) ;;
  *"(Open MPI) "[5-9].*) runtime=({shlex.join(runtime(test, 5))}) ;;
  *) {fail} "the image's mpirun is not of Open MPI 4 or 5" ;;
esac"""


def debug_filter() -> str:
    """Shell lines that pass of NCCL's INFO lines on stderr only those that a verdict reads; a file in the pod has all.

    All lines of 32 nodes are as much as a node keeps of a log.
    """
    return f"""if printf '' | sed -u -E '' 2>/dev/null; then
  whole=/tmp/gpuops-nccl-${{OMPI_COMM_WORLD_RANK:-0}}.log
  {{ : >"$whole"; }} 2>/dev/null || whole=/dev/null
  exec 2> >(tee "$whole" | sed -u -E -e '\\@ NCCL INFO @!b' -e '\\@{USED}@!d' >&2)
fi"""


def info_span(test: JobTest) -> tuple[int, int]:
    """First and number of the ranks that print INFO lines: all, or as many whole nodes as DEBUG_RANKS allows, from
    ``info_from`` on; after the last rank comes rank 0. mpirun fills one node after the other, in the hostfile's order.
    """
    total, each = len(test.nodes), max(test.fabric.gpus, 1)
    return test.info_from % total * each, min(max(1, DEBUG_RANKS // each), total) * each


def info_ranks(test: JobTest) -> frozenset[int]:
    """The ranks of ``info_span``."""
    first, count = info_span(test)
    return frozenset((first + i) % test.np for i in range(count))


def info_only(span: Sequence[object]) -> str:
    """Shell lines that leave warnings only to the ranks outside of ``span``: (first, number), numbers or words of the
    shell."""
    return f"""ranks=${{OMPI_COMM_WORLD_SIZE:-1}}
place=$(((${{OMPI_COMM_WORLD_RANK:-0}} - {span[0]} % ranks + ranks) % ranks))
[ "$place" -lt {span[1]} ] || export NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS="""


def rank_script(test: JobTest) -> str:
    """Returns the script that runs the program on every rank; ranks outside of ``info_span`` print warnings only, and
    the first of each host prints the counters of its ports.

    On the host's network programs name hosts by names that Kubernetes does not know: each host's first rank says its.
    """
    rank, first = "${OMPI_COMM_WORLD_RANK:-0}", '[ "${OMPI_COMM_WORLD_LOCAL_RANK:-0}" != 0 ]'
    says = f'{first} || echo "{RUNS}{rank} ${{HOSTNAME%%.*}}"\n' if test.fabric.on_host else ""
    reads = f"{ports.script()}\n" if test.fabric.mode and len(test.nodes) > 1 else ""
    return f"""{says}{info_only(info_span(test))}
{debug_filter()}
{reads}exec "$@"
"""


def files(test: JobTest, launcher: str) -> Json:
    """The ConfigMap with hostfile, scripts and /etc/nccl.conf."""
    data = {
        "hostfile": hostfile(test, launcher),
        "launcher.sh": launcher_script(test, reach_of(test, launcher)),
        "worker.sh": worker_script(),
        "nccl.conf": "".join(f"{name}={value}\n" for name, value in sorted(nccl_env(test).items())),
        "rank.sh": rank_script(test),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(test, f"{test.job}-files"), "data": data}


# ---- the pods ------------------------------------------------------------------------------------------------------


def _labels(test: JobTest, role: str = "") -> dict[str, str]:
    labels = {**OWNED, NAME_LABEL: APP, TEST_LABEL: test.job, **run_labels(test.suffix)}
    return {**labels, ROLE_LABEL: role} if role else labels


def _meta(test: JobTest, name: str) -> Json:
    return {"name": name, "namespace": test.namespace, "labels": _labels(test)}


def _backstop(test: JobTest) -> int:
    """Seconds of activeDeadlineSeconds, which the kubelet counts from scheduling: the image pull is included."""
    return test.pull + test.reach + test.deadline + BACKSTOP


def _pod_base(test: JobTest) -> Json:
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "activeDeadlineSeconds": _backstop(test),
        "terminationGracePeriodSeconds": 5,
        "priorityClassName": test.priority_class,
    }
    return {**spec, **test.fabric.admission()}


def _worker_pod(test: JobTest) -> Json:
    own = test.fabric
    spec = {**_pod_base(test), **own.net(), "affinity": _worker_affinity(test), "containers": [_worker(test)]}
    spec["volumes"] = [{"name": "files", "configMap": {"name": f"{test.job}-files"}}, *own.volumes()]
    return {"metadata": {"labels": _labels(test, "worker"), "annotations": own.annotations()}, "spec": spec}


def _worker(test: JobTest) -> Json:
    own = test.fabric
    return {
        "name": "worker",
        "image": test.image,
        "command": ["/bin/bash", f"{_FILES}/worker.sh"],
        "ports": [{"name": "ssh", "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2, "failureThreshold": 150},
        "resources": own.resources(**{"ephemeral-storage": "1Gi"}),
        "securityContext": own.security(),
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [
            {"name": "files", "mountPath": _FILES},
            {"name": "files", "mountPath": fabric.CONF, "subPath": "nccl.conf"},
            *own.mounts(),
        ],
    }


def _worker_affinity(test: JobTest) -> Json:
    """One worker on each of the named nodes. They are matched by name, because labels can be wrong."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in test.nodes]
    apart = {
        "labelSelector": {"matchLabels": {TEST_LABEL: test.job, ROLE_LABEL: "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }


def _launcher_pod(test: JobTest) -> Json:
    """Prefers a node without GPUs: the launcher needs a core, but no device and no privilege. The workers' nodes are
    named, because no label says so where NFD does not run."""
    wish = {
        "matchExpressions": [
            {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"},
            {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "DoesNotExist"},
        ],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in test.nodes],
    }
    container = {
        "name": "launcher",
        "image": test.image,
        "command": ["/bin/bash", f"{_FILES}/launcher.sh"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [{"name": "files", "mountPath": _FILES}],
    }
    spec = {
        **_pod_base(test),
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": wish}]}
        },
        "containers": [container],
        "volumes": [{"name": "files", "configMap": {"name": f"{test.job}-files"}}],
    }
    return {"metadata": {"labels": _labels(test, "launcher")}, "spec": spec}


# ---- the jobs ------------------------------------------------------------------------------------------------------


def objects(test: JobTest, launcher: str) -> list[Json]:
    """All objects of the job in the order to apply them; namespace and network must exist. InputError as in
    ``check``."""
    check(test, launcher)
    groups = [_pod_group(test)] if test.gang and launcher == "mpi" else []
    job = volcano_job(test) if launcher == "volcano" else mpi_job(test)
    return [files(test, launcher), *groups, extras.dressed(job, test.fabric.extras)]


def volcano_job(test: JobTest) -> Json:
    """The Volcano Job. minAvailable is the sum of all replicas: with less, Volcano may start half a gang.

    A failed or evicted pod ends the job; otherwise it would keep the GPUs. There is no policy for pending pods:
    Volcano's PodPending timeout deletes the job's Service and recreates its pods. A job that ends deletes its workers,
    so one that is kept has no policy.
    """
    ends = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    aborts = [{"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"}]
    launcher = {
        "name": "launcher",
        "replicas": 1,
        "minAvailable": 1,
        "maxRetry": 1,
        "policies": [] if test.keep else ends,
        "template": _launcher_pod(test),
    }
    worker = {
        "name": "worker",
        "replicas": len(test.nodes),
        "minAvailable": len(test.nodes),
        "maxRetry": 1,
        "template": _worker_pod(test),
    }
    spec = {
        "schedulerName": "volcano",
        "queue": test.queue,
        "minAvailable": len(test.nodes) + 1,
        "maxRetry": 1,
        # A NetworkPolicy by pod labels would exclude workers on the host network. The launcher asks for names before
        # the workers are ready, and the cluster's DNS remembers for 30 s that there was none.
        "plugins": {
            "env": [],
            "ssh": [],
            "svc": ["--disable-network-policy=true", "--publish-not-ready-addresses=true"],
        },
        "policies": [] if test.keep else aborts,
        "tasks": [launcher, worker],
    }
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": _meta(test, test.job), "spec": spec}


def mpi_job(test: JobTest) -> Json:
    """The MPIJob: one attempt, and workers are deleted at the end unless they are kept. With a gang the launcher must
    not wait for the workers, because they wait for it."""
    launcher, worker = _launcher_pod(test), _worker_pod(test)
    if test.gang:
        for template in (launcher, worker):
            template["spec"]["schedulerName"] = "volcano"
            template["metadata"].setdefault("annotations", {})[GROUP] = _group_name(test)
    spec: Json = {
        "mpiImplementation": "OpenMPI",
        "slotsPerWorker": test.fabric.gpus,
        "sshAuthMountPath": "/root/.ssh",
        "launcherCreationPolicy": "AtStartup" if test.gang else "WaitForWorkersReady",
        "runPolicy": {
            "cleanPodPolicy": "None" if test.keep else "Running",
            "backoffLimit": 0,
            "activeDeadlineSeconds": _backstop(test),
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": len(test.nodes), "restartPolicy": "Never", "template": worker},
        },
    }
    meta = _meta(test, test.job)
    if test.kueue_queue:
        # Kueue's webhook would suspend it too; without the webhook the job must not bypass the queue.
        meta["labels"][QUEUE_LABEL] = test.kueue_queue
        spec["runPolicy"]["suspend"] = True
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": meta, "spec": spec}


def _group_name(test: JobTest) -> str:
    """Not the job's name: an operator with gang scheduling enabled creates a PodGroup of that name."""
    return f"{test.job}-gang"


def _pod_group(test: JobTest) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": _meta(test, _group_name(test)),
        "spec": {"minMember": len(test.nodes) + 1, "queue": test.queue},
    }


# ---- from the plan -------------------------------------------------------------------------------------------------


def of_plan(plan: Plan, entry: NcclTest, nodes: Sequence[str], **more: Any) -> JobTest:
    """The job of one of the plan's tests on these nodes; ``more`` overrides fields of JobTest."""
    found = JobTest(
        name=entry.name,
        namespace=plan.namespaces.job,
        nodes=tuple(nodes),
        image=entry.image,
        fabric=fabric.of_test(plan, entry, nodes),
        collective=entry.collective,
        min_bytes=entry.min_bytes,
        max_bytes=entry.max_bytes,
        counts={one.name: int(one.value or 0) for one in entry.counts},
        mpi_args=tuple(one.value or "" for one in entry.mpi_args),
        algo=entry.algo,
        queue=entry.queue,
        kueue_queue=entry.kueue_queue,
        gang=entry.gang,
        deadline=entry.deadline,
        priority_class=plan.priority_class,
        lost=plan.remove_lost_pods,
    )
    return replace(found, **more)


def slug(collective: str) -> str:
    """``all_reduce`` -> ``all-reduce``, for names of Kubernetes objects."""
    return collective.replace("_", "-")


def check(test: JobTest, launcher: str) -> None:
    """InputError that lists everything that is wrong with the test."""
    faults = []
    if launcher not in LAUNCHERS:
        faults.append(f"launcher {launcher!r} is unknown; known: {', '.join(LAUNCHERS)}")
    if test.collective not in PROGRAMS:
        faults.append(f"collective {test.collective!r} is unknown; known: {', '.join(PROGRAMS)}")
    if not test.nodes or len(set(test.nodes)) != len(test.nodes):
        faults.append("it needs at least one node, each given once")
    if test.fabric.gpus < 1:
        faults.append(f"{test.fabric.gpus} GPUs per node")
    if test.fabric.mode.vfs and test.fabric.vfs < 1:
        faults.append("mode sriov needs at least one VF per node")
    if nccl_env(test).get("NCCL_ALGO", "").lower() == "auto":
        faults.append("NCCL_ALGO=auto is not a value that NCCL knows; leave it empty for NCCL's own choice")
    if not test.image:
        faults.append("no image is given")
    elif "@" in test.image and not _DIGEST.fullmatch(test.image):
        faults.append(f"the image {test.image!r} has an @, but no digest like name@sha256:<64 hex digits>")
    if test.kueue_queue and launcher == "volcano":
        faults.append("Kueue does not manage Volcano Jobs; use launcher mpi, or Volcano's own queue")
    if len(test.name) > _MAX_NAME:
        faults.append(f"the name is longer than {_MAX_NAME} characters, too long for its pods' names")
    if faults:
        raise InputError(f"Cannot make the NCCL test job {test.name!r}: {'; '.join(faults)}.")
