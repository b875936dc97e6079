# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the fields of the cluster that the plan and preflight depend on. PRIVATE to the collection.

The number of requests does not depend on the number of nodes but for the node list's pages.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy, owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners_io as node_owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption, installed, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import AddressPool, Attachment, Namespace, Survey

T = TypeVar("T")

BUILT_IN = ("apiextensions.k8s.io", "apps", "authorization.k8s.io", "batch", "rbac.authorization.k8s.io")
IPAM = "nv-ipam.nvidia.com/v1alpha1"
CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
WANTED_CRDS = {
    f"{plural}.{version.partition('/')[0]}": version.partition("/")[2]
    for (version, _kind), (plural, _namespaced) in KINDS.items()
    if "/" in version and version.partition("/")[0] not in BUILT_IN
}
"""CRD name -> the version that this collection uses."""


def survey(client: Client, mode: Mode = Mode.SRIOV) -> Survey:
    """Everything but the nodes, add-ons and leftovers; in mode host without what is compared with the VFs' network."""
    version = client.get("/version")
    groups = {
        group["name"]: [item["version"] for item in group.get("versions", [])]
        for group in client.get("/apis").get("groups", [])
    }
    found, known = policies(client, groups), served(client, groups)
    workloads = _readable(lambda: installed.workloads(client, ("deployments", "daemonsets")))
    working = node_owners.read(client, owners.kinds(node_owners.table(), known), strict=False)
    return Survey(
        server_version=version.get("gitVersion", ""),
        groups=tuple(sorted(groups)),
        served=known,
        releases=_readable(lambda: installed.releases(client)),
        workloads=workloads,
        namespaces=_readable(lambda: client.projected("/api/v1/namespaces", _namespace)),
        service_cidrs=_service_cidrs(client, groups) if mode.vfs else (),
        pools=_pools(client, groups) if mode.vfs else (),
        networks=_networks(client, groups) if mode.vfs else (),
        policies=tuple(found),
        cluster_policies=_names(found, "ClusterPolicy"),
        nic_cluster_policies=_names(found, "NicClusterPolicy"),
        owners=tuple(owners_io.found(client, known, workloads)),
        node_owners={name: found[0].text for name, found in working.objects.items()},
    )


def kept(run_dir: Path) -> Survey:
    """The survey that the plan left in the run folder. Raises InputError when it is absent or damaged."""
    path = run_dir / "survey.json"
    try:
        return Survey.from_json(run.read(path))
    except DataError as error:
        raise InputError(f"Cannot read {path}: {error}. Delete it and run again from the start.") from None


def _readable(call: Callable[[], list[T]]) -> tuple[T, ...]:
    try:
        return tuple(call())
    except (NotFound, Forbidden):
        return ()


