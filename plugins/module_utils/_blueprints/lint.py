# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of blueprints for OCI AI Blueprints before they are sent. PRIVATE to the collection.

The server accepts a pool without its RDMA flag and creates one without RDMA, which only recreating it fixes; its JSON
schema does not catch that. Rules and their sources: files/oci/blueprints.yml.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json, is_int

RDMA = "multinode_rdma_enabled_in_shared_pool"
NODES = "multinode_num_nodes_to_use_from_shared_pool"
_AD = re.compile(r"[A-Za-z0-9]{4}:(?P<region>[A-Z0-9-]+)-AD-[1-9]")
_TENSOR = ("--tensor-parallel-size", "-tp")
_PIPELINE = ("--pipeline-parallel-size", "-pp")
_LABEL = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_BOOT_GB = (50, 32768)
"""Sizes of boot volumes that OCI accepts."""
_NO_RDMA: Mapping[str, Callable[[str], bool]] = {
    "NCCL_IB_DISABLE": lambda text: text not in ("", "0"),
    "NCCL_NET": lambda text: text.lower() == "socket",
}
"""Variables that keep NCCL from RDMA, with the values that do."""
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
Findings = Iterator[Finding]


@dataclass(frozen=True)
class Around:
    """Facts besides the documents; empty = unknown, and not checked.

    ``rdma``: False accepts pools of RDMA shapes without RDMA. ``pools``: existing pools, name -> nodes.
    ``names``: existing deployments. ``images``: OCID -> ``{compartment, os}``. ``gpus``: shape -> GPUs.
    ``nodes``: names of the cluster's nodes. ``secrets``: names of its Secrets. ``mig``: MIG layouts of shared pools.
    """

    rdma: bool = True
    region: str = ""
    compartment: str = ""
    availability_domains: tuple[str, ...] = ()
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)


def lint(documents: Union[Json, Sequence[Json]], facts: Json, around: Optional[Around] = None) -> list[Finding]:
    """All faults of one document, or of several to be sent together, in order.

    Severity ``error``: the server refuses it, or does something unintended; ``warning``: worth checking.
    """
    around = around or Around()
    found: list[Finding] = []
    payloads: list[Json] = []
    for document in [documents] if isinstance(documents, Mapping) else documents:
        found += _unpack(document, facts, payloads)
    pools = {**around.pools, **_pools(payloads)}
    around = dataclasses.replace(around, mig=(*around.mig, *_layouts(payloads)))
    found += [*_names(payloads, around), *_served(payloads, around)]
    for payload in payloads:
        found += _one(payload, facts, around, pools)
    return found


def accepted(findings: Sequence[Finding]) -> bool:
    """Whether no finding is an error."""
    return not any(item.severity == "error" for item in findings)


# ---- documents -------------------------------------------------------------------------------------------------------


def _unpack(document: Any, facts: Json, payloads: list[Json]) -> Findings:
    """Appends a document's payloads to ``payloads``; yields the faults of the document itself."""
    if not isinstance(document, Mapping):
        yield finding("blueprint.document", "document", f"{type(document).__name__}", expected="a JSON object")
    elif "deployment_group" in document:
        yield from _group(document["deployment_group"], facts, payloads)
    elif isinstance(document.get("pre_filled_samples"), list):
        payloads += [dict(item) for item in document["pre_filled_samples"] if isinstance(item, Mapping)]
    else:
        payloads.append(dict(document))


