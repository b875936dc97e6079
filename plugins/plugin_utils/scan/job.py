# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's objects: one job with long-running workers, and a small pod per round that runs all its mpiruns. PRIVATE.

The job is that of the NCCL test (see job.py) without its launcher's work. A round's pod has no GPU and no API access;
it shares the job's ssh keys. Each line begins with the trial's id and ``> ``, so that one log serves all trials.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import ports
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.job import SAYS, debug_filter, info_only, unreached

ROLE = "scan-round"
"""Value of the role label of a round's pod."""
HOSTFILE = "@HOSTFILE@"
"""Placeholder in the commands for the trial's hostfile."""
NOT_REACHED, NO_DEVICE, TIMED_OUT = 97, 96, 124
"""Exit codes of a trial: a worker's sshd is not reached; the rail's device is missing; GNU timeout ended it."""
SCRIPT = "scan.sh"
"""Wrapper in the workers that starts the test program on every rank."""
LINE = 3800
"""Characters of a line that are kept: a write of up to 4096 bytes is atomic."""
_FILES = "/etc/gpuops-round"
_KEYS = {
    "volcano": (("id_rsa", "id_rsa"), ("id_rsa.pub", "id_rsa.pub")),
    "mpi": (("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub")),
}
"""Key of the job's Secret -> name of the file, as each controller writes it."""
_SAME = ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy")
"""Fields of the launcher's container that a round's has too."""
_LINE = re.compile(r"([a-z]\d*(?:-\d+)*)> ?(.*)", re.DOTALL)
_EXIT = re.compile(r"gpuops: exit (\d+) after (\d+) s")


@dataclass(frozen=True)
class Command:
    """How to run a kind of trial. ``mpirun``: argv with HOSTFILE in it, up to the program; ``args``: the program's."""

    mpirun: tuple[str, ...]
    args: tuple[str, ...]
    timeout: int
    """Seconds for one trial."""
    info: tuple[int, int] = (0, 1)
    """First and number of the ranks that print NCCL's INFO lines; after the last comes rank 0. All ranks of 500 pairs
    would exceed what a node keeps of a log."""
    reach: int = 0
    """Seconds for which the trial waits for its workers; 0 = they were reached before."""


# ---- the workers ---------------------------------------------------------------------------------------------------


def workers_only(objects: Sequence[Json], seconds: int) -> list[Json]:
    """The NCCL test's objects as a job whose workers run for ``seconds`` and wait for rounds.

    There is no gang and there are no policies: neither a full node nor a failed worker may affect the others.
    DataError if the objects contain no job of a known launcher.
    """
    found = []
    for obj in objects:
        if obj["kind"] == "ConfigMap":
            found.append(_files(obj))
        elif obj["kind"] == "Job":
            found.append(_volcano(obj))
        elif obj["kind"] == "MPIJob":
            found.append(_mpi(obj, seconds))
        elif obj["kind"] != "PodGroup":
            found.append(copy.deepcopy(obj))
    if not any(obj["kind"] in ("Job", "MPIJob") for obj in found):
        raise DataError("Cannot create the workers of a scan: the NCCL test has neither a Volcano Job nor an MPIJob.")
    return found


def _files(obj: Json) -> Json:
    kept = {key: text for key, text in obj["data"].items() if key not in ("launcher.sh", "rank.sh", "hostfile")}
    return {**obj, "data": {**kept, SCRIPT: rank_script()}}


def _volcano(job: Json) -> Json:
    job = copy.deepcopy(job)
    spec = job["spec"]
    spec.pop("policies", None)
    spec["minAvailable"] = 1
    spec["tasks"] = [task for task in spec["tasks"] if task["name"] == "worker"]
    for task in spec["tasks"]:
        task.pop("policies", None)
        task["minAvailable"] = 1
    return job