def served(client: Client, groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """CRD name -> versions in which the server serves it, of the kinds that we use; missing ones are left out.

    Usually one request per group: the other versions are read only if ours is missing.
    """
    found: dict[str, tuple[str, ...]] = {}
    resources = functools.lru_cache(maxsize=None)(lambda path: _resources(client, path))
    for name, version in WANTED_CRDS.items():
        plural, _sep, group = name.partition(".")
        path = f"/apis/{group}"
        if version in groups.get(group, ()) and plural in resources(f"{path}/{version}"):
            found[name] = (version,)
            continue
        others = tuple(other for other in groups.get(group, ()) if plural in resources(f"{path}/{other}"))
        found.update({name: others} if others else {})
    return found


def _resources(client: Client, path: str) -> set[str]:
    try:
        return {item["name"] for item in client.get(path).get("resources", [])}
    except NotFound:
        return set()


def requested(client: Client, node: str) -> tuple[float, float]:
    """(cores, bytes) requested by the pods on a node, as the scheduler counts them."""
    path = client.path("v1", "Pod")
    selector = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    pods = client.projected(path, lambda pod: busy.requested(pod["spec"]), field_selector=selector)
    return sum(room.cpu for room in pods), sum(room.memory for room in pods)


def pods(client: Client) -> tuple[list[busy.PodUse], int]:
    """(all pods on nodes that request CPU or memory, priority of pods without a class); what may not be read is not
    there."""
    found = _readable(lambda: client.projected(client.path("v1", "Pod"), lambda pod: busy.holder(pod, ())))
    classes = _readable(lambda: client.list(client.path("scheduling.k8s.io/v1", "PriorityClass")))
    default = next((one["value"] for one in classes if one.get("globalDefault")), 0)
    return [one for one in found if one], int(default)


def _namespace(item: Json) -> Namespace:
    labels, status = item["metadata"].get("labels") or {}, item.get("status", {})
    holding = [one.get("message", "") for one in status.get("conditions", []) if one.get("status") == "True"]
    return Namespace(
        name=item["metadata"]["name"],
        phase=status.get("phase", ""),
        labels=labels,
        enforce=labels.get("pod-security.kubernetes.io/enforce", ""),
        ours=kube_objects.is_ours(item),
        reason="; ".join(holding),
    )


def _service_cidrs(client: Client, groups: Container[str]) -> Optional[tuple[str, ...]]:
    if "networking.k8s.io" not in groups or "servicecidrs" not in _resources(client, "/apis/networking.k8s.io/v1"):
        return ()
    try:
        items = client.list("/apis/networking.k8s.io/v1/servicecidrs")
    except Forbidden:
        return None
    return tuple(cidr for item in items for cidr in item.get("spec", {}).get("cidrs", []))


def _pools(client: Client, groups: Container[str]) -> Optional[tuple[AddressPool, ...]]:
    found: list[AddressPool] = []
    for kind, resource in (("IPPool", "ippools"), ("CIDRPool", "cidrpools")):
        if IPAM.partition("/")[0] not in groups:
            break
        try:
            items = client.list(f"/apis/{IPAM}/{resource}")
        except NotFound:  # a release of nv-ipam without CIDRPools
            continue
        except Forbidden:
            return None
        found += [
            AddressPool(
                kind=kind,
                namespace=item["metadata"]["namespace"],
                name=item["metadata"]["name"],
                subnet=str(item["spec"].get("subnet") or item["spec"].get("cidr") or ""),
                block=int(item["spec"].get("perNodeBlockSize") or 0),
                ours=kube_objects.is_ours(item),
            )
            for item in items
        ]
    return tuple(found)


def _networks(client: Client, groups: Container[str]) -> tuple[Attachment, ...]:
    def one(item: Json) -> Attachment:
        meta = item["metadata"]
        return Attachment(meta["namespace"], meta["name"], kube_objects.is_ours(item))

    path = client.path("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition")
    return _readable(lambda: client.projected(path, one)) if "k8s.cni.cncf.io" in groups else ()


def policies(client: Client, groups: Container[str]) -> list[Json]:
    """The ClusterPolicies and NicClusterPolicies, whole. Those that neither this collection nor a Helm release has made
    carry the openAPIV3Schema of their ``spec`` as ``schema``, {} where the definition cannot be read."""
    found: list[Json] = []
    for version, kind in POLICIES.values():
        group, _sep, name = version.partition("/")
        items = _readable(functools.partial(client.list, client.path(version, kind))) if group in groups else ()
        schema: Optional[Json] = None
        for item in items:
            if adoption.needs_schema({**item, "kind": kind}) and schema is None:
                schema = _schema(client, f"{KINDS[version, kind][0]}.{group}", name)
            found.append({**item, "apiVersion": version, "kind": kind, "schema": schema or {}})
    return found


def _names(policies: Iterable[Json], kind: str) -> tuple[str, ...]:
    return tuple(item["metadata"]["name"] for item in policies if item["kind"] == kind)


def _schema(client: Client, name: str, version: str) -> Json:
    try:
        definitions = client.list(client.path(*CRD), field_selector=f"metadata.name={name}")
    except Forbidden:  # what is a default is then not known
        return {}
    served = [item for one in definitions for item in one["spec"]["versions"] if item["name"] == version]
    whole = ((served[0].get("schema") or {}).get("openAPIV3Schema") or {}) if served else {}
    return dict((whole.get("properties") or {}).get("spec") or {})
