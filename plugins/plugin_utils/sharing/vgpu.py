# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes with one vGPU each: guest driver, licence, MachineSets, and proof of the licence. PRIVATE to the collection.

::

    gridd(settings) -> str                            gridd.conf from typed settings; InputError
    token(text) -> str                                a client configuration token; InputError never contains it
    servers(token) -> ["host:443"]                    of CLS or DLS, from the token
    license_object(name, ns, gridd, token, secret)    Secret, or ConfigMap for operators that do not support a Secret
    resolve(args, license, nodes) -> VgpuSpec         checked nodes and driver, and nodes with another one; InputError
    driver(settings, nodes) -> Driver                 checked against the nodes' system and host driver; InputError
    policy_spec(driver, name, secret, nls) -> Json    ClusterPolicy.spec
    nvidia_driver(...) -> Json                        the same as an NVIDIADriver, for one pool among others
    check_profiles(base, profiles)                    MachineSets by providerSpec.value.template; InputError
    node_faults(nodes) -> [str]                       faults of nodes that share GPUs or have several
    samples(text) -> [Sample]                         of the licence metric in an exporter's text
    judge(nodes, {node: [Sample]}) -> [Finding]       1 on every node; no sample is an error

Sources: gpu-operator controllers/object_controls.go (the operator appends ``-<os tag>`` to driver.version; keys and
mount paths of the licence), its CRDs of v23.9 to v26.7, dcgm-exporter etc/default-counters.csv.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels, machine_set

NVIDIA_DRIVER = "gpuops-vgpu"
CONF, TOKEN = "gridd.conf", "client_configuration_token.tok"
"""Keys that the operator mounts by name: the driver's pod does not start without them."""
METRIC = "DCGM_FI_DEV_VGPU_LICENSE_STATUS"
FEATURES = {0: "unlicensed", 1: "NVIDIA vGPU", 2: "NVIDIA RTX Virtual Workstation", 4: "NVIDIA Virtual Compute Server"}
SECRET_SINCE = "25.10"
"""First release of the GPU Operator with licensingConfig.secretName."""
GPU = "nvidia.com/gpu"
VGPU_LABEL, PROFILE_LABEL = "gpuops.rdma/vgpu", "gpuops.rdma/vgpu-profile"
"""Our labels of nodes: for the selector of an NVIDIADriver, and the MachineSet profile that created the node."""
SHARING_LABELS = ("nvidia.com/device-plugin.config", "nvidia.com/mig.config")
VSPHERE = "VSphereMachineProviderSpec"
OS_LABELS = (
    "feature.node.kubernetes.io/system-os_release.OPENSHIFT_VERSION",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)