def _group(group: Any, facts: Json, payloads: list[Json]) -> Findings:
    deployments = group.get("deployments") if isinstance(group, Mapping) else None
    if not isinstance(deployments, list) or not all(isinstance(item, Mapping) for item in deployments):
        yield finding(
            "blueprint.document",
            "deployment_group",
            "no list of deployments",
            expected="{name, deployments: [{name, recipe}]}",
        )
        return
    subject = str(group.get("name") or "deployment_group")
    wants: dict[str, list[str]] = {}
    recipes: dict[str, Json] = {}
    exports: dict[str, list[Any]] = {}
    for item in deployments:
        name, recipe = item.get("name"), item.get("recipe")
        if not isinstance(name, str) or not isinstance(recipe, Mapping):
            yield finding(
                "blueprint.document", subject, "a deployment without name or recipe", expected="{name, recipe}"
            )
            continue
        if name in wants:
            found = "two deployments of the group have this name"
            yield finding("blueprint.name", name, found, expected="a name of its own for each")
        wants[name] = [str(other) for other in _listed(item.get("depends_on"))]
        recipes[name], exports[name] = dict(recipe), _listed(item.get("exports"))
        payloads.append(dict(recipe))
        for export in exports[name]:
            if export not in facts["group"]["exports"]:
                yield finding(
                    "blueprint.schema",
                    name,
                    f"exports {export!r}",
                    expected=f"one of {', '.join(facts['group']['exports'])}",
                )
    for name, others in wants.items():
        for other in others:
            if other not in wants:
                yield finding(
                    "blueprint.depends-on", name, f"depends on {other!r}", expected=f"one of {', '.join(wants)}"
                )
    for name in _circle(wants):
        yield finding(
            "blueprint.depends-on", name, "depends on itself through others", expected="an order without a circle"
        )
    for name, recipe in recipes.items():
        yield from _order(name, recipe, recipes, exports, _before(name, wants), facts)


def _order(
    name: str,
    recipe: Json,
    recipes: Mapping[str, Json],
    exports: Mapping[str, Sequence[Any]],
    before: set[str],
    facts: Json,
) -> Findings:
    """Of one deployment of a group: what it uses of others is there when it starts. Blueprints knows the order from
    depends_on alone, and puts in exports as ${NAME.EXPORT}."""
    keys = "|".join(facts["group"]["exports"])
    for other, key in dict.fromkeys(re.findall(rf"\$\{{([^{{}}$]+)\.({keys})\}}", str(recipe))):
        found = f"uses {key} of {other}"
        if other not in recipes:
            known = f"one of {', '.join(recipes)}"
            yield finding("blueprint.depends-on", name, f"{found}, no deployment of the group", expected=known)
        elif key not in exports[other]:
            yield finding(
                "blueprint.depends-on", name, f"{found}, which does not export it", expected=f"exports: [{key}]"
            )
        elif other not in before:
            expected = f"depends_on: [{other}]"
            yield finding("blueprint.depends-on", name, f"{found}, and does not wait for it", expected=expected)
    pools = [one for one, item in recipes.items() if item.get("recipe_mode") == "shared_node_pool"]
    uses = recipe.get("recipe_mode") in ("service", "job") and recipe.get("recipe_use_shared_node_pool") is True
    if uses and pools and not before & set(pools):
        found = f"nothing makes it wait for the group's pool {', '.join(pools)}"
        expected = f"depends_on: [{pools[0]}]"
        yield finding("blueprint.depends-on", name, found, expected=expected, severity="warning")


def _before(name: str, wants: Mapping[str, Sequence[str]]) -> set[str]:
    """What a deployment depends on, itself or through others."""
    found: set[str] = set()
    ahead = list(wants[name])
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead += wants.get(other, ())
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _circle(wants: Mapping[str, Sequence[str]]) -> list[str]:
    """Names in a circle: those left when all that can start have started."""
    left = {name: {other for other in others if other in wants} for name, others in wants.items()}
    while True:
        free = {name for name, others in left.items() if not others & set(left)}
        if not free:
            break
        left = {name: others for name, others in left.items() if name not in free}
    return sorted(name for name in left if any(name in wants[other] for other in left))


def _layouts(payloads: Sequence[Json]) -> Iterator[str]:
    """MIG layouts of the pools among the documents."""
    for item in payloads:
        layout = item.get("shared_node_pool_mig_config")
        if item.get("recipe_mode") == "shared_node_pool" and isinstance(layout, str) and layout:
            yield layout


def _pools(payloads: Sequence[Json]) -> dict[str, int]:
    return {
        str(item.get("deployment_name")): item["shared_node_pool_size"]
        for item in payloads
        if item.get("recipe_mode") == "shared_node_pool" and is_int(item.get("shared_node_pool_size"))
    }


