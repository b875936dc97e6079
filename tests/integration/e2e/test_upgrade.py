# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""upgrade.yml from the guide of 2024 to the current profile, watched, killed and gone on with; and with operators that
were installed by hand, drivers in containers, and an account with its rights alone."""

from __future__ import annotations

import base64
import contextlib
import datetime
import gzip
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import missing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm_records
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import plan as upgrade_plan
from gpuops_sandbox import account
from support import chart_repository, current, matrix, rights_out
from support.guide_objects import GUIDES_OWN
from support.paths import ROOT
from support.plays import Played

UPGRADE, ROLLBACK = "playbooks/upgrade.yml", "playbooks/rollback.yml"
KILLS = 20 if matrix.ALL else 6
SHAPE, VF, CORDON = "BM.GPU.H100.8", "nvidia.com/sriov_rdma_vf", "gpuops.rdma/cordoned-for-upgrade"
# The nodes stay those of the guide.
INPUTS = {"rdma_preflight_ignore": "node-image,cuda-driver", "rdma_host_checks": "false"}
SETTLED = {
    **INPUTS,
    "rdma_upgrade": "true",
    "rdma_adopt_policies": "true",
    "rdma_replace_releases": "true",
    "rdma_remove_leftovers": "true",
    "rdma_wave": "1",
    "rdma_upgrade_seconds": "1",
}


@contextlib.contextmanager
def watched(here: Any) -> Iterator[list[str]]:
    """Every change of the nodes while the block runs: what a node outside of a wave lost, and what was going on."""
    client = Client.connect({"kubeconfig": str(here.sandbox.kubeconfig)})
    lost: list[str] = []
    nodes, version = client.list_at("/api/v1/nodes")
    full = {node["metadata"]["name"]: int(node["status"]["allocatable"].get(VF, 0)) for node in nodes}
    ended = threading.Event()

    def follow() -> None:
        since = version
        while not ended.is_set():
            for _kind, node in client.watch("/api/v1/nodes", resource_version=since, timeout=2):
                since = node["metadata"].get("resourceVersion", since)
                if "status" not in node or not node.get("status", {}).get("allocatable"):
                    continue  # a bookmark
                name, count = node["metadata"]["name"], int(node["status"]["allocatable"].get(VF, 0))
                inside = CORDON in (node["metadata"].get("annotations") or {})
                if count < full.get(name, 0) and not inside:
                    lost.append(f"{name} has {count} of {full[name]} VFs and is in no wave")
                    lost[-1] += f"; {around(here, client, name)}"

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        try:
            yield lost
        finally:
            ended.set()
            following.result(60)


def around(here: Any, client: Client, node: str) -> str:
    """What tells why a node lost its VFs: the time, its device plugins, what the run did last."""
    plugins = [
        f"{pod['metadata']['name']} {'ends' if 'deletionTimestamp' in pod['metadata'] else pod['status'].get('phase')}"
        f" {pod['spec']['containers'][0]['image'].rpartition(':')[2]} of {pod['metadata']['creationTimestamp']}"
        for pod in client.list("/api/v1/pods", field_selector=f"spec.nodeName={node}")
        if pod["metadata"].get("labels", {}).get("app") == "sriovdp"
    ]
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%SZ")
    journal = max(here.folder.glob("*/run/journal.jsonl"), key=lambda path: path.stat().st_mtime)
    done = [json.loads(line)["task"] for line in journal.read_text().rpartition("\n")[0].splitlines()]
    writes = list(written_by(here.sandbox.log_file("audit").read_text().rpartition("\n")[0].splitlines()))
    return f"{now}, plugins {plugins}, {journal.parts[-3]} did {done[-3:]}, accounts' last writes {writes[-4:]}"


def killed(here: Any, when: str, **inputs: str) -> None:
    """Starts upgrade.yml and kills all of it as soon as its output shows ``when``."""
    process, log = here.playing(UPGRADE, report="killed", **inputs)
    shown(log, process, when)
    here.kill(process)


def revisions(here: Any) -> dict[str, set[str]]:
    """Node -> images of the operands of the GPU Operator on it."""
    pods = json.loads(here.kubectl("get", "pods", "-A", "-l", "app", "-o", "json"))["items"]
    found: dict[str, set[str]] = {}
    for pod in pods:
        made = any(ref["kind"] == "DaemonSet" for ref in pod["metadata"].get("ownerReferences", []))
        node = pod["spec"].get("nodeName")  # a pod that was just made has none yet
        if made and node and "deletionTimestamp" not in pod["metadata"]:
            found.setdefault(node, set()).update(one["image"] for one in pod["spec"]["containers"])
    return found


def toolkits(here: Any) -> dict[str, str]:
    """Node -> version of the toolkit on it."""
    return {
        node: image.rpartition(":")[2]
        for node, images in revisions(here).items()
        for image in images
        if "container-toolkit" in image
    }


def written(here: Any, *more: str) -> str:
    """What any write to an object of the operators changes, and to objects of the kinds ``more``."""
    kinds = ",".join(["ds,deploy,crd,secrets,clusterpolicies,nicclusterpolicies", *more])
    fields = ":.kind,:.metadata.namespace,:.metadata.name,:.metadata.uid,:.metadata.generation"
    found: str = here.kubectl("get", kinds, "-A", "--no-headers", "-o", f"custom-columns={fields}")
    return found


def the_same_end(here: Any) -> None:
    """Nothing is cordoned, held back or left of the guide."""
    assert not here.kubectl("get", "nodes", "--field-selector", "spec.unschedulable=true", "-o", "name").strip()
    kinds = "ds,cm,sa,ippools,net-attach-def"
    names = "custom-columns=:.kind,:.metadata.namespace,:.metadata.name"
    there = {tuple(line.split()) for line in here.kubectl("get", kinds, "-A", "--no-headers", "-o", names).splitlines()}
    assert not {"sriov-device-plugin", "sriovdp-config", "gpuops-rdma-cni"} & {name for _kind, _space, name in there}
    own = {(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]) for item in GUIDES_OWN}
    assert not own & there
    toolkit = here.kubectl("get", "ds", "nvidia-container-toolkit-daemonset", "-n", "gpu-operator", "-o", "json")
    assert json.loads(toolkit)["spec"]["updateStrategy"]["type"] == "RollingUpdate", "the operands are let go"


@pytest.mark.e2e
def test_from_the_guide_to_the_current_profile_in_waves(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3", "--profile", "guide-2024")
    guide = {"rdma_profile": "guide-2024", "rdma_host_checks": "false"}
    first = here.play("site.yml", "--skip-tags", "nccl_test", report="guide", **guide)
    assert first.code == 0, first.output[-3000:]
    here.apply(*GUIDES_OWN)
    old = toolkits(here)
    before = written(here, "ippools", "net-attach-def")

    # The plan is printed and nothing is changed without the variable.
    refused = here.play(UPGRADE, report="refused", **{**SETTLED, "rdma_upgrade": "false"})
    assert refused.code != 0 and "Say -e rdma_upgrade=true to do it" in refused.output
    for text in (
        f"release gpu_operator gpu-operator/gpu-operator: v23.9.1 -> {current.GPU}",
        f"release network_operator network-operator/network-operator: 23.10.0 -> {current.CHART}",
        "container-toolkit:v1.14.5-ubi8 -> nvcr.io/nvidia/k8s/container-toolkit:v1.20.0; impact: the container runtime",
        f"needs all nodes to be idle before the first change: Network Operator 23.10.0 -> {current.CHART}",
        "removed: DaemonSet network-operator/sriov-device-plugin",
        *(f"removed: {item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']}" for item in GUIDES_OWN),
        "3 waves of 3 nodes",
    ):
        assert text in refused.output, (text, refused.output[-6000:])
    assert written(here, "ippools", "net-attach-def") == before

    # Killed KILLS times, the last run in its second wave: the first has the new revision, no node outside has lost
    # anything. Pods of a pair would be made anew by every run.
    asked = with_its_rights(here, **SETTLED, rdma_release_resume="true")
    without_pair, dice = {**asked, "rdma_upgrade_pair": "false"}, random.Random(15)
    with watched(here) as lost:
        count = kills(
            here,
            lambda helm: dice.randint(*((5, 20) if helm else (1, 4))),
            KILLS - 4,
            f"nodes/{here.nodes()[0]}",
            **without_pair,
        )
        done = f"of older revisions replaced on {here.nodes()[1]}"
        killed(here, done, **asked)
        now = toolkits(here)
        assert now[here.nodes()[0]] != old[here.nodes()[0]]
        assert now[here.nodes()[2]] == old[here.nodes()[2]]
        cordoned = here.kubectl("get", "nodes", "--field-selector", "spec.unschedulable=true", "-o", "name").split()
        assert cordoned == [f"node/{here.nodes()[1]}"]
        rest = KILLS - count - 1
        # One write apart 17 kills fit in what is left; two apart 7, too few where Helm had taken few before.
        assert kills(here, lambda helm: 5 if helm else 1, rest, **without_pair) == rest
        resumed = here.play(UPGRADE, report="resumed", **asked)
    assert (resumed.code, resumed.verdict) == (0, "pass"), resumed.report.get("reason") or resumed.output[-4000:]
    assert "continues where an earlier run ended" in resumed.output
    assert f"replaced on {here.nodes()[0]}" not in resumed.output, "it was done"
    assert lost == []

    assert len(set(toolkits(here).values())) == 1 and set(toolkits(here).values()) != set(old.values())
    the_same_end(here)
    assert {node["vfs"]["allocatable"] for node in resumed.report["nodes"]} == {16}
    assert {stage["status"] for stage in resumed.report["stages"]} == {"ok"}
    # It is proven, and there is nothing more to do; what was done is known.
    again = here.play(UPGRADE, report="again", **asked)
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output
    assert account.refused(here.sandbox) == [], "a request that the plan does not announce"
    for name in here.nodes():
        assert re.search(
            rf"earlier: \S+Z: 1 node \({re.escape(name)}\) to gpu_operator {current.GPU}, ", again.output
        ), name


def with_its_rights(here: Any, *charts: str, **inputs: str) -> dict[str, str]:
    """The inputs, with an account that has the rights of their plan and no others."""
    planned = here.play(UPGRADE, *charts, "--tags", "plan", report="planned", **inputs)
    assert planned.code == 0, planned.output[-3000:]
    narrow = here.folder / "upgrade.kubeconfig"
    account.give(here.sandbox, account.read(here.folder / "planned" / "permissions" / "upgrade.yml"), narrow)
    return {**inputs, "rdma_kubeconfig": str(narrow)}


# ---- killed --------------------------------------------------------------------------------------------------------


MADE_UP = re.compile(r"(?<=-)[a-z0-9]{5}$")
"""What the API server adds to the name of a DaemonSet's pod: its successor counts as the same."""


