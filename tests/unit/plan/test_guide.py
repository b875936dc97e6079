# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profile guide-2024 with rdma_guide_literal, against the guide's own manifests and commands, field by field: what
differs stands in docs/profiles.md with its reason."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.leftovers import ClusterObjects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight, resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import AddressPool, Attachment, Namespace
from support.paths import FIXTURES, ROOT
from support.plan_samples import A100, H100, cluster, survey, whole

Json = dict[str, Any]
GUIDE: Json = yaml.safe_load((FIXTURES / "guide/guide_2024.yml").read_text("utf-8"))
DEFAULT = Namespace("default")


def planned(shape: str = H100, seen: Any = None, **asked: Any) -> Plan:
    made = whole(
        cluster(3, shape),
        seen=seen or survey(namespaces=[DEFAULT]),
        **{"profile": "guide-2024", "guide_literal": True, **asked},
    )
    assert made.faults == []
    return made


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, value as text) of every leaf; items of a list by their type, name or key, else by their place."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from flat(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            keys = [key for key in ("type", "name", "key") if isinstance(one, dict) and key in one]
            yield from flat(one, f"{path}[{one[keys[0]] if keys else place}]")
    else:
        yield path, json.dumps(value) if isinstance(value, (dict, list, bool)) else str(value)


def release(plan: Plan, name: str) -> Json:
    one = plan.releases[name]
    return {
        "release": one.name,
        "namespace": one.namespace,
        "chart": f"{next(alias for alias, url in GUIDE['repos'].items() if url == one.repo)}/{one.chart}",
        "version": one.version,
        "values": one.values,
    }


def found(plan: Plan, stage: str, kind: str, name: str, namespace: str = "") -> Json:
    """An object of the plan without our labels, which every object of ours has."""
    (one,) = [
        item
        for item in plan.objects[stage]
        if (item["kind"], item["metadata"]["name"]) == (kind, name)
        and namespace in ("", item["metadata"].get("namespace"))
    ]
    meta = {key: value for key, value in one["metadata"].items() if key != "labels"}
    return {**one, "metadata": meta}


def mounted(pod: Json) -> list[Json]:
    """Volumes, as the facts have them."""
    volumes = []
    for one in pod["volumes"]:
        if "emptyDir" in one:
            volumes.append({"name": one["name"], "memory": one["emptyDir"]["sizeLimit"]})
        else:
            volumes.append({"name": one["name"], "configMap": one["configMap"]["name"]})
    return volumes


def task(job: Json, name: str) -> Json:
    (one,) = [one for one in job["spec"]["tasks"] if one["name"] == name]
    spec = one["template"]["spec"]
    (container,) = spec["containers"]
    kept = {key: value for key, value in spec.items() if key not in ("containers", "volumes", "affinity")}
    made: Json = {key: one[key] for key in ("name", "replicas", "minAvailable", "policies") if key in one}
    keys = ("name", "image", "workingDir", "ports", "securityContext", "resources")
    made["spec"] = {**kept, "volumes": mounted(spec)}
    made["container"] = {key: container[key] for key in keys if key in container}
    if annotations := one["template"]["metadata"].get("annotations"):
        networks = annotations[nccl_job.fabric.NETWORKS].split(",")
        made["annotations"] = {nccl_job.fabric.NETWORKS: f"{len(networks)} times {', '.join(sorted(set(networks)))}"}
        made["container"]["mounts"] = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    return made


def arguments(words: list[str]) -> tuple[Json, Json]:
    """(mpirun's options, the variables that it passes on)."""
    options, env = {}, {}
    while words:
        option = f"--{words.pop(0).lstrip('-')}"
        if option == "--x":
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        elif option == "--mca":
            option = f"--mca {words.pop(0)}"
            options[option] = words.pop(0)
        else:
            options[option] = words.pop(0) if words and not words[0].startswith("-") else ""
    return options, env


def ours(plan: Plan) -> Json:
    """What a run makes, in the form of the guide's facts."""
    network = found(plan, "sriov", "NetworkAttachmentDefinition", "oci-rdma-sriov", "default")
    network["spec"] = {"config": json.loads(network["spec"]["config"])}
    topology = found(plan, "nccl_topology", "ConfigMap", "topology")
    daemonset = found(plan, "vf_config", "DaemonSet", "gpuops-vf-config")
    test = choice.job_of(plan, plan.tests[0], "all_reduce")
    job = nccl_job.volcano_job(test)
    options, env = arguments([*nccl_job.mpirun(test)[1:], *nccl_job.runtime(test, 4)])
    args = nccl_job.program_args(test)
    spec = {key: value for key, value in job["spec"].items() if key != "tasks"}
    return {
        "gpu_operator": release(plan, "gpu_operator"),
        "network_operator": release(plan, "network_operator"),
        "network": network,
        "pool": found(plan, "sriov", "IPPool", "default"),
        "vf_config": {"kind": "DaemonSet", "metadata": daemonset["metadata"]},
        "topology": {"kind": "ConfigMap", "metadata": topology["metadata"], "keys": list(topology["data"])},
        "volcano": {key: value for key, value in release(plan, "batch").items() if key not in ("values", "version")},
        "repos": GUIDE["repos"],
        "job": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {"name": job["metadata"]["name"], "namespace": job["metadata"]["namespace"]},
            "spec": spec,
            "master": task(job, "launcher"),
            "worker": task(job, "worker"),
            "mpirun": options,
            "env": {**env, **nccl_job.nccl_env(test)},
            "program": {"name": test.program, **dict(zip(args[::2], args[1::2]))},
        },
    }