def _served(payloads: Sequence[Json], around: Around) -> Findings:
    """Users of RDMA whose shape no pool sent with them has, where no other pool is known."""
    pools = [item for item in payloads if item.get("recipe_mode") == "shared_node_pool"]
    with_rdma = sorted({str(item.get("shared_node_pool_shape")) for item in pools if item.get(RDMA) is True})
    for item in payloads if pools and not around.pools else ():
        shape = item.get("recipe_node_shape")
        if item.get("recipe_mode") in ("service", "job") and item.get(RDMA) is True and shape not in with_rdma:
            yield finding(
                "blueprint.shared-pool",
                str(item.get("deployment_name")),
                f"RDMA on {shape}, of which no pool sent with it has RDMA",
                expected=f"one of {', '.join(with_rdma)}" if with_rdma else f"{RDMA}: true on the pool",
            )


def _names(payloads: Sequence[Json], around: Around) -> Findings:
    seen: set[str] = set()
    for name in (item.get("deployment_name") for item in payloads):
        if isinstance(name, str):
            if name in seen:
                yield finding(
                    "blueprint.name",
                    name,
                    "two documents have this deployment_name",
                    expected="a name of its own for each",
                )
            if name in around.names:
                yield finding(
                    "blueprint.name",
                    name,
                    "a deployment of this name exists",
                    expected="a new name",
                    remedy="undeploy it or rename",
                )
            seen.add(name)


# ---- one blueprint ---------------------------------------------------------------------------------------------------


def _one(payload: Json, facts: Json, around: Around, pools: Mapping[str, int]) -> Findings:
    subject = str(payload.get("deployment_name") or "(no deployment_name)")
    faults = list(_schema(payload, facts, subject))
    yield from faults
    # A rule that reads a field of the wrong type would only repeat the fault.
    wrong = {item.found.split(" ", 1)[0].split("[")[0].split(".")[0] for item in faults if item.severity == "error"}
    payload = {key: int(value) if _whole(value) else value for key, value in payload.items() if key not in wrong}
    rules = _Rules(payload, facts, around, pools, subject, frozenset(wrong))
    mode = payload.get("recipe_mode")
    if mode == "shared_node_pool":
        yield from rules.pool()
    elif mode == "update":
        yield from rules.update()
    elif mode in ("service", "job"):
        yield from rules.consumer()


def _schema(payload: Json, facts: Json, subject: str) -> Findings:
    for key in facts["required"]:
        if key not in payload:
            yield finding("blueprint.schema", subject, f"{key} is missing", expected="required in every blueprint")
    for key, value in payload.items():
        if key not in facts["fields"]:
            near = difflib.get_close_matches(key, facts["fields"], 1)
            hint = f"did you mean {near[0]}?" if near else "the server ignores it"
            yield finding("blueprint.unknown-field", subject, f"{key} is no field of the schema", remedy=hint)
        else:
            yield from _typed(key, value, facts["fields"][key], subject)


def _typed(path: str, value: Any, kind: Any, subject: str) -> Findings:
    if isinstance(kind, Mapping) and "one_of" in kind:
        if value not in kind["one_of"]:
            yield finding(
                "blueprint.schema", subject, f"{path} is {value!r}", expected=f"one of {', '.join(kind['one_of'])}"
            )
    elif isinstance(kind, Mapping) and "list" in kind:
        if not isinstance(value, list):
            yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="a list")
            return
        for index, item in enumerate(value):
            yield from _typed(f"{path}[{index}]", item, kind["list"], subject)
    elif isinstance(kind, Mapping):
        yield from _object(path, value, dict(kind), subject)
    elif kind == "labels":
        if not isinstance(value, Mapping):
            yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="an object")
            return
        for key, item in value.items():
            if not isinstance(item, str):
                yield finding(
                    "blueprint.schema",
                    subject,
                    f"{path}.{key} is {_shown(item)}",
                    expected="a text, in quotation marks",
                )
    elif not _is(value, kind):
        kinds = [kind] if isinstance(kind, str) else kind
        yield finding(
            "blueprint.schema",
            subject,
            f"{path} is {_shown(value)}",
            expected=" or ".join(kinds),
            remedy=_hint(value, kinds),
        )


