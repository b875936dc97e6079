# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether operators and their DaemonSets are what release and policy ask for. PRIVATE to the collection. Pure.

A policy's ``ready`` may be of an earlier spec, or of the release before: neither ClusterPolicy nor NicClusterPolicy
before 26.7 has an observedGeneration. So the operator's Deployment is compared with the plan's release, and each
DaemonSet with the policy: labels, images, variables, tolerations, ConfigMaps, digest of a configuration.
``nvidia.com/last-applied-hash`` covers the same spec, but only the operator can compute it.

Objects are DaemonSets and Deployments as rollout.workload() projects them; operands are entries of files/operands.yml.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, image_name
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import OUTDATED, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.gpu_operands import at

STATE_LABEL = "nvidia.network-operator.state"
CONFIG_HASH = "nvidia.network-operator.config-hash"
CHART_LABEL, OLM_OWNER = "helm.sh/chart", "olm.owner"
COMPONENT = "app.kubernetes.io/component"
_SELECTORS = ("app", "app.kubernetes.io/part-of")
"""Labels of ClusterPolicy.spec.daemonsets that the operator leaves out, since selectors use them."""
SRIOV_OPERATOR, SRIOV_DAEMON_IMAGE = "sriov-network-operator", "SRIOV_NETWORK_CONFIG_DAEMON_IMAGE"


# ---- the operator --------------------------------------------------------------------------------------------------


def deployments_of(release: Release, deployments: Iterable[Json]) -> list[Json]:
    """The release's own Deployments: those that run one of its images, or belong to a ClusterServiceVersion of its
    package."""
    if release.action == "olm":
        owner = f"{release.chart}."
        return [item for item in deployments if _labels(item).get(OLM_OWNER, "").startswith(owner)]
    return running(release.images, deployments)


def running(images: Collection[str], deployments: Iterable[Json]) -> list[Json]:
    """The Deployments that run one of these images, whatever its registry and tag."""
    return [item for item in deployments if any(image_name(image) in images for image in item["images"])]


def version_of(deployment: Json, release: Release) -> str:
    """The version of the release's chart that made the Deployment; "" where it does not say."""
    return _version(_labels(deployment), release)[0]


def _labels(obj: Json) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def operator(release: Release, deployments: Iterable[Json], exact: bool = True) -> Optional[Status]:
    """Whether the release's Deployment has rolled out; None where the plan does not know how to find it.

    ``exact``: it must also be of the release's version; with OLM, of the ClusterServiceVersion that the plan wants.
    """
    if not release.images and release.action != "olm":
        return None
    found = deployments_of(release, deployments)
    if not found:
        what = "is of" if release.action == "olm" else "runs"
        names = release.chart if release.action == "olm" else ", ".join(release.images)
        return Status(WAITING, f"no Deployment in namespace {release.namespace} {what} {names} yet")
    statuses = [_operator(item, release, exact) for item in found]
    return next((status for status in statuses if not status.ready), statuses[0])


def _operator(deployment: Json, release: Release, exact: bool) -> Status:
    if exact:
        name = deployment["metadata"].get("name", "")
        there, wanted = _version(_labels(deployment), release)
        if there and wanted and there != wanted and versions.parse(there) != versions.parse(wanted):
            return Status(WAITING, f"Deployment {name} is still version {there}, not {wanted}", OUTDATED)
    status = readiness.deployment(deployment)
    if status.ready:
        return status
    why = f"Deployment {deployment['metadata'].get('name', '')}: {status.why}"
    return Status(status.state, why, status.code, status.stuck, status.progress)


def _version(labels: Mapping[str, str], release: Release) -> tuple[str, str]:
    """The version of a Deployment with these labels, and the wanted one; "" where either is unknown. An add-on's number
    is Oracle's, not its chart's."""
    if release.addons:
        return "", ""
    if release.action == "olm":
        return labels.get(OLM_OWNER, ""), release.version
    chart = labels.get(CHART_LABEL, "")
    if release.action in ("install", "upgrade", "adopt", "none") and chart.startswith(f"{release.chart}-"):
        return chart[len(release.chart) + 1 :], release.version
    return "", ""


# ---- operands ------------------------------------------------------------------------------------------------------


def image(part: Any, common: Any = None) -> str:
    """The image that a section of a policy names, with what the policy says for all; "" where it names none."""
    if not isinstance(part, Mapping):
        return ""
    common = common if isinstance(common, Mapping) else {}
    name = str(part.get("image") or "")
    repository, version = (str(part.get(key) or common.get(key) or "") for key in ("repository", "version"))
    if not name or not (repository or version):
        return name
    return f"{repository}/{name}{'@' if version.startswith('sha256:') else ':'}{version}"