def written_by(lines: Iterable[str]) -> Iterator[str]:
    """What accounts have written, of lines of the audit log."""
    for event in map(json.loads, lines):
        path, _sep, query = event["requestURI"].partition("?")
        changing = event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
        if changing and "dryRun" not in query and "selfsubject" not in path and "responseStatus" in event:
            yield f"{event['verb']} {MADE_UP.sub('', path)}"


def killed_after(here: Any, number: int, **inputs: str) -> tuple[int | None, list[str]]:
    """Kills upgrade.yml after that many writes: (its exit status if it ended before, its writes). Our own client
    does so from within, at once; Helm's writes are counted in the audit log."""
    done: list[str] = []
    rest = ""
    with here.sandbox.log_file("audit").open() as lines:
        lines.seek(0, os.SEEK_END)
        asked = ("--skip-tags", "nccl_test")
        process, log = here.playing(UPGRADE, *asked, report="killed", lives=number, **inputs)
        deadline = time.monotonic() + 1800
        while len(done) < number and process.poll() is None:
            *whole, rest = (rest + lines.read()).split("\n")
            done += written_by(whole)
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.02)
        here.kill(process)
        done += written_by((rest + lines.read()).split("\n")[:-1])
    code = process.wait()
    return (None if code == -signal.SIGKILL else code), done