def _object(path: str, value: Any, kind: Json, subject: str) -> Findings:
    if not isinstance(value, Mapping):
        yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="an object")
        return
    for key in kind.get("required", ()):
        if key not in value:
            yield finding(
                "blueprint.schema", subject, f"{path} has no {key}", expected=f"{', '.join(kind['required'])}"
            )
    ways = kind.get("one_required")
    if ways and sum(all(key in value for key in way) for way in ways) != 1:
        yield finding(
            "blueprint.schema",
            subject,
            f"{path} has {', '.join(value)}",
            expected=" or ".join("+".join(way) for way in ways),
        )
    for key, item in value.items():
        if key in kind["fields"]:
            yield from _typed(f"{path}.{key}", item, kind["fields"][key], subject)
        elif not kind.get("open"):
            yield finding(
                "blueprint.schema", subject, f"{path} has {key}", expected=f"only {', '.join(kind['fields'])}"
            )


def _is(value: Any, kind: Union[str, Sequence[str]]) -> bool:
    kinds = [kind] if isinstance(kind, str) else kind
    if isinstance(value, bool):
        return "boolean" in kinds
    return (_whole(value) and "integer" in kinds) or any(isinstance(value, _TYPES[item]) for item in kinds)


def _whole(value: Any) -> bool:
    """Whether it is an integer written as 8.0, which JSON does not distinguish from 8."""
    return isinstance(value, float) and value.is_integer()


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return f"the text {shown}" if isinstance(value, str) else shown


def _hint(value: Any, kinds: Sequence[str]) -> str:
    if isinstance(value, str) and "string" not in kinds:
        return "write it without quotation marks"
    return "write it in quotation marks" if "string" in kinds and isinstance(value, (int, float, bool)) else ""