def gpu_operand(
    operand: Json, spec: Json, daemonset: Json, operator_env: Mapping[str, Sequence[str]], rewritten: Collection[str]
) -> str:
    """What a DaemonSet of the GPU Operator does not carry yet of the ClusterPolicy's ``spec``; "" = all is there.

    ``operator_env``: variables of the operator's Deployment. ``rewritten``: variables whose value is the operator's.
    """
    labels, own = _labels(daemonset), {COMPONENT: operand["component"]} if "component" in operand else {}
    for key, value in (at(spec, "daemonsets.labels") or {}).items():
        if key not in _SELECTORS and labels.get(key) not in (value, own.get(key, value)):
            return f"{key}={value} (it is {labels.get(key) or 'not set'})"
    if not operand:
        return ""
    wanted = image(at(spec, operand["section"])) or _first(operator_env.get(operand.get("image_env", "")))
    if wanted and not _runs(daemonset, wanted):
        return f"image {wanted} (it runs {_shown(daemonset)})"
    for path in operand.get("env") or ():
        for entry in at(spec, path) or ():
            name, value = str(entry.get("name")), entry.get("value")
            there = daemonset["env"].get(name)
            if there is None or (value is not None and name not in rewritten and str(value) not in there):
                return f"{path} {name}"  # values may be secret
    return gpu_operands.settings(operand, spec, daemonset) or gpu_operands.tolerations(spec, daemonset)


def nic_operand(section: str, spec: Json, daemonsets: Sequence[Json]) -> str:
    """What none of the DaemonSets of a section's state carries yet of the NicClusterPolicy's ``spec``; "" = one does.

    Operands that an older release made under another name may stand beside it.
    """
    part = at(spec, section)
    wanted = image(part, spec.get("global"))
    if not wanted or not daemonsets:
        return ""
    new = [item for item in daemonsets if _runs(item, wanted)]
    if not new:
        return f"image {wanted} (it runs {_shown(daemonsets[0])})"
    hashes = [(item.get("annotations") or {}).get(CONFIG_HASH) for item in new]
    config = part.get("config")
    if isinstance(config, str) and all(hashes) and _digest(config) not in hashes:
        return f"the configuration of {section}"
    return ""


def sriov_namespace(plan: Plan) -> str:
    """Namespace of the SR-IOV operator's config daemon, which installs the CNI plugins; "" if the plan has none, as in
    mode shared."""
    through_olm = plan.olm.get("network_operator")
    if through_olm:
        return next((one.namespace for one in through_olm if one.package == SRIOV_OPERATOR), "")
    release = plan.releases.get("network_operator")
    enabled = release and (release.values.get("sriovNetworkOperator") or {}).get("enabled")
    return plan.namespaces.network_operator if enabled else ""


def sriov_daemon(daemonset: Optional[Json], deployments: Iterable[Json]) -> str:
    """The image that the SR-IOV operator asks for and its configuration daemon does not run yet; "" = it does."""
    env = [item["env"].get(SRIOV_DAEMON_IMAGE) for item in running((SRIOV_OPERATOR,), deployments)]
    wanted = _first(next(iter(env), None))
    return (
        f"image {wanted} (it runs {_shown(daemonset)})" if wanted and daemonset and not _runs(daemonset, wanted) else ""
    )


def outdated(daemonset: Json, lacks: str) -> Status:
    """The status of a DaemonSet that its operator has not brought up to the policy yet."""
    desired = (daemonset.get("status") or {}).get("desiredNumberScheduled") or 0
    why = f"without {lacks}: the operator has not updated DaemonSet {daemonset['metadata'].get('name', '')} yet"
    return Status(WAITING, why, OUTDATED, progress=f"0/{desired} of the new version")


def only_these(status: Status, states: Collection[str]) -> bool:
    """Whether a ClusterPolicy that is not ready names no other states than ``states``."""
    _before, found, rest = status.why.partition("states not ready: [")
    named = rest.partition("]")[0].split()
    return bool(found and named) and set(named) <= set(states)


def held_by(policy: Optional[Json], states: Collection[str]) -> bool:
    """Whether a NicClusterPolicy is not ready, without an error, and only ``states`` keep it from it."""
    applied = ((policy or {}).get("status") or {}).get("appliedStates") or []
    held = {(str(one.get("name")), one.get("state")) for one in applied if one.get("state") not in ("ready", "ignore")}
    return bool(held) and held <= {(state, "notReady") for state in states}


def _runs(daemonset: Json, wanted: str) -> bool:
    """A driver's image has the node's system behind the version that the policy names: ``570.1-ubuntu22.04``."""
    return any(one == wanted or one.startswith(f"{wanted}-") for one in daemonset["images"])


def _shown(daemonset: Json) -> str:
    return ", ".join(daemonset["images"]) or "none"


def _first(values: Optional[Sequence[str]]) -> str:
    return next(iter(values or ()), "")


def _digest(config: str) -> str:
    return base64.b64encode(hashlib.sha256(config.encode()).digest()).decode()