def aged(here: Any) -> bool:
    """Makes the record that a killed Helm has left look an hour old; whether there is one."""
    old = (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    selector = "owner=helm,status in (pending-install,pending-upgrade)"
    found = json.loads(here.kubectl("get", "secrets", "-A", "-l", selector, "-o", "json"))["items"]
    for secret in found:
        document = helm_records.decode(secret)
        document["info"]["last_deployed"] = old
        packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(document).encode()))).decode()
        here.client.patch(here.client.path_of(secret), {"data": {"release": packed}})
    return bool(found)


def kills(here: Any, step: Callable[[bool], int], most: int = 500, until: str = "", **inputs: str) -> int:
    """Kills run after run, each a step of writes further, until one ends, so many were killed, or a write of one has
    ``until`` in its path; how many were killed. A run that gets no further than those before, as within Helm, has
    that many more. ``step``: how many, from whether Helm was at work."""
    number, seen = step(False), set[str]()
    for count in range(most):
        ended, writes = killed_after(here, number, **inputs)
        if ended is not None:
            assert ended == 0, (here.folder / "killed.log").read_text()[-4000:]
            return count
        if until and any(until in one for one in writes):
            return count + 1
        helm, write = aged(here), writes[-1] if writes else ""
        number = (number if helm or write in seen else 0) + step(helm)
        seen.add(write)
    return most