@dataclass(frozen=True)
class _Rules:
    payload: Json
    facts: Json
    around: Around
    pools: Mapping[str, int]
    subject: str
    wrong: frozenset[str]
    """Fields of the wrong type, which are reported already."""

    def fault(self, ident: str, found: str, **more: str) -> Finding:
        """A finding of this blueprint. ``more``: ``expected``, ``remedy``, ``severity``."""
        return finding(ident, self.subject, found, **more)

    def missing(self, key: str) -> bool:
        """Whether the field is absent; not for one of the wrong type, which is reported already."""
        return key not in self.payload and key not in self.wrong

    # ---- pools

    def pool(self) -> Findings:
        """Rules of a shared node pool."""
        shape = self.payload.get("shared_node_pool_shape", "")
        for key, rule in (
            ("shared_node_pool_shape", "blueprint.shape"),
            ("shared_node_pool_size", "blueprint.pool-size"),
        ):
            if self.missing(key):
                yield self.fault(rule, f"{key} is missing", expected="required of a pool", remedy="")
        if shape.startswith("BM.") and self.missing("shared_node_pool_boot_volume_size_in_gbs"):
            yield self.fault(
                "blueprint.boot-volume",
                f"{shape} without shared_node_pool_boot_volume_size_in_gbs",
                expected="e.g. 1000",
            )
        volume = self.payload.get("shared_node_pool_boot_volume_size_in_gbs")
        if volume is not None and not _BOOT_GB[0] <= volume <= _BOOT_GB[1]:
            yield self.fault(
                "blueprint.boot-volume", f"a boot volume of {volume} GB", expected=f"{_BOOT_GB[0]} to {_BOOT_GB[1]} GB"
            )
        on, layout = self.payload.get(RDMA, False), self.payload.get("shared_node_pool_mig_config")
        yield from self.shape(shape, on)
        # one node, or one divided by MIG, is a pool without RDMA by intention
        plain = self.payload.get("shared_node_pool_size") == 1 or layout
        if on:
            yield from self.rdma_pool()
            if layout:
                yield self.fault(
                    "blueprint.mig",
                    f"{layout} with {RDMA}",
                    expected="whole GPUs",
                    remedy="make a pool without RDMA for MIG",
                )
        elif shape in self.facts["rdma_shapes"] and self.around.rdma and RDMA not in self.wrong and not plain:
            yield self.fault(
                "blueprint.rdma-flag",
                f"{RDMA} is {'false' if RDMA in self.payload else 'missing'} on a pool of {shape}",
                expected="true",
                remedy="without it the pool has no RDMA, which only deleting and making it again mends; "
                "rdma=false accepts it",
            )

    def rdma_pool(self) -> Findings:
        """Rules of a shared node pool with RDMA: size, availability domain, image."""
        size = self.payload.get("shared_node_pool_size")
        if size is not None and size < 2:
            yield self.fault("blueprint.pool-size", f"{size} nodes with RDMA", expected="two or more")
        yield from self.domain()
        yield from self.image()

    def shape(self, shape: str, rdma: bool) -> Findings:
        """Whether the shape is supported, and has RDMA if that is requested."""
        if shape in self.facts["refused_shapes"]:
            yield self.fault(
                "blueprint.shape", shape, expected="another shape", remedy=self.facts["refused_shapes"][shape]
            )
        elif rdma and shape and shape not in self.facts["rdma_shapes"]:
            near = difflib.get_close_matches(shape, self.facts["rdma_shapes"], 1, 0.85)
            hint = f"did you mean {near[0]}?" if near else ""
            yield self.fault(
                "blueprint.shape",
                f"{shape} with RDMA",
                expected=f"one of {', '.join(self.facts['rdma_shapes'])}",
                remedy=hint,
            )

    def domain(self) -> Findings:
        """Whether the availability domain has its full name and belongs to tenancy and region."""
        name = self.payload.get("recipe_availability_domain")
        full = "its full name with the tenancy's prefix, e.g. TrcQ:EU-FRANKFURT-1-AD-3"
        if name is None:
            if self.missing("recipe_availability_domain"):
                yield self.fault(
                    "blueprint.availability-domain", "recipe_availability_domain is missing", expected=full
                )
            return
        match = _AD.fullmatch(name)
        if not match:
            yield self.fault("blueprint.availability-domain", f"{name!r}", expected=full)
        elif self.around.availability_domains and name not in self.around.availability_domains:
            known = ", ".join(self.around.availability_domains)
            yield self.fault(
                "blueprint.availability-domain",
                f"{name!r} is none of this tenancy and region",
                expected=f"one of {known}",
            )
        elif self.around.region and self.region(match["region"]) not in ("", self.around.region):
            yield self.fault("blueprint.availability-domain", f"{name!r}", expected=f"one of {self.around.region}")

    def image(self) -> Findings:
        """Whether the node image is an OCID of an Ubuntu image of the pool's region."""
        ocid = self.payload.get("recipe_node_image_ocid")
        if ocid is None:
            if self.missing("recipe_node_image_ocid"):
                yield self.fault(
                    "blueprint.image",
                    "recipe_node_image_ocid is missing",
                    expected="an imported Ubuntu image with OFED",
                )
            return
        parts = ocid.split(".")
        if len(parts) < 5 or parts[:2] != ["ocid1", "image"]:
            yield self.fault("blueprint.image", f"{ocid!r}", expected="the OCID of an image, ocid1.image...")
            return
        region, wanted = self.region(parts[3]), self.around.region or self.domain_region()
        if region and wanted and region != wanted:
            yield self.fault(
                "blueprint.image", f"an image of {region} for a pool in {wanted}", remedy="import the image there"
            )
        known = self.around.images.get(ocid, {})
        if self.around.images and not known:
            yield self.fault(
                "blueprint.image", f"{ocid} is not there", expected="an image of this region that can be read"
            )
        elif self.around.compartment and known.get("compartment", self.around.compartment) != self.around.compartment:
            yield self.fault(
                "blueprint.image",
                "an image of another compartment",
                expected="the pool's compartment, or a policy to read it",
                severity="warning",
            )
        if known.get("os") and "Ubuntu" not in known["os"]:
            yield self.fault(
                "blueprint.image",
                f"an image of {known['os']}",
                expected="an Ubuntu image with OFED, the only documented kind",
            )

    def domain_region(self) -> str:
        """The region in the availability domain's name; "" if it cannot be read."""
        match = _AD.fullmatch(self.payload.get("recipe_availability_domain", ""))
        return self.region(match["region"]) if match else ""

    def region(self, name: str) -> str:
        """A region's name from an OCID or a domain; "" where it may be a short name that is not in the table."""
        name = name.lower()
        return self.facts["region_names"].get(name) or (name if name.count("-") == 2 else "")

    # ---- users of a pool

    def consumer(self) -> Findings:
        """Rules of a service or job that uses a shared pool."""
        payload, count = self.payload, self.payload.get(NODES)
        on, shape = payload.get(RDMA, False), payload.get("recipe_node_shape", "")
        yield from self.shape(shape, on)
        yield from self.node_gpus(shape)
        if on and not payload.get("recipe_use_shared_node_pool") and "recipe_use_shared_node_pool" not in self.wrong:
            yield self.fault(
                "blueprint.shared-pool",
                f"{RDMA} without recipe_use_shared_node_pool",
                expected="recipe_use_shared_node_pool: true",
            )
        if on and self.missing(NODES):
            yield self.fault("blueprint.nodes", f"{RDMA} without {NODES}", expected="number of nodes to use")
        if count is not None:
            yield from self.many(count, on, shape)
        yield from self.parallel(count or 1)
        yield from self.environment(on)
        yield from self.secrets()
        yield from self.mig()

    def environment(self, on: bool) -> Findings:
        """Whether a variable keeps NCCL from the RDMA that is asked for."""
        for item in self.payload.get("recipe_container_env") or [] if on else []:
            key, value = str(item.get("key")), str(item.get("value")).strip()
            if key in _NO_RDMA and _NO_RDMA[key](value):
                yield self.fault("blueprint.environment", f"{key}={value} with {RDMA}", expected=f"no {key}")

    def secrets(self) -> Findings:
        """Whether the Secrets named exist in the cluster."""
        named = [item.get("secret_name") for item in self.payload.get("recipe_environment_secrets") or []]
        for name in dict.fromkeys([self.payload.get("recipe_container_secret_name"), *named]):
            if name and self.around.secrets and name not in self.around.secrets:
                known = _some(self.around.secrets)
                yield self.fault("blueprint.secret", f"the Secret {name} is not there", expected=f"one of {known}")

    def mig(self) -> Findings:
        """Whether a shared pool has the MIG profile; RDMA excludes MIG."""
        asked = self.payload.get("mig_resource_request")
        if asked and self.payload.get(RDMA):
            yield self.fault(
                "blueprint.mig",
                f"{asked} with {RDMA}",
                expected="whole nodes",
                remedy="RDMA is for jobs over whole nodes",
            )
        elif asked and self.around.mig and not any(asked in layout for layout in self.around.mig):
            yield self.fault(
                "blueprint.mig", f"no shared pool has {asked}", expected=f"one of {_some(self.around.mig)}"
            )

    def many(self, count: int, on: bool, shape: str) -> Findings:
        """Rules of deployments over several nodes: flag, number of nodes, image."""
        if count < 2 and on:
            yield self.fault(
                "blueprint.nodes", f"RDMA on {count} node", expected="two or more", remedy="RDMA is between nodes"
            )
        if count > 1 and not on and self.around.rdma and shape in self.facts["rdma_shapes"] and RDMA not in self.wrong:
            yield self.fault("blueprint.rdma-flag", f"{count} nodes of {shape} without {RDMA}", expected="true")
        largest, replicas = max(self.pools.values(), default=None), self.payload.get("recipe_replica_count", 1)
        replicas = replicas if is_int(replicas) and replicas > 1 else 1
        if largest is not None and count * replicas > largest:
            each = f" ({replicas} replicas x {count})" if replicas > 1 else ""
            yield self.fault(
                "blueprint.nodes",
                f"{count * replicas} nodes asked for{each}",
                expected=f"at most {largest}, the size of the largest pool",
            )
        image, tags = self.payload.get("recipe_image_uri", ""), self.facts["multinode_images"]
        if on and image and not any(tag in image for tag in tags):
            why = "the only image documented for several nodes"
            yield self.fault(
                "blueprint.image",
                f"recipe_image_uri {image}",
                expected=f"a tag {', '.join(tags)}",
                remedy=why,
                severity="warning",
            )

    def node_gpus(self, shape: str) -> Findings:
        """Whether the shape has as many GPUs per node."""
        count, most = self.gpu_count(), self.around.gpus.get(shape)
        if count is not None and most is not None and count > most:
            yield self.fault("blueprint.gpus", f"{count} GPUs per node", expected=f"{shape} has {most}")

    def gpu_count(self) -> Optional[int]:
        """GPUs per node, of either vendor; None if not set, or no integer, which the schema reports."""
        count = self.payload.get("recipe_nvidia_gpu_count", self.payload.get("recipe_amd_gpu_count"))
        return count if is_int(count) else None

    def parallel(self, nodes: int) -> Findings:
        """Whether tensor x pipeline parallelism equals nodes x GPUs."""
        args = [part for item in self.payload.get("recipe_container_command_args") or [] for part in str(item).split()]
        if any("$(" in (_value(args, names) or "") for names in (_TENSOR, _PIPELINE)):
            return  # a variable of the container
        for names in (_TENSOR, _PIPELINE):
            value = _value(args, names)
            if value is not None and not re.fullmatch("[1-9][0-9]{0,8}", value):
                yield self.fault("blueprint.parallelism", f"{names[0]} is {value!r}", expected="a number")
                return
        tensor, pipeline, gpus = _number(args, _TENSOR), _number(args, _PIPELINE), self.gpu_count()
        if gpus is None or (tensor is None and pipeline is None) or (tensor or 1) * (pipeline or 1) == nodes * gpus:
            return
        yield self.fault(
            "blueprint.parallelism",
            f"tensor {tensor or 1} x pipeline {pipeline or 1} = {(tensor or 1) * (pipeline or 1)}",
            expected=f"{nodes} nodes x {gpus} GPUs = {nodes * gpus}",
            remedy=f"--tensor-parallel-size {gpus} --pipeline-parallel-size {nodes}",
        )

    # ---- nodes that are added

    def update(self) -> Findings:
        """Rules of a blueprint that adds a node, or changes the MIG layout of a node or a pool."""
        name, layout = self.payload.get("recipe_node_name"), self.payload.get("shared_node_pool_mig_config")
        if name is None:
            of_pool = layout and self.payload.get("recipe_node_pool_name")
            if self.missing("recipe_node_name") and not of_pool:
                yield self.fault(
                    "blueprint.update-node", "recipe_node_name is missing", expected="the node's private IP address"
                )
        elif self.around.nodes and name not in self.around.nodes:
            yield self.fault(
                "blueprint.update-node",
                f"{name!r} is no node of the cluster",
                expected=f"one of {_some(self.around.nodes)}",
            )
        elif not _is_private(name):
            yield self.fault(
                "blueprint.update-node",
                f"{name!r}",
                expected="the node's private IP address, its name in kubectl get nodes",
            )
        labels = self.payload.get("recipe_node_labels") or {}
        if "recipe_node_labels" in self.wrong or (layout and not labels):
            return
        for key, value in labels.items():
            if not _LABEL.fullmatch(value):
                yield self.fault(
                    "blueprint.update-labels",
                    f"{key} is {value!r}",
                    expected="at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last",
                )
        if not labels.get("corrino"):
            yield self.fault(
                "blueprint.update-labels", "no label corrino", expected="the name of the pool, e.g. h100pool"
            )
        for key, value in self.facts["node_labels"].items():
            if labels.get(key) != value:
                # a node without RDMA has no label of it
                plain = key == "corrino/rdma" and key not in labels and len(labels) > 1
                yield self.fault(
                    "blueprint.update-labels",
                    f"{key} is {labels.get(key)!r}",
                    expected=f"{value!r}, else RDMA is not scheduled",
                    severity="warning" if plain else "error",
                )


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")


def _is_private(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_private
    except ValueError:
        return False


def _value(args: Sequence[str], names: Sequence[str]) -> Optional[str]:
    """The text after ``--name`` or ``--name=``; the name may be spelled with underscores. "" = nothing follows."""
    for index, item in enumerate(args):
        key, equals, value = item.partition("=")
        if key.replace("_", "-") in names:
            return value if equals else args[index + 1] if index + 1 < len(args) else ""
    return None


def _number(args: Sequence[str], names: Sequence[str]) -> Optional[int]:
    value = _value(args, names)
    return None if value is None else int(value)