def _mpi(job: Json, seconds: int) -> Json:
    """The MPI Operator requires a launcher, so it sleeps."""
    job = copy.deepcopy(job)
    spec = job["spec"]
    spec["launcherCreationPolicy"] = "AtStartup"
    spec["runPolicy"].pop("schedulingPolicy", None)
    pod = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    for container in pod["containers"]:
        container["command"] = ["/bin/sleep", str(seconds)]
        container["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return job


def rank_script() -> str:
    """``scan.sh FIRST COUNT PCI PROGRAM ...``: INFO lines from COUNT ranks only; with PCI, one RDMA device only.

    The device is found by the PCI address of its port on each node, a VF by its PF's, as names of VFs have no fixed
    order. The environment overrides /etc/nccl.conf.
    """
    return f"""first=$1 count=$2 want=$3
shift 3
{info_only(("first", '"$count"'))}
if [ -n "$want" ]; then
  hca=
  for path in /sys/class/infiniband/*; do
    at=$path/device
    [ ! -e "$at/physfn" ] || at=$at/physfn
    at=$(readlink -f "$at")
    [ "${{at##*/}}" != "$want" ] || hca=${{path##*/}}
  done
  if [ -z "$hca" ]; then
    echo "gpuops: rail: no RDMA device of port $want on $(hostname)"
    exit {NO_DEVICE}
  fi
  export NCCL_IB_HCA="=$hca"
fi
{debug_filter()}
{ports.script()}
exec "$@"
"""


# ---- a round -------------------------------------------------------------------------------------------------------


def trial_word(ident: str, kind: str, workers: Sequence[int], pci: str = "") -> str:
    """A trial as the lanes file has it. ``workers``: indexes of the hosts; ``pci``: the port of a rail trial."""
    return f"{ident}|{kind}|{pci}|{','.join(map(str, workers))}"


def round_objects(
    job: Json,
    launcher: str,
    name: str,
    lanes: Sequence[Sequence[str]],
    *,
    script: str,
    hosts: Sequence[str],
    seconds: int,
    template: Json,
    requests: Mapping[str, str],
) -> list[Json]:
    """ConfigMap and Pod of one round, both owned by ``job`` (as the API server returned it).

    ``lanes``: words of trial_word; ``script``: of round_script; ``hosts``: worker names by index; ``seconds``: after
    which the pod is ended; ``template``: the launcher's pod template of the NCCL test, for image, tolerations and pull
    secrets; ``requests``: of the pod, as fabric.beside returns them.
    """
    meta = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}
    labels = {**(template.get("metadata") or {}).get("labels", {}), **_own_labels(meta), ROLE_LABEL: ROLE}
    common = {"name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [owner]}
    data = {
        "round.sh": script,
        "hosts": "".join(f"{host}\n" for host in hosts),
        "lanes": "".join(f"{' '.join(lane)}\n" for lane in lanes),
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": common, "data": data}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": common}
    return [config, {**pod, "spec": _round_pod(template["spec"], meta["name"], name, launcher, seconds, requests)}]


def _own_labels(meta: Json) -> dict[str, str]:
    """Only our labels: with the job's others, a controller would adopt the pod."""
    kept = ("app.kubernetes.io/", "gpuops.rdma/")
    return {key: value for key, value in (meta.get("labels") or {}).items() if key.startswith(kept)}


def _round_pod(base: Json, job: str, name: str, launcher: str, seconds: int, requests: Mapping[str, str]) -> Json:
    spec = copy.deepcopy(base)
    for key in ("schedulerName", "hostname", "subdomain", "initContainers"):
        spec.pop(key, None)
    # On a worker's node, which already has the image.
    beside = {
        "labelSelector": {"matchLabels": {"gpuops.rdma/test": job, ROLE_LABEL: "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    wish = [{"weight": 100, "podAffinityTerm": beside}]
    spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
    items = [{"key": key, "path": path} for key, path in _KEYS[launcher]]
    spec["volumes"] = [
        {"name": "round", "configMap": {"name": name}},
        {"name": "ssh", "secret": {"secretName": f"{job}-ssh", "defaultMode": 0o600, "items": items}},
    ]
    container = {key: value for key, value in spec["containers"][0].items() if key in _SAME}
    spec["containers"] = [
        {
            **container,
            "name": "launcher",
            "command": ["/bin/bash", f"{_FILES}/round.sh"],
            "resources": {"requests": dict(requests)},
            "volumeMounts": [
                {"name": "round", "mountPath": _FILES},
                {"name": "ssh", "mountPath": "/root/.ssh", "readOnly": True},
            ],
        }
    ]
    spec.update(restartPolicy="Never", automountServiceAccountToken=False, activeDeadlineSeconds=seconds)
    return spec


def round_script(
    *,
    slots: int,
    port: int,
    program: str,
    folders: Sequence[str],
    commands: Mapping[str, Command],
    parallel: int,
    files: str,
    launch: str,
) -> str:
    """The script of a round's pod: runs up to ``parallel`` lanes at a time, and the trials of a lane in order.
    ``files``: the workers' folder with scan.sh; ``launch``: ``find_mpirun`` of the test, with ``fail``."""
    runs = "\n".join(_run_function(kind, command, files) for kind, command in commands.items())
    reaches = " ".join(f"[{kind}]={command.reach}" for kind, command in commands.items())
    paths = " ".join(f"{folder}/{program}" for folder in folders)
    return f"""set -u
fail() {{ echo "{SAYS}$1"; exit {NOT_REACHED}; }}
{launch}
program=$(command -v {program} || true)
for path in {paths}; do [ -n "$program" ] || [ ! -x "$path" ] || program=$path; done
[ -n "$program" ] || fail "the image has no {program}"
export_path=${{LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH}}
declare -A reach=({reaches})
mapfile -t hosts <{_FILES}/hosts
{runs}
{unreached(port)}
reached() {{
  local until=$((SECONDS + $2)) said
  until said=$(timeout 5 /bin/bash -c "exec 3<>/dev/tcp/$1/{port}" 2>&1); do
    if [ "$SECONDS" -ge "$until" ]; then
      unreached "$1" "$2" "$said"
      return 1
    fi
    sleep 1
  done
}}
body() {{
  local i
  for i in ${{4//,/ }}; do
    [ "${{reach[$2]}}" = 0 ] || reached "${{hosts[i]}}" "${{reach[$2]}}" || return {NOT_REACHED}
    echo "${{hosts[i]}} slots={slots}" >>"$5"
  done
  "run_$2" "$5" "$3"
}}
marked() {{
  local line
  while IFS= read -r line || [ -n "$line" ]; do printf '%s> %s\\n' "$1" "${{line:0:{LINE}}}"; done
}}
trial() {{
  local id kind pci nodes file code began=$SECONDS
  IFS='|' read -r id kind pci nodes <<<"$1"
  file=$(mktemp)
  body "$id" "$kind" "$pci" "$nodes" "$file" 2>&1 </dev/null | marked "$id"
  code=${{PIPESTATUS[0]}}
  rm -f "$file"
  echo "$id> gpuops: exit $code after $((SECONDS - began)) s"
}}
running=0
while read -r lane; do
  if [ "$running" -ge {parallel} ]; then wait -n || true; running=$((running - 1)); fi
  for word in $lane; do trial "$word"; done &
  running=$((running + 1))
done <{_FILES}/lanes
wait
echo "gpuops: round ended"
"""


def _run_function(kind: str, command: Command, files: str) -> str:
    launch = '"$mpirun" ' + shlex.join(command.mpirun[1:]).replace(shlex.quote(HOSTFILE), '"$1"')
    launch += ' "${runtime[@]}"'
    wrapper = f'/bin/bash {files}/{SCRIPT} {command.info[0]} {command.info[1]} "$2"'
    args = shlex.join(command.args)
    return f'run_{kind}() {{\n  timeout -k 10 {command.timeout} {launch} $export_path {wrapper} "$program" {args}\n}}'


# ---- its log -------------------------------------------------------------------------------------------------------


def of_line(line: str) -> tuple[str, str]:
    """(trial id, line without the id); the id is "" for a line of the round itself."""
    found = _LINE.fullmatch(line)
    return (found[1], found[2]) if found else ("", line)


def exit_of(text: str) -> Optional[tuple[int, int]]:
    """(exit code, seconds) from a trial's last line; None for any other line."""
    found = _EXIT.fullmatch(text.strip())
    return (int(found[1]), int(found[2])) if found else None