@pytest.mark.e2e
@matrix.only("killed after each write")
def test_killed_after_each_write_it_goes_on_to_the_same_end(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--profile", "guide-2024")
    guide = {"rdma_profile": "guide-2024", "rdma_host_checks": "false"}
    assert here.play("site.yml", "--skip-tags", "nccl_test", report="guide", **guide).code == 0
    here.apply(*GUIDES_OWN)
    # Pods of a pair would be made anew by every run.
    asked = {**SETTLED, "rdma_upgrade_pair": "false", "rdma_release_resume": "true"}
    asked = with_its_rights(here, **asked)
    with watched(here) as lost:
        count = kills(here, lambda _helm: 1, **asked)
    assert 60 < count < 500
    the_same_end(here)
    again = here.play(UPGRADE, report="again", **asked)
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output
    assert lost == []


# ---- operators that do not act -------------------------------------------------------------------------------------


@pytest.mark.e2e
@matrix.only("an operator that is dead, frozen, half updated or late")
def test_killed_and_continued_with_an_operator_that_is_dead_frozen_half_or_late(cluster: Any) -> None:
    """None of the changed fields is one that the collection knows of an operand."""
    here = cluster("--gpu-nodes", "2")
    host = {"rdma_mode": "host", "rdma_host_checks": "false"}
    assert here.play("site.yml", "--skip-tags", "nccl_test", **host).code == 0

    def asked(cpu: str) -> dict[str, str]:
        values = f"operator.resources.limits.cpu={cpu},daemonsets.priorityClassName=gpu-{cpu}"
        here.apply(priority_class(f"gpu-{cpu}"))
        return {**SETTLED, **host, "rdma_gpu_operator_values": values, "rdma_upgrade_pair": "false"}

    here.fault("add", "controller-dead:gpu-operator")
    killed(here, "Wait until the operator has written its operands", **asked("501m"))
    for how, before in (("dead", ""), ("stopped", "dead"), ("half", "stopped")):
        if before:  # the next one holds before: it would act in between
            here.fault("add", f"controller-{how}:gpu-operator")
            here.fault("clear", f"controller-{before}")
        found = here.play(UPGRADE, "--skip-tags", "nccl_test", report=how, **asked("501m"))
        assert found.code != 0 and found.verdict == "incomplete", f"{how}: {found.output[-3000:]}"
        assert "Late: operator: the GPU Operator has not acted since" in found.report["reason"]
        (unacted,) = [one for one in found.report["findings"] if one["id"] == "wait.not-acted"]
        assert (unacted["severity"], unacted["subject"][-9:]) == ("unknown", "/operator"), unacted
        words = ["(pod gpu-operator-", "not written again: "]
        began = ["lease 53822513.nvidia.com renewed", "successfully acquired lease gpu-operator/", "Starting"]
        words += began if how == "half" else ["which holds no lease"]  # the other two have not begun
        assert all(word in unacted["found"] for word in words), unacted
    here.fault("clear")
    here.fault("add", "controller-late:gpu-operator")
    for cpu in ("501m", "502m"):
        played = here.play(UPGRADE, "--skip-tags", "nccl_test", report=f"late-{cpu}", **asked(cpu))
        assert played.code == 0, played.output[-3000:]
        made = json.loads(here.kubectl("get", "ds", "-n", "gpu-operator", "-o", "json"))["items"]
        operands = [item for item in made if "nvidia.com/last-applied-hash" in item["metadata"]["annotations"]]
        classes = {item["spec"]["template"]["spec"]["priorityClassName"] for item in operands}
        assert classes == {f"gpu-{cpu}"} and len(operands) > 5
    again = here.play(UPGRADE, report="again", **asked("502m"))
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output


def priority_class(name: str) -> dict[str, Any]:
    meta = {"name": name}
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": 1}


# ---- from every place of a chart -----------------------------------------------------------------------------------


def operands_on(here: Any, node: str) -> set[str]:
    """Pods of the GPU Operator's toolkit and device plugin there."""
    apps = "app in (nvidia-container-toolkit-daemonset,nvidia-device-plugin-daemonset)"
    found: str = here.kubectl(
        "get", "pods", "-A", "-l", apps, "--field-selector", f"spec.nodeName={node}", "-o", "name"
    )
    return set(found.split())


@pytest.mark.e2e
@matrix.only("charts of every place")
@pytest.mark.parametrize("form", ["repository", "directory", "archive"])
def test_from_v26_3_3_to_v26_7_0_with_a_policy_that_was_edited(cluster: Any, form: str) -> None:
    here = cluster("--gpu-nodes", "2")
    old, new = (chart_repository.directory(here.folder, "gpu-operator", version) for version in ("v26.3.3", "v26.7.0"))
    archive = chart_repository.packed(here.folder, new)
    others = {"network_operator": str(CHART), "mpi_operator": str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")}

    def charts(place: Any) -> tuple[str, str]:
        return "-e", json.dumps({"rdma_charts": {"gpu_operator": place, **others}})

    quick = ("site.yml", "--skip-tags", "nccl_test")
    first = here.play(*quick, *charts(str(old)), report="first", rdma_host_checks="false")
    assert first.code == 0, first.output[-3000:]
    edited = {"spec": {"devicePlugin": {"env": [{"name": "MOFED_ENABLED", "value": "true"}]}}}
    by_hand = ("patch", "clusterpolicy", "cluster-policy", "--field-manager=kubectl-edit", "--type=merge")
    here.kubectl(*by_hand, "-p", json.dumps(edited))
    with chart_repository.repository(here.folder, archive) as served:
        places = {
            "repository": {"repo": served.url, "version": "v26.7.0"},
            "directory": str(new),
            "archive": str(archive),
        }
        asked = charts(places[form])
        refused = here.play(UPGRADE, *asked, report="refused", **{**SETTLED, "rdma_adopt_policies": "false"})
        assert refused.code != 0 and refused.changed() == []
        (field,) = [item for item in refused.report["findings"] if item["id"] == "preflight.policy-field"]
        assert "spec.devicePlugin.env" in field["found"] and "set by kubectl-edit" in field["found"]
        with watched(here) as lost:
            before = {node: operands_on(here, node) for node in here.nodes()}
            killed_when = f"of older revisions replaced on {here.nodes()[0]}"
            process, log = here.playing(UPGRADE, *asked, report="killed", **SETTLED)
            shown(log, process, killed_when)
            here.kill(process)
            assert operands_on(here, here.nodes()[1]) == before[here.nodes()[1]], (
                "what was edited waits for its wave, too"
            )
            done = here.play(UPGRADE, *asked, report="done", **SETTLED)
        assert (done.code, done.verdict) == (0, "pass"), done.report.get("reason") or done.output[-4000:]
        assert lost == []
        assert set(toolkits(here).values()) == {"v1.20.0"}
        again = here.play(UPGRADE, *asked, report="again", **SETTLED)
        assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output
        site = here.play(*quick, *asked, report="site", rdma_host_checks="false")
        assert (site.code, site.changed()) == (0, []), site.output[-3000:]
    policy = json.loads(here.kubectl("get", "clusterpolicy", "cluster-policy", "-o", "json"))["spec"]
    assert policy["devicePlugin"]["env"] == [{"name": "MOFED_ENABLED", "value": "false"}]


@pytest.mark.e2e
def test_up_back_and_up_again_with_the_record_of_the_upgrade(cluster: Any) -> None:
    """Of both operators, between the profiles previous and current. A node outside of a wave loses its VFs only in the
    three runs in which the Network Operator's own rollout replaces its device plugin, once in each."""
    here = cluster("--gpu-nodes", "2")
    before, after = (
        of_profile(here, "previous", "v26.3.3", "26.4.2"),
        of_profile(here, "current", current.GPU, current.CHART),
    )
    first = here.play("site.yml", "--skip-tags", "nccl_test", *before, report="first", rdma_host_checks="false")
    assert first.code == 0, first.output[-3000:]
    back = {**SETTLED, "rdma_rollback": "true"}
    refused = here.play(ROLLBACK, *before, report="without", **back)
    assert refused.code != 0 and "there is no record of an upgrade" in refused.output
    assert "changed=0" in refused.output

    with watched(here) as lost:
        # Killed in its first wave, and gone on with: the record is that of the state before it.
        process, log = here.playing(UPGRADE, *after, report="killed", **SETTLED)
        shown(log, process, f"of older revisions replaced on {here.nodes()[0]}")
        here.kill(process)
        assert "the way back is recorded in Secret gpuops-rdma/gpuops-way-back" in log.read_text()
        recorded = written_record(here)
        up = here.play(UPGRADE, *after, report="up", **SETTLED)
        assert (up.code, up.verdict) == (0, "pass"), up.report.get("reason") or up.output[-4000:]
        assert "way back: rollback.yml returns to gpu_operator v26.3.3, network_operator 26.4.2" in up.output
        assert set(toolkits(here).values()) == {"v1.20.0"} and written_record(here) == recorded

        # Refused before any change: other charts, without the variable, an edited record.
        unchanged = written(here)
        refused = here.play(ROLLBACK, *after, report="newer", **back)
        assert "but the rollback returns to v26.3.3" in refused.output and refused.code != 0, refused.output[-2500:]
        refused = here.play(ROLLBACK, *before, report="asked", **SETTLED)
        assert refused.code != 0 and "Say -e rdma_rollback=true" in refused.output
        assert f"gpu-operator/gpu-operator: {current.GPU} -> v26.3.3" in refused.output
        assert f"network-operator/network-operator: {current.CHART} -> 26.4.2" in refused.output
        gpus = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}}
        here.apply({**gpus, "spec": {}})
        refused = here.play(ROLLBACK, *before, report="gpucluster", **back)
        assert refused.code != 0 and "GPUCluster gpu-cluster: while it exists" in refused.output
        assert written(here) == unchanged
        here.kubectl("delete", "gpucluster", "gpu-cluster")
        record = ("secret", "gpuops-way-back", "-n", "gpuops-rdma")
        digest = recorded["metadata"]["annotations"]["gpuops.rdma/digest"]
        here.kubectl("annotate", *record, "--overwrite", "gpuops.rdma/digest=0")
        refused = here.play(ROLLBACK, *before, report="edited", **back)
        assert refused.code != 0 and "was edited" in refused.output and written(here) == unchanged
        here.kubectl("annotate", *record, "--overwrite", f"gpuops.rdma/digest={digest}")

        process, log = here.playing(ROLLBACK, *before, report="back-killed", **back)
        shown(log, process, f"of older revisions replaced on {here.nodes()[0]}")
        here.kill(process)
        down = here.play(ROLLBACK, *before, report="down", **back)
        assert (down.code, down.verdict) == (0, "pass"), down.report.get("reason") or down.output[-4000:]
        assert set(toolkits(here).values()) == {"v1.19.1"} and written_record(here)["data"] == recorded["data"]
        again = here.play(ROLLBACK, *before, report="again", **back)
        assert again.code == 0 and "rollback: nothing to change" in again.output and "changed=0" in again.output
        the_same_end(here)

        last = here.play(UPGRADE, *after, report="last", **SETTLED)
        assert (last.code, last.verdict) == (0, "pass"), last.report.get("reason") or last.output[-4000:]
        assert set(toolkits(here).values()) == {"v1.20.0"}
    rolled = {(one.split()[0], *re.findall(r"(\S+) did \[", one)) for one in lost}
    assert rolled <= {(node, run) for node in here.nodes() for run in ("killed", "back-killed", "last")}, lost
    assert all("did ['release', 'wait', 'manifest']" in one for one in lost), lost