HOST_LABEL = "nvidia.com/vgpu.host-driver-version"
DRIVER_LABEL = f"{gpu_labels.DEPLOY}driver"
NO_DRIVER = ("false", "pre-installed")
_VERSION = re.compile(r"(\d{3})\.(\d{2,3})(?:\.(\d{2}))?")
_TAGGED = re.compile(r"(?P<version>\d{3}\.\d{2,3}(?:\.\d{2})?)(?:-(?P<os>[a-z]+\d+(?:\.\d+)*))?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,52}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_RHCOS = re.compile(r"CoreOS (\d)(\d{2})\.\d{2}\.")
_SAMPLE = re.compile(rf"^{METRIC}\{{(?P<labels>.*)\}}\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


# ---- licence -------------------------------------------------------------------------------------------------------


def gridd(settings: Mapping[str, Any]) -> str:
    """Text of gridd.conf. ``settings``: ``feature_type``, ``server``, ``server_port``, ``proxy``, ``proxy_port``; ""
    or 0 leaves one out. Only these keys, because the driver silently ignores unknown ones. Raises InputError with
    all faults."""
    faults: list[str] = []
    feature = settings.get("feature_type", 1)
    if feature not in FEATURES:
        known = ", ".join(f"{number} ({what})" for number, what in FEATURES.items())
        faults.append(f"feature type {feature!r} is unknown; known: {known}")
    lines = [f"FeatureType={feature}"]
    for address, number, keys in (
        ("server", "server_port", ("ServerAddress", "ServerPort")),
        ("proxy", "proxy_port", ("ProxyServerAddress", "ProxyServerPort")),
    ):
        name, value = str(settings.get(address) or ""), int(settings.get(number) or 0)
        if name and not _HOST.fullmatch(name):
            faults.append(f"{address} {_shown(name)} must be a host name or address without scheme, port or user")
        if value and not (name and 0 < value < 65536):
            faults.append(f"{number} {value} " + ("is not a port number" if name else f"needs {address}"))
        if address == "proxy" and name and not value:
            faults.append("proxy needs proxy_port: the driver has no default for it")
        lines += [f"{keys[0]}={name}"] if name else []
        lines += [f"{keys[1]}={value}"] if name and value else []
    if faults:
        raise InputError(f"Cannot write {CONF}: {'; '.join(faults)}.")
    return "\n".join(lines) + "\n"


def _shown(text: str) -> str:
    """Hides a password before the @ of a proxy's address."""
    return repr(f"...@{text.rpartition('@')[2]}" if "@" in text else text)


def token(text: Any) -> str:
    """The token without surrounding white space: three base64url parts with dots. Raises InputError, which never
    contains a part of it."""
    found = str(text or "").strip()
    if not found:
        raise InputError(
            "The client configuration token is empty. Download it from the licence portal (CLS) or server (DLS)."
        )
    parts = found.split(".")
    if len(parts) != 3 or not all(re.fullmatch(r"[A-Za-z0-9_=-]+", part) for part in parts):
        raise InputError(
            f"The client configuration token is invalid: it has {len(parts)} part{'s' if len(parts) != 1 else ''} "
            "separated by dots, not 3 of base64. Set it to the whole content of the .tok file."
        )
    return found


def servers(tok: str) -> list[str]:
    """``host:port`` of the licence servers in the token's middle part, which is JSON and not secret; [] where it
    names none."""
    try:
        part = tok.split(".")[1]
        body = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        config = body["service_instance_configuration"]
        ports = [_port(one) for one in config.get("svc_port_set_list") or []]
        found = []
        for one in config["node_url_list"]:
            index = one.get("svc_port_set_idx") or 0
            found.append(f"{one['url']}:{ports[index] if index < len(ports) else 443}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return []
    return [one for one in dict.fromkeys(found) if _HOST.fullmatch(one.rpartition(":")[0])]


def _port(port_set: Mapping[str, Any]) -> int:
    """Port of the lease service, which hands out licences."""
    by_service = {one.get("service"): int(one["port"]) for one in port_set.get("svc_port_map") or []}
    return by_service.get("lease") or 443


def license_object(name: str, namespace: str, conf: str, tok: str, as_secret: bool) -> Json:
    """Secret or ConfigMap with gridd.conf and the token; with ``tok`` "" (no NVIDIA License System) only gridd.conf."""
    data = {CONF: conf, **({TOKEN: tok} if tok else {})}
    meta = {"name": name, "namespace": namespace}
    if not as_secret:
        return parts.made("v1", "ConfigMap", meta, data=data)
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return parts.made("v1", "Secret", meta, type="Opaque", data=encoded)


def knows_secret(crd: Json, version: str = "") -> bool:
    """Whether the ClusterPolicy's CRD has licensingConfig.secretName; where the schema does not tell, whether
    ``version`` of the operator is v25.10 or later."""
    for one in crd["spec"]["versions"]:
        found: Any = one.get("schema", {}).get("openAPIV3Schema", {})
        for key in ("spec", "driver", "licensingConfig"):
            found = (found.get("properties") or {}).get(key) or {}
        if found.get("properties"):
            return "secretName" in found["properties"]
    return not versions.older(version, SECRET_SINCE)


def licence_servers(settings: Mapping[str, Any]) -> list[str]:
    """``host:port`` that nodes must reach: from the option ``reach``, the token, or the setting ``server``. Raises
    InputError if none is known."""
    targets = settings["reach"] or servers(str(settings["token"]).strip())
    if not targets and settings["server"]:
        targets = [f"{settings['server']}:{settings['server_port'] or 443}"]
    if not targets:
        raise InputError(
            "The token contains no licence server: set rdma_vgpu_reach, for example [api.cls.licensing.nvidia.com:443]."
        )
    return [one if one.rpartition(":")[2].isdigit() and ":" in one else f"{one}:443" for one in targets]


def unreached(targets: Sequence[str], answers: Mapping[str, Sequence[Json]]) -> list[str]:
    """A message for each node that reaches no licence server. ``answers``: node -> one answer per target."""
    faults = []
    for node, found in answers.items():
        errors = [f"{to}: {a.get('error')}" for to, a in zip(targets, found) if not a["ok"]]
        if len(errors) == len(targets):
            faults.append(f"from {node}: {'; '.join(errors)}")
    return faults


# ---- driver --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VgpuNode:
    """A selected node. ``host_driver``: "" before the first driver runs. ``ocp``: the cluster's OpenShift version,
    for nodes that have theirs in neither label nor OS image."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    os_image: str = ""
    gpus: int = 0
    ocp: str = ""
    in_effect: str = ""
    """Digest of the configuration that its driver was started with; "" before the first."""
    taints: Sequence[Json] = ()

    @property
    def os(self) -> str:
        """The system as in image tags, ``rhcos4.18``; "" where unknown."""
        return os_tag(self.labels, self.os_image, self.ocp)

    @property
    def host_driver(self) -> str:
        """Version of the driver on the vGPU host, from the node's label; "" where unknown."""
        return self.labels.get(HOST_LABEL, "")


@dataclass(frozen=True)
class Driver:
    """``version`` is without the system's suffix, which the operator adds. ``tags``: images that the nodes will
    pull."""

    repository: str
    image: str
    version: str
    pull_secrets: tuple[str, ...]
    tags: tuple[str, ...]


def os_tag(labels: Mapping[str, str], os_image: str, ocp: str = "") -> str:
    """Tag of RHCOS like ``rhcos4.18``, from NFD's labels, the kubelet's OS image or the OpenShift version; "" for
    another system."""
    is_rhcos = labels.get("feature.node.kubernetes.io/system-os_release.ID", "rhcos") == "rhcos"
    for label in OS_LABELS:
        version = labels.get(label, "")
        if is_rhcos and re.fullmatch(r"4\.\d+", version):
            return f"rhcos{version}"
    found = _RHCOS.search(os_image)
    if found:
        return f"rhcos{found[1]}.{int(found[2])}"
    short = re.match(r"4\.\d+", ocp)
    return f"rhcos{short[0]}" if short and "CoreOS" in os_image else ""


def driver(settings: Mapping[str, Any], nodes: Sequence[VgpuNode]) -> Driver:
    """The checked driver. ``settings``: ``repository``, ``image``, ``version``, ``host_version``, ``pull_secrets``.
    Raises InputError with all faults, also of versions that do not match the nodes' system or host driver."""
    faults: list[str] = []
    repository, image = str(settings.get("repository") or ""), str(settings.get("image") or "")
    if not repository or "://" in repository or repository.endswith("/"):
        faults.append(f"repository {repository!r} must be a registry and its path, like registry.example.com/vgpu")
    if not _IMAGE.fullmatch(image):
        faults.append(f"image {image!r} must be a name without path and tag")
    found = _TAGGED.fullmatch(str(settings.get("version") or ""))
    if found is None:
        faults.append(
            f"version {settings.get('version')!r} must be that of the guest driver, such as 550.163.01 or "
            "550.163.01-rhcos4.18"
        )
    else:
        faults += _version_faults(found["version"], found["os"] or "", str(settings.get("host_version") or ""), nodes)
    if faults or found is None:
        raise InputError(f"Cannot set the vGPU driver: {'; '.join(faults)}.")
    systems = sorted({node.os for node in nodes if node.os})
    place = f"{repository}/{image}:{found['version']}"
    tags = tuple(f"{place}-{one}" for one in systems) or (place,)
    return Driver(repository, image, found["version"], tuple(settings.get("pull_secrets") or ()), tags)


def _version_faults(version: str, system: str, host: str, nodes: Sequence[VgpuNode]) -> Iterator[str]:
    others = sorted({node.os for node in nodes if node.os and system and node.os != system})
    if others:
        names = [node.name for node in nodes if node.os in others]
        yield f"version is for {system}, but {listed(names)} run {', '.join(others)}: the driver could not load there"
    hosts = {
        **{node.host_driver: node.name for node in nodes if node.host_driver},
        **({host: "the host"} if host else {}),
    }
    for one, where in sorted(hosts.items()):
        if not _VERSION.fullmatch(one):
            yield f"host_version {one!r} is not a driver version such as 550.163.02"
        elif (branch := versions.minor(version)[0]) != (theirs := versions.minor(one)[0]):
            yield (
                f"guest driver {version} is of branch {branch}, but the host's ({where}) {one} of branch {theirs}: "
                "both must have the same branch"
            )
        elif versions.older(one, version):
            yield f"guest driver {version} must not be newer than the host's ({where}) {one}"


def licensing(name: str, as_secret: bool, nls: bool, key: str = "configMapName") -> Json:
    """licensingConfig for a Secret or ConfigMap. With a Secret the ConfigMap's key is set to null: the Secret wins
    where both are set, and a stale name would remain."""
    names: Json = {"secretName": name, key: None} if as_secret else {key: name}
    return {"nlsEnabled": nls, **names}


def policy_spec(found: Driver, name: str, as_secret: bool, nls: bool = True) -> Json:
    """ClusterPolicy.spec with the guest driver and the licence object ``name``."""
    return {
        "driver": {
            "enabled": True,
            "repository": found.repository,
            "image": found.image,
            "version": found.version,
            "imagePullSecrets": list(found.pull_secrets),
            "licensingConfig": licensing(name, as_secret, nls),
        }
    }


def nvidia_driver(found: Driver, name: str, license: str, as_secret: bool, selector: Mapping[str, str]) -> Json:
    """An NVIDIADriver. ``license``: name of the Secret or ConfigMap. Its driverType is immutable; image and
    repository are separate fields, as in the ClusterPolicy."""
    spec: Json = {
        "driverType": "vgpu",
        "repository": found.repository,
        "image": found.image,
        "version": found.version,
        "imagePullSecrets": list(found.pull_secrets),
        "licensingConfig": {
            key: value for key, value in licensing(license, as_secret, True, "name").items() if value is not None
        },
        "nodeSelector": dict(selector),
    }
    return parts.made("nvidia.com/v1alpha1", "NVIDIADriver", {"name": name}, spec=spec)


def bystanders(nodes: Iterable[VgpuNode], chosen: Iterable[str]) -> list[str]:
    """Names of GPU nodes that were not selected but run the operator's driver: they would get the guest driver,
    which does not support a whole GPU."""
    mine = set(chosen)
    return sorted(one.name for one in nodes if one.name not in mine and one.labels.get(DRIVER_LABEL) not in NO_DRIVER)


def pull_secret_faults(found: Driver, secrets: Mapping[str, Optional[str]]) -> list[str]:
    """Messages about missing or wrong pull secrets. ``secrets``: name -> its type, None if it does not exist.
    Without any, the cluster's global pull secret may suffice."""
    faults = []
    for name in found.pull_secrets:
        kind = secrets.get(name)
        if kind is None:
            faults.append(f"the pull secret {name} does not exist: the nodes could not pull from {found.repository}")
        elif kind not in ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"):
            faults.append(f"the pull secret {name} is of type {kind}, not kubernetes.io/dockerconfigjson")
    return faults


# ---- MachineSets ---------------------------------------------------------------------------------------------------

_PROFILE_KEYS = ("name", "template", "replicas")


def check_profiles(base: Json, profiles: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError with all faults. ``base``: the MachineSet to copy, once per profile ``{name, template,
    replicas}``."""
    faults = list(_profile_faults(profiles))
    spec = base.get("spec") or {}
    provider = ((((spec.get("template") or {}).get("spec") or {}).get("providerSpec") or {}).get("value")) or {}
    if provider.get("kind") != VSPHERE:
        faults.append(
            f"MachineSet {base['metadata']['name']} has a providerSpec of kind {provider.get('kind')!r}; vGPU "
            f"profiles are devices of vSphere templates, so it must be {VSPHERE}"
        )
    if faults:
        raise InputError(f"Cannot create MachineSets for vGPU profiles: {'; '.join(faults)}.")


def _profile_faults(profiles: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, one in enumerate(profiles):
        place = f"profiles[{index}]"
        for key in one:
            if key not in _PROFILE_KEYS:
                yield f"{place}.{key} is unknown{near(key, _PROFILE_KEYS)}"
        if not _NAME.fullmatch(str(one.get("name") or "")):
            yield f"{place}.name {one.get('name')!r} must be lower case letters, digits and '-'"
        if not one.get("template"):
            yield f"{place}.template is missing; it names the RHCOS template with the device of this vGPU profile"
        if not isinstance(one.get("replicas") or 0, int) or (one.get("replicas") or 0) < 0:
            yield f"{place}.replicas {one.get('replicas')!r} must be a whole number from 0"
    for key in ("name", "template"):
        values = [str(one.get(key)) for one in profiles]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            yield f"{key} {', '.join(twice)} is used twice, but each profile needs its own MachineSet"


def copied(base: Json, profile: Mapping[str, Any]) -> Json:
    """A copy of the MachineSet ``base``; only the RHCOS template with the vGPU device and the labels of its nodes
    differ."""
    name, template = profile["name"], {"template": profile["template"]}
    found = machine_set.copy(base, name, template, profile.get("replicas") or 0)
    labels = found["spec"]["template"]["spec"]["metadata"]["labels"]
    labels.update({VGPU_LABEL: "true", PROFILE_LABEL: name})
    return found


# ---- what is wanted ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What is known before the nodes are. ``by_crd``: the driver is configured by an NVIDIADriver instead of the
    ClusterPolicy."""

    as_secret: bool
    by_crd: bool
    license: Json = field(default_factory=dict, repr=False)
    machine_sets: tuple[Json, ...] = ()


@dataclass(frozen=True)
class VgpuSpec:
    """``digest``: of driver and licence."""

    nodes: tuple[VgpuNode, ...]
    driver: Driver
    digest: str

    @property
    def stale(self) -> list[VgpuNode]:
        """Nodes whose driver was started with another digest."""
        return [one for one in self.nodes if one.in_effect != self.digest]

    @property
    def image(self) -> str:
        """End of the image reference that a driver's pod must have."""
        return f"/{self.driver.image}:{self.driver.version}"


def check_arguments(args: Mapping[str, Any]) -> None:
    """Raises InputError for combinations that the module's argument spec cannot express."""
    lacking = [name for name in ("driver", "license") if not args[name]]
    if lacking:
        raise InputError(f"Cannot set up vGPU: {' and '.join(lacking)} must be given with state present.")
    if not (args["nodes"] or args["selector"] or args["profiles"]):
        raise InputError(
            "Cannot set up vGPU: no node is selected. Set rdma_vgpu_nodes, rdma_vgpu_selector, or rdma_vgpu_profiles "
            "with rdma_vgpu_machine_set; the guest driver must not run on nodes with whole GPUs."
        )
    if args["profiles"] and not args["machine_set"]:
        raise InputError(
            "Cannot create MachineSets for the vGPU profiles: set rdma_vgpu_machine_set, the MachineSet to copy."
        )


def chosen(args: Mapping[str, Any], every: Sequence[VgpuNode]) -> list[VgpuNode]:
    """The selected nodes. ``every``: nodes that match ``selector``, all nodes without one. Raises InputError for a
    name that is not among them."""
    by_name = {one.name: one for one in every}
    missing = [name for name in args["nodes"] if name not in by_name]
    if missing:
        labels = f" with the labels {args['selector']}" if args["selector"] else ""
        raise InputError(f"This cluster has no node {missing[0]}{labels}.")
    if args["nodes"]:
        return [by_name[name] for name in args["nodes"]]
    return list(every) if args["selector"] else of_profiles(args, every)


def of_profiles(args: Mapping[str, Any], nodes: Iterable[VgpuNode]) -> list[VgpuNode]:
    """Nodes created by the MachineSets of the profiles."""
    names = {one["name"] for one in args["profiles"]}
    return [one for one in nodes if one.labels.get(PROFILE_LABEL) in names]


def resolve(args: Mapping[str, Any], license: Json, nodes: Sequence[VgpuNode]) -> VgpuSpec:
    """The checked nodes and driver. A node that has a vGPU already may be without its GPU for the moment. Raises
    InputError with what prevents vGPU on these nodes."""
    if not nodes and not args["profiles"]:
        raise InputError("No node of this cluster has the given names or labels: nothing can be set up.")
    faults = node_faults([dataclasses.replace(one, gpus=0 if one.in_effect else one.gpus) for one in nodes])
    found = driver(args["driver"], nodes)
    if faults:
        raise InputError(f"Cannot set up vGPU: {'; '.join(faults)}.")
    text = json.dumps([dataclasses.astuple(found)[:3], license["data"]], sort_keys=True)
    return VgpuSpec(tuple(nodes), found, hashlib.sha256(text.encode()).hexdigest()[:16])


def of_another(pods: Sequence[Json], image: str) -> str:
    """Image of a node's driver pod if it is not ``image``; else ""."""
    images = [str(one.get("image") or "") for one in pods[0]["spec"]["containers"]] if pods else []
    return images[0] if images and not any(image in one for one in images) else ""


def state(pods: Sequence[Json], gpus: int, image: str) -> Status:
    """Status of one node. ``pods``: of its driver. ``gpus``: allocatable."""
    if not pods:
        return Status(WAITING, "no pod of the driver yet")
    other = of_another(pods, image)
    if other:
        return Status(WAITING, f"its driver pod still runs {other}")
    status = readiness.pod(pods[0])
    if status.state != READY or gpus == 1:
        return status
    return Status(WAITING, f"offers {gpus} {GPU} instead of 1")


# ---- evidence ------------------------------------------------------------------------------------------------------


def node_faults(nodes: Sequence[VgpuNode]) -> list[str]:
    """Messages about nodes that share GPUs or have several: a vGPU cannot be shared further."""
    faults = []
    for one in nodes:
        for label in SHARING_LABELS:
            value = one.labels.get(label, "")
            if value and value != "all-disabled":
                faults.append(f"{one.name} has the label {label}={value}; a vGPU can be neither shared nor partitioned")
        if one.gpus > 1:
            faults.append(f"{one.name} offers {one.gpus} {GPU}; a vGPU node offers exactly 1")
    return faults


@dataclass(frozen=True)
class Sample:
    value: float
    gpu: str
    model: str


def samples(text: str) -> list[Sample]:
    """Samples of the licence metric in an exporter's text; unreadable lines are ignored."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        labels = dict(_LABEL.findall(match["labels"]))
        try:
            found.append(Sample(float(match["value"]), labels.get("gpu", ""), labels.get("modelName", "")))
        except ValueError:
            continue
    return found


def judge(nodes: Sequence[VgpuNode], read: Mapping[str, Sequence[Sample]]) -> list[Finding]:
    """Errors. Each node needs positive evidence: exactly one sample, with value 1."""
    findings = []
    for one in nodes:
        taken = list(read.get(one.name, ()))
        if not taken:
            text = f"no sample of {METRIC} from its exporter"
            findings.append(finding("vgpu.no-sample", one.name, text, expected="1"))
        elif len(taken) > 1:
            findings.append(finding("vgpu.gpus", one.name, f"{len(taken)} GPUs report a licence", expected="1"))
        elif taken[0].value != 1:
            findings.append(finding("vgpu.unlicensed", one.name, f"{METRIC} is {taken[0].value:g}", expected="1"))
    return findings


def allocatable(nodes: Sequence[VgpuNode]) -> list[Finding]:
    """An error for each node that does not offer exactly one GPU."""
    return [
        finding("vgpu.allocatable", one.name, f"{one.gpus} {GPU} allocatable", expected="1")
        for one in nodes
        if one.gpus != 1
    ]