def reasons() -> dict[str, str]:
    """Pattern of fields -> why they differ, of docs/profiles.md."""
    text = (ROOT / "docs/profiles.md").read_text("utf-8").partition("## The guide, literally")[2].partition("\n## ")[0]
    return {
        field: row.split("|")[-2].strip()
        for row in re.findall(r"(?m)^\| `.*$", text)
        for field in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path.replace("[", "("), pattern.replace("[", "("))


def test_every_difference_from_the_guide_has_its_reason_and_every_reason_a_difference() -> None:
    theirs, mine = dict(flat(GUIDE)), dict(flat(ours(planned())))
    differing = {path for path in {*theirs, *mine} if theirs.get(path) != mine.get(path)}
    known = reasons()
    assert all(known.values())
    unknown = {
        path: (theirs.get(path), mine.get(path))
        for path in sorted(differing)
        if not any(matches(path, pattern) for pattern in known)
    }
    assert unknown == {}
    assert [one for one in known if not any(matches(path, one) for path in differing)] == []
    assert len(set(theirs) - differing) > 70, "most of it is as in the guide"


def test_the_users_own_choices_win_over_the_guide() -> None:
    made = planned(network_name="fabric", ip_pool_block=32, launcher="mpi", nccl_env={"NCCL_CROSS_NIC": "1"})
    assert (made.network_attachment, made.ip_pool.block, made.launcher) == ("gpuops-nccl/fabric", 32, "mpi")
    assert settings.overrides(made.tests[0].settings)["NCCL_CROSS_NIC"] == "1"
    assert "NCCL_CROSS_NIC=1 (rdma_nccl_env)" in settings.words(made.tests[0])
    assert "NCCL_NET_PLUGIN=none (profile guide-2024)" in settings.words(made.tests[0])


def test_without_the_wish_the_profile_is_as_before() -> None:
    made = planned(guide_literal=False)
    assert (made.network_attachment, made.ip_pool.name, settings.words(made.tests[0])) == (
        "gpuops-nccl/rdma-vf",
        "gpuops-rdma",
        [],
    )


def test_a100_has_its_own_device_and_file() -> None:
    made = planned(A100)
    values = made.releases["network_operator"].values["sriovDevicePlugin"]["resources"]
    assert [one["devices"] for one in values] == [["101a"]]
    assert "topo.xml" in found(made, "nccl_topology", "ConfigMap", "topology")["data"]


def test_what_the_run_makes_itself_is_nothing_left_over() -> None:
    name = ObjectName("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "default", "oci-rdma-sriov")
    there = {"apiVersion": name.api_version, "kind": name.kind, "metadata": {"name": name.name, "namespace": "default"}}
    seen = survey(namespaces=[DEFAULT], left=ClusterObjects(objects=(there,)))
    made = planned(seen=seen)
    assert (made.leftovers, [item.name for item in made.handmade]) == ((), [name])
    assert not any(adoption.adopted(made, obj) for obj in made.objects["sriov"]), "only where the user says so"
    other = planned(seen=seen, guide_literal=False)
    assert ([item.name for item in other.leftovers], other.handmade) == ([name], ())
    labelled = {**there, "metadata": {**there["metadata"], "labels": OWNED}}
    assert planned(seen=survey(namespaces=[DEFAULT], left=ClusterObjects(objects=(labelled,)))).handmade == ()


def test_what_the_guide_made_by_hand_is_taken_over_where_the_user_says_so() -> None:
    """All three objects, and a second run finds them as ours."""
    places = [
        ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "default", "oci-rdma-sriov"),
        ("nv-ipam.nvidia.com/v1alpha1", "IPPool", "network-operator", "default"),
        ("v1", "ConfigMap", "default", "topology"),
    ]
    there = [ObjectName(*place).empty for place in places]
    there[1]["spec"], there[2]["data"] = {"subnet": "192.168.0.0/16"}, {"topo.xml": "<system/>"}
    networks, pools = (
        [Attachment("default", "oci-rdma-sriov")],
        [AddressPool("IPPool", *places[1][2:], "192.168.0.0/16")],
    )
    seen = survey(namespaces=[DEFAULT], left=ClusterObjects(objects=tuple(there)), networks=networks, pools=pools)
    for adopt in (False, True):
        made = planned(seen=seen, adopt_policies=adopt)
        objects = [*made.objects["sriov"], *made.objects["nccl_topology"]]
        taken = [
            ObjectName(*place) for place in places for obj in objects if adoption.adopted(made, obj) and _at(obj, place)
        ]
        assert taken == ([ObjectName(*place) for place in places] if adopt else [])
        found = list(preflight.network_owner(preflight.PreflightView(made, seen, (), {}, {})))
        assert [(item.subject, item.severity) for item in found] == [
            (str(ObjectName(*place)), "info" if adopt else "error") for place in places
        ]
        assert all(("rdma_adopt_policies=true" in item.remedy) is not adopt for item in found)
        assert f"IPPool network-operator/default: {'' if adopt else 'not '}taken over" in resolve.text(made)


def _at(obj: Json, place: tuple[str, ...]) -> bool:
    meta = obj["metadata"]
    return (obj["apiVersion"], obj["kind"], meta.get("namespace"), meta["name"]) == place