MAJORS = [
    ("gpu-operator", "v25.10.1", "v26.3.3"),
    ("gpu-operator", "v26.3.3", current.GPU),
    ("network-operator", "25.10.0", "26.1.2"),
    ("network-operator", "26.1.2", "26.4.2"),
    ("network-operator", "26.4.2", current.CHART),
]
"""Steps between the majors of which ../shared/upstream has values and definitions."""
REFUSED = "25.10.0"
"""A VF may stay missing with this Network Operator (files/profiles/keys-rules.yml): no run installs it."""


@pytest.mark.e2e
@matrix.only("each step between majors")
@pytest.mark.parametrize(("chart", "old", "new"), MAJORS)
def test_each_major_up_back_and_up_again(cluster: Any, chart: str, old: str, new: str) -> None:
    """One node has a NodeMaintenance, another a user's pod with GPUs and VFs: both are left until they end."""
    here = cluster("--gpu-nodes", "4")
    beside = {"gpu-operator": "v26.3.3", "network-operator": "26.4.2"}
    before, after = (of_profile(here, "previous", *{**beside, chart: version}.values()) for version in (old, new))
    quick = ("site.yml", "--skip-tags", "nccl_test")
    if old == REFUSED:
        refused = here.play(*quick, *before, report="refused", rdma_host_checks="false")
        assert refused.code != 0 and "one VF stays missing" in refused.output
    first = here.play(*quick, *(after if old == REFUSED else before), report="first", rdma_host_checks="false")
    assert first.code == 0, first.output[-3000:]
    if old == REFUSED:
        network_operator_by_hand(here, new, old)
    maintained, used = here.nodes()[1:3]
    maintenance, job = node_maintenance(here, maintained), users_job(used)
    here.apply(maintenance, job)
    uid = here.json("kubectl", "get", "pod", "job")["metadata"]["uid"]

    process, log = here.playing(UPGRADE, *after, report="up", **SETTLED, rdma_busy="wait")
    shown(log, process, f"in use: {used} (pod default/job holds 8 nvidia.com/gpu, 16 {VF})")
    assert here.json("kubectl", "get", "pod", "job")["metadata"]["uid"] == uid
    here.kubectl("delete", "pod", "job", "--grace-period=0")
    code, output = process.wait(), log.read_text()
    if chart == "gpu-operator":
        assert (
            code != 0
            and f"Not upgraded: {maintained}: " in output
            and "NodeMaintenance default/work of team-a" in output
        )
        assert (
            output.count("of older revisions replaced on ")
            == output.count(f"perftest         {SHAPE}: pass: ") - 1
            == 3
        ), "one before, one a wave"
    else:  # its DaemonSets roll by themselves
        assert code == 0, output[-3000:]
    node = here.json("kubectl", "get", "node", maintained)
    assert not node["spec"].get("unschedulable") and CORDON not in node["metadata"].get("annotations", {})
    here.client.delete(here.client.path_of(maintenance))

    back = {**SETTLED, "rdma_rollback": "true"}
    for name, playbook, charts, inputs in (
        *([("rest", UPGRADE, after, SETTLED)] if chart == "gpu-operator" else []),
        ("down", ROLLBACK, before, back),
        ("last", UPGRADE, after, SETTLED),
    ):
        done = here.play(playbook, *charts, report=name, **inputs)
        assert (done.code, done.verdict) == (0, "pass"), done.report.get("reason") or done.output[-4000:]
        release = json.loads(here.run("helm", "list", "-A", "-o", "json", "-f", f"^{chart}$"))[0]
        assert release["chart"] == f"{chart}-{old if name == 'down' else new}"
    again = here.play(UPGRADE, *after, report="again", **SETTLED)
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output
    the_same_end(here)


def network_operator_by_hand(here: Any, there: str, wanted: str) -> None:
    """As a user brought the cluster to a release that no run installs: its chart, and its images in the policy."""
    chart, (found,) = (
        here.folder / f"network-operator-{wanted}",
        here.json("helm", "list", "-A", "-f", "network-operator"),
    )
    here.run("helm", "upgrade", found["name"], str(chart), "-n", found["namespace"], "--reuse-values")
    policy = here.json("kubectl", "get", "nicclusterpolicy", "nic-cluster-policy")
    spec = json.loads(json.dumps(policy["spec"]).replace(f"network-operator-v{there}", f"network-operator-v{wanted}"))
    here.kubectl("patch", "nicclusterpolicy", "nic-cluster-policy", "--type=merge", "-p", json.dumps({"spec": spec}))
    ready = ("--for=jsonpath={.status.state}=ready", "--timeout=300s")
    here.kubectl("wait", "nicclusterpolicy/nic-cluster-policy", *ready)


def users_job(node: str) -> dict[str, Any]:
    """A pod that holds GPUs and VFs of the node."""
    held = {"limits": {"nvidia.com/gpu": "8", VF: "16"}}
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    containers = [{"name": "main", "image": "users/job:1", "resources": held}]
    spec = {"nodeName": node, "tolerations": [taint], "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job", "namespace": "default"}, "spec": spec}


def node_maintenance(here: Any, node: str) -> dict[str, Any]:
    """That of a node, whose definition a chart's part has that no profile switches on."""
    crds = CHART / "charts" / "maintenance-operator-chart" / "crds" / "crds.yaml"
    here.kubectl("apply", "--server-side", "-f", str(crds))
    here.kubectl("wait", "--for=condition=Established", "crd/nodemaintenances.maintenance.nvidia.com")
    meta, spec = {"name": "work", "namespace": "default"}, {"nodeName": node, "requestorID": "team-a"}
    return {
        "apiVersion": "maintenance.nvidia.com/v1alpha1",
        "kind": "NodeMaintenance",
        "metadata": meta,
        "spec": spec,
    }


def of_profile(here: Any, profile: str, gpu: str, network: str) -> tuple[str, str]:
    """Inputs of that profile, with its charts."""
    charts = {"mpi_operator": str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")}
    for name, version in (("gpu-operator", gpu), ("network-operator", network)):
        place = here.folder / f"{name}-{version}"
        charts[name.replace("-", "_")] = str(
            place if place.is_dir() else chart_repository.directory(here.folder, name, version)
        )
    return "-e", json.dumps({"rdma_profile": profile, "rdma_charts": charts})


def written_record(here: Any) -> Any:
    """The Secret to which rollback.yml returns."""
    return json.loads(here.kubectl("get", "secret", "gpuops-way-back", "-n", "gpuops-rdma", "-o", "json"))


# ---- installed by hand ---------------------------------------------------------------------------------------------

OFED = {"image": "doca-driver", "repository": "nvcr.io/nvidia/mellanox", "version": "doca3.1.0-25.07-0.9.7.0-0"}
POLICY = {
    "apiVersion": "mellanox.com/v1alpha1",
    "kind": "NicClusterPolicy",
    "metadata": {"name": "nic-cluster-policy"},
    "spec": {"ofedDriver": OFED},
}


def installed_by_hand(here: Any) -> None:
    """Both charts with their defaults, and a policy."""
    old = chart_repository.directory(here.folder, "gpu-operator", "v26.3.3")
    here.run("helm", "install", "my-gpus", str(old), "-n", "gpus", "--create-namespace")
    here.run("helm", "install", "my-nics", str(CHART), "-n", "nics", "--create-namespace")
    manifest = here.folder / "policy.json"
    manifest.write_text(json.dumps(POLICY))
    here.kubectl("apply", "-f", str(manifest))
    ready = ("--for=jsonpath={.status.state}=ready", "--timeout=300s")
    for policy in ("nicclusterpolicy/nic-cluster-policy", "clusterpolicy/cluster-policy"):
        here.kubectl("wait", policy, *ready)


CHART = ROOT / "tests/sandbox/charts/current/network-operator"


@pytest.mark.e2e
def test_a_default_install_on_ocis_images_is_adopted(cluster: Any) -> None:
    """The operator finds the hosts' driver and withdraws its own pods, whose DaemonSet stays."""
    here = cluster("--gpu-nodes", "2")
    chart = chart_repository.directory(here.folder, "gpu-operator", current.GPU)
    here.run("helm", "install", "my-gpus", str(chart), "-n", "gpus", "--create-namespace")
    here.kubectl("wait", "clusterpolicy/cluster-policy", "--for=jsonpath={.status.state}=ready", "--timeout=300s")
    label = here.kubectl("get", "nodes", "-l", "nvidia.com/gpu.deploy.driver=pre-installed", "-o", "name").split()
    assert label == [f"node/{name}" for name in here.nodes()] and drivers(here) == {}
    daemonset = ("ds", "nvidia-driver-daemonset", "-n", "gpus")
    assert here.kubectl("get", *daemonset, "-o", "jsonpath={.status.desiredNumberScheduled}") == "0"

    charts = {"gpu_operator": str(chart), "mpi_operator": str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")}
    asked = {"rdma_mode": "host", "rdma_host_checks": "false", "rdma_charts": charts}
    adopted = here.play("site.yml", "--skip-tags", "nccl_test", "-e", json.dumps(asked), report="adopted")
    assert adopted.code == 0, adopted.output[-4000:]
    plan = run.read_plan(str(here.folder / "adopted" / "run" / "plan.json"))
    release = plan.releases["gpu_operator"]
    assert (plan.driver, release.action, release.name, release.namespace) == ("host", "adopt", "my-gpus", "gpus")
    for text in ("have no driver", "in addition to the driver", "reboot"):
        assert text not in adopted.output, (text, adopted.output[-4000:])
    assert not here.kubectl("get", *daemonset, "--ignore-not-found").strip()
    policy = json.loads(here.kubectl("get", "clusterpolicy", "cluster-policy", "-o", "json"))["spec"]
    assert policy["driver"]["enabled"] is False


def drivers(here: Any) -> dict[str, dict[str, str]]:
    """Node -> image of its driver and of its OFED."""
    pods = json.loads(here.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    found: dict[str, dict[str, str]] = {}
    for pod in pods:
        image = pod["spec"]["containers"][0]["image"]
        for name in ("/driver:", "/doca-driver:"):
            if name in image and "deletionTimestamp" not in pod["metadata"]:
                found.setdefault(pod["spec"]["nodeName"], {})[name] = image
    return found


@pytest.mark.e2e
@matrix.only("each right of an upgrade taken out")
def test_operators_installed_by_hand_with_their_drivers_and_narrow_rights(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--platform", "kubernetes")
    installed_by_hand(here)
    new = chart_repository.directory(here.folder, "gpu-operator", "v26.7.0")
    archives = [chart_repository.packed(here.folder, chart) for chart in (new, CHART)]
    with chart_repository.repository(here.folder, archives[0]) as served:
        charts = {"gpu_operator": {"repo": served.url, "version": "v26.7.0"}, "network_operator": str(archives[1])}
        batch = {"mpi_operator": str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")}
        upgraded(here, "-e", json.dumps({"rdma_charts": {**charts, **batch}}))


def upgraded(here: Any, *charts: str) -> None:
    """To the charts of a repository and of a ``.tgz``: planned, stopped in the first wave, gone on with."""
    first, second = here.nodes()
    before, unchanged, old = drivers(here), written(here), toolkits(here)
    asked = {**SETTLED, "rdma_driver": "operator", "rdma_ofed": "operator"}

    planned = here.play(UPGRADE, *charts, "--check", "--tags", "plan", report="planned", **asked)
    assert planned.code == 0, planned.output[-3000:]
    for text in (
        "release gpu_operator gpus/my-gpus: v26.3.3 -> v26.7.0",
        "driver on 2 nodes: nvcr.io/nvidia/driver:580.126.20",
        "state-OFED on 2 nodes: ",
        "2 waves of 2 nodes",
        "permissions/upgrade.yml",
    ):
        assert text in planned.output, (text, planned.output[-6000:])
    assert "needs all nodes to be idle" not in planned.output, "drivers restart in the waves, too"
    assert (drivers(here), written(here)) == (before, unchanged)
    narrow = here.folder / "upgrade.kubeconfig"
    manifest = account.read(here.folder / "planned" / "permissions" / "upgrade.yml")
    account.give(here.sandbox, manifest, narrow)
    each_right_is_named(here, manifest, narrow)
    asked["rdma_kubeconfig"] = str(narrow)

    # Helm has changed the operator's Deployment when it fails: the new operator finds its operands held back.
    with refused_images(here):
        failed = here.play(UPGRADE, *charts, report="failed", **asked)
    assert failed.code != 0 and "only known images" in failed.stage("upgrade_operators")["error"]
    assert "v26.7.0" in here.kubectl("get", "deploy", "gpu-operator", "-n", "gpus", "-o", "jsonpath={..image}")

    # The first wave does not come through: later ones are not touched, neither is their driver.
    here.fault("add", "gpu-missing:0")
    stopped = here.play(UPGRADE, *charts, report="stopped", **asked)
    assert stopped.code != 0 and "is failed: " in stopped.output, stopped.output[-4000:]
    error = stopped.stage("upgrade_waves")["error"]
    assert f"The wave of {first} stopped at" in error, stopped.output[-4000:]
    assert "though the operator is ready on this node" in error, "what other waves hold back does not hide it"
    now = drivers(here)
    assert now[second] == before[second] and not set(now[first].values()) & set(before[first].values())
    assert toolkits(here)[second] == old[second] != toolkits(here)[first], "nothing rolled while Helm had failed"
    here.fault("clear")

    # The second comes through slowly: a port of its node is worse than before.
    slow = slowed(here, second, *charts, **asked)
    assert f"The wave of {second} stopped at" in slow.stage("upgrade_waves")["error"], slow.output[-4000:]
    for text in ("ib_write_bw: ", "run upgrade.yml again", "To go back: ansible-playbook gpuops.rdma.rollback"):
        assert text in slow.stage("upgrade_waves")["error"], (text, slow.stage("upgrade_waves")["error"])
    cordoned = here.kubectl("get", "nodes", "--field-selector", "spec.unschedulable=true", "-o", "name").split()
    assert cordoned == [f"node/{second}"]

    resumed = here.play(UPGRADE, *charts, report="resumed", **asked)
    assert (resumed.code, resumed.verdict) == (0, "pass"), resumed.report.get("reason") or resumed.output[-4000:]
    assert re.search(rf"earlier: \S+Z: 1 node \({re.escape(first)}\) to .*: stopped: Wait for ", slow.output)
    assert re.search(
        rf"earlier: \S+Z: 1 node \({re.escape(second)}\) to .*: stopped: Measure every port ", resumed.output
    )
    assert drivers(here)[first] == drivers(here)[second] == now[first]
    policy = json.loads(here.kubectl("get", "clusterpolicy", "cluster-policy", "-o", "json"))["spec"]
    assert policy["driver"]["upgradePolicy"]["autoUpgrade"] is True, "let go, though the release keeps its own values"
    assert policy["daemonsets"].get("updateStrategy", "RollingUpdate") == "RollingUpdate"
    assert account.refused(here.sandbox) == [], "a request that the plan does not announce"

    again = here.play(UPGRADE, *charts, report="again", **asked)
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output


def each_right_is_named(here: Any, manifest: Any, kubeconfig: Any) -> None:
    """By preflight, or with the plan of the upgrade, which is refused before its first change."""
    plan = run.read_plan(str(here.folder / "planned" / "run" / "plan.json"))
    client = Client.connect({"kubeconfig": str(kubeconfig)})
    own = upgrade_plan.rights(plan)
    every = [*plan.permissions, *own, *permissions.of_grants(plan.grants)]
    cases = rights_out.single(every)
    chosen = cases if matrix.ALL else random.Random(15).sample([one for one in cases if one in own], 2)
    rights_out.Account(here.sandbox, manifest, every).each_is_named(
        client, chosen, lambda: [*rights.denied(client, plan), *permissions.texts(missing(client, own))]
    )


@contextlib.contextmanager
def refused_images(here: Any) -> Iterator[None]:
    """The cluster's own rules refuse another toolkit in the ClusterPolicy, which is what Helm changes last."""
    name = "known-images.example.test"
    rule = {
        "apiGroups": ["nvidia.com"],
        "apiVersions": ["*"],
        "resources": ["clusterpolicies"],
        "operations": ["UPDATE"],
    }
    same = "object.spec.toolkit.version == oldObject.spec.toolkit.version"
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "failurePolicy": "Fail"}
    spec["validations"] = [{"expression": same, "message": "only known images"}]
    binding = {"policyName": name, "validationActions": ["Deny"]}
    here.apply(
        {**group, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {**group, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    )
    yield
    kinds = "validatingadmissionpolicybindings,validatingadmissionpolicies"
    here.kubectl("delete", kinds, name)


def slowed(here: Any, node: str, *charts: str, **inputs: str) -> Any:
    """A run during which a port of the node gets slow, once its operands are of the new version."""
    process, log = here.playing(UPGRADE, *charts, report="slow", **inputs)
    shown(log, process, f"of older revisions replaced on {node}")
    here.fault("add", f"slow-nic:{here.nodes().index(node)}")
    code = process.wait()
    here.fault("clear")
    return Played(code, log.read_text(), json.loads((here.folder / "slow" / "report.json").read_text()))


def shown(log: Path, process: Any, text: str) -> None:
    """Waits until the output of the process has the text."""
    deadline = time.monotonic() + 900
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
