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
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, is_int
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import checks, schema

RDMA = "multinode_rdma_enabled_in_shared_pool"
NODES = "multinode_num_nodes_to_use_from_shared_pool"
_AD = re.compile(r"[A-Za-z0-9]{4}:(?P<region>[A-Z0-9-]+)-AD-[1-3]")
Findings = Iterator[Finding]


@dataclass(frozen=True)
class BlueprintContext:
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


def lint(
    documents: Union[Json, Sequence[Json]], facts: Json, around: Optional[BlueprintContext] = None
) -> list[Finding]:
    """All faults of one document, or of several to be sent together, in order.

    Severity ``error``: the server refuses it, or does something unintended; ``warning``: worth checking.
    """
    around = around or BlueprintContext()
    found: list[Finding] = []
    payloads: list[Json] = []
    for document in [documents] if isinstance(documents, Mapping) else documents:
        found += _unpack(document, facts, payloads)
    pools = {**around.pools, **_pools(payloads)}
    around = dataclasses.replace(around, mig=(*around.mig, *_layouts(payloads)))
    found += [*_names(payloads, around), *_served(payloads, around)]
    found += [*_shared(payloads, around), *_updates(payloads)]
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
            yield finding("blueprint.name", name, found, expected="a unique name for each")
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
            "blueprint.depends-on", name, "depends on itself through others", expected="dependencies without a cycle"
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
            yield finding(
                "blueprint.depends-on", name, f"{found}, which is not a deployment of the group", expected=known
            )
        elif key not in exports[other]:
            yield finding(
                "blueprint.depends-on", name, f"{found}, which does not export it", expected=f"exports: [{key}]"
            )
        elif other not in before:
            expected = f"depends_on: [{other}]"
            yield finding("blueprint.depends-on", name, f"{found}, but does not wait for it", expected=expected)
    pools = [one for one, item in recipes.items() if item.get("recipe_mode") == "shared_node_pool"]
    uses = recipe.get("recipe_mode") in ("service", "job") and recipe.get("recipe_use_shared_node_pool") is True
    if uses and pools and not before & set(pools):
        found = f"it does not wait for the group's pool {', '.join(pools)}"
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


def _served(payloads: Sequence[Json], around: BlueprintContext) -> Findings:
    """Users of RDMA whose shape no pool sent with them has, where no other pool is known."""
    pools = [item for item in payloads if item.get("recipe_mode") == "shared_node_pool"]
    with_rdma = sorted({str(item.get("shared_node_pool_shape")) for item in pools if item.get(RDMA) is True})
    for item in payloads if pools and not around.pools else ():
        shape = item.get("recipe_node_shape")
        if item.get("recipe_mode") in ("service", "job") and item.get(RDMA) is True and shape not in with_rdma:
            yield finding(
                "blueprint.shared-pool",
                str(item.get("deployment_name")),
                f"RDMA on {shape}, but no pool that is deployed with it has RDMA",
                expected=f"one of {', '.join(with_rdma)}" if with_rdma else f"{RDMA}: true on the pool",
            )


def _names(payloads: Sequence[Json], around: BlueprintContext) -> Findings:
    names = [item["deployment_name"] for item in payloads if isinstance(item.get("deployment_name"), str)]
    for index, name in enumerate(names):
        like = next((item for item in names[:index] if _plain(item) == _plain(name)), "")
        if name in names[:index]:
            found, expected = "two documents have this deployment_name", "a unique name for each"
            yield finding("blueprint.name", name, found, expected=expected)
        elif like and _plain(name):
            found = (
                f"{like!r} differs only in capital letters and punctuation, which names in the cluster do not preserve"
            )
            yield finding("blueprint.name", name, found, expected="names that differ", severity="warning")
        if name in around.names:
            remedy, found = "undeploy it or rename", "a deployment of this name exists"
            yield finding("blueprint.name", name, found, expected="a new name", remedy=remedy)


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _is(item: Json, mode: str) -> bool:
    users = item.get("recipe_mode") in ("service", "job") and item.get("recipe_use_shared_node_pool") is True
    return users if mode == "user" else item.get("recipe_mode") == mode


def _shared(payloads: Sequence[Json], around: BlueprintContext) -> Findings:
    """What those that share pools ask for together, against the pools that there are and that are sent with them. Of
    pools that are there only the number of nodes is known: they are one, and a part of a node counts nothing."""
    pools = [item for item in payloads if _is(item, "shared_node_pool")]
    together: dict[tuple[int, ...], list[Json]] = {}
    for item in filter(lambda item: _is(item, "user"), payloads):
        chosen = item.get("recipe_shared_node_pool_selector")
        key, wanted = ("selector", chosen) if chosen else ("shape", item.get("recipe_node_shape"))
        mine = tuple(index for index, pool in enumerate(pools) if pool.get(f"shared_node_pool_{key}") == wanted)
        together.setdefault(() if around.pools else mine, []).append(item)
        if chosen and pools and not around.pools and not mine:
            known = ", ".join(sorted(str(pool.get("shared_node_pool_selector")) for pool in pools))
            found = (
                f"recipe_shared_node_pool_selector is {chosen!r}, but no pool that is deployed with it has this shape"
            )
            yield finding("blueprint.shared-pool", str(item.get("deployment_name")), found, expected=f"one of {known}")
    for mine, users in together.items():
        whole = bool(around.pools)
        gpus = 1 if whole else around.gpus.get(str(users[0].get("recipe_node_shape")), 1)
        here = pools if whole else [pools[index] for index in mine]
        most = gpus * sum([*around.pools.values(), *(_count(pool, "shared_node_pool_size", 0) for pool in here)])
        asked = sum(_gpus(item, gpus, whole) for item in users)
        if (whole or here) and asked > most and (len(users) > 1 or NODES not in users[0]):
            names, what = ", ".join(str(item.get("deployment_name")) for item in users), "GPUs" if gpus > 1 else "nodes"
            found, expected = f"{asked} {what} are requested by {names} together", f"at most {most}, all of their pools"
            yield finding("blueprint.nodes", str(users[-1].get("deployment_name")), found, expected=expected)


def _count(item: Json, key: str, default: int) -> int:
    return item[key] if is_int(item.get(key)) else default


def _gpus(item: Json, gpus: int, whole: bool) -> int:
    """GPUs, or nodes where ``whole``, that a user of a pool needs; a part of a node is no node."""
    nodes = _count(item, NODES, 0 if whole else 1) * max(_count(item, "recipe_replica_count", 1), 1)
    each = _count(item, "recipe_nvidia_gpu_count", _count(item, "recipe_amd_gpu_count", gpus if NODES in item else 0))
    return nodes if whole or gpus == 1 else nodes * min(each, gpus)


def _updates(payloads: Sequence[Json]) -> Findings:
    """Updates of pools that the same documents make: their nodes are not there yet, and are labelled when they are."""
    pools = [item for item in payloads if _is(item, "shared_node_pool")]
    for item in payloads:
        labels = item.get("recipe_node_labels")
        named = (item.get("recipe_node_pool_name"), labels.get("corrino") if isinstance(labels, Mapping) else None)
        own = ("deployment_name", "shared_node_pool_selector")
        pool = next((pool for pool in pools if any(pool.get(key) in named and pool.get(key) for key in own)), None)
        if item.get("recipe_mode") != "update" or pool is None:
            continue
        subject, name, layout = (
            str(item.get("deployment_name")),
            pool.get(own[0]),
            item.get("shared_node_pool_mig_config"),
        )
        if pool.get(RDMA) is True and layout:
            yield finding("blueprint.mig", subject, f"{layout} on {name}, which has {RDMA}", expected="whole GPUs")
        else:
            yield finding("blueprint.update-pool", subject, f"updates {name}, which the same documents create")


# ---- one blueprint ---------------------------------------------------------------------------------------------------


def _one(payload: Json, facts: Json, around: BlueprintContext, pools: Mapping[str, int]) -> Findings:
    subject = str(payload.get("deployment_name") or "(no deployment_name)")
    faults = list(schema.faults(payload, facts, subject))
    yield from faults
    # A rule that reads a field of the wrong type would only repeat the fault.
    wrong = {item.found.split(" ", 1)[0].split("[")[0].split(".")[0] for item in faults if item.severity == "error"}
    payload = {key: int(value) if schema.whole(value) else value for key, value in payload.items() if key not in wrong}
    rules = _Rules(payload, facts, around, pools, subject, frozenset(wrong))
    yield from checks.faults(payload, facts, rules.fault)
    mode = payload.get("recipe_mode")
    if mode == "shared_node_pool":
        yield from rules.pool()
    elif mode == "update":
        yield from rules.update()
    elif mode in ("service", "job"):
        yield from rules.consumer()


@dataclass(frozen=True)
class _Rules:
    payload: Json
    facts: Json
    around: BlueprintContext
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
                yield self.fault(rule, f"{key} is missing", expected="required for a pool", remedy="")
        if shape.startswith("BM.") and self.missing("shared_node_pool_boot_volume_size_in_gbs"):
            yield self.fault(
                "blueprint.boot-volume",
                f"{shape} without shared_node_pool_boot_volume_size_in_gbs",
                expected="e.g. 1000",
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
                    remedy="create a pool without RDMA for MIG",
                )
        elif shape in self.facts["rdma_shapes"] and self.around.rdma and RDMA not in self.wrong and not plain:
            yield self.fault(
                "blueprint.rdma-flag",
                f"{RDMA} is {'false' if RDMA in self.payload else 'missing'} on a pool of {shape}",
                expected="true",
                remedy="without it the pool has no RDMA until it is deleted and created again; rdma=false accepts this",
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
                f"{name!r} does not exist in this tenancy and region",
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
                "an image in another compartment",
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
        several = on or (count or 1) > 1
        if (
            several
            and not payload.get("recipe_use_shared_node_pool")
            and "recipe_use_shared_node_pool" not in self.wrong
        ):
            yield self.fault(
                "blueprint.shared-pool",
                f"{RDMA if on else NODES} without recipe_use_shared_node_pool",
                expected="recipe_use_shared_node_pool: true",
            )
        if on and self.missing(NODES):
            yield self.fault("blueprint.nodes", f"{RDMA} without {NODES}", expected="number of nodes to use")
        if count is not None:
            yield from self.many(count, on, shape)
        yield from self.arguments(count or 1)
        yield from self.memory(count or 1)
        yield from self.environment(on)
        yield from self.secrets()
        yield from self.mig()

    def environment(self, on: bool) -> Findings:
        """Whether a variable, or an assignment in the command, keeps NCCL from the RDMA that is asked for."""
        given = [
            (str(item.get("key")), str(item.get("value"))) for item in self.payload.get("recipe_container_env") or []
        ]
        words = [*(self.payload.get("recipe_container_command") or []), *self.words()]
        given += re.findall(r"\b(NCCL_\w+)=[\"']?([^\s\"';]*)", " ".join(map(str, words)))
        for key, value in given if on else ():
            if re.fullmatch(self.facts["no_rdma"].get(key, "(?!)"), value.strip()):
                yield self.fault("blueprint.environment", f"{key}={value.strip()} with {RDMA}", expected=f"no {key}")

    def memory(self, nodes: int) -> Findings:
        """Whether /dev/shm is large enough for several nodes, and within the container's memory."""
        key, least = "recipe_shared_memory_volume_size_limit_in_mb", self.facts["shared_memory_mb"]
        size, whole = self.payload.get(key), self.payload.get("recipe_container_memory_size")
        if nodes > 1 and self.missing(key):
            yield self.fault("blueprint.shared-memory", f"{nodes} nodes without {key}", expected=f"{least} or more")
        elif nodes > 1 and size is not None and 0 < size < least:
            yield self.fault(
                "blueprint.shared-memory", f"{key} is {size} with {nodes} nodes", expected=f"{least} or more"
            )
        if size is not None and whole is not None and size > whole * 1024 > 0:
            found = f"{key} is {size}, recipe_container_memory_size {whole} GB"
            yield self.fault("blueprint.shared-memory", found, expected="less than the container's memory")

    def secrets(self) -> Findings:
        """Whether the Secrets named exist in the cluster."""
        named = [item.get("secret_name") for item in self.payload.get("recipe_environment_secrets") or []]
        for name in dict.fromkeys([self.payload.get("recipe_container_secret_name"), *named]):
            if name and self.around.secrets and name not in self.around.secrets:
                known = listed(sorted(self.around.secrets))
                yield self.fault("blueprint.secret", f"the Secret {name} is not there", expected=f"one of {known}")

    def mig(self) -> Findings:
        """Whether a shared pool has the MIG profile; RDMA excludes MIG."""
        asked = self.payload.get("mig_resource_request")
        if asked and self.payload.get(RDMA):
            yield self.fault(
                "blueprint.mig",
                f"{asked} with {RDMA}",
                expected="whole nodes",
                remedy="RDMA needs whole nodes",
            )
        elif asked and self.around.mig and not any(asked in layout for layout in self.around.mig):
            yield self.fault(
                "blueprint.mig", f"no shared pool has {asked}", expected=f"one of {listed(sorted(self.around.mig))}"
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
                f"{count * replicas} nodes requested{each}",
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
        """Whether the shape has as many GPUs per node, of this vendor; with RDMA a node is used as a whole."""
        count, most, amd = self.gpu_count(), self.around.gpus.get(shape), self.facts["amd_shapes"] in shape
        mine, other = ("amd", "nvidia") if amd else ("nvidia", "amd")
        if most is not None and f"recipe_{other}_gpu_count" in self.payload:
            found = f"recipe_{other}_gpu_count on {shape}"
            yield self.fault("blueprint.gpus", found, expected=f"recipe_{mine}_gpu_count")
        if count is not None and most is not None and count > most:
            yield self.fault("blueprint.gpus", f"{count} GPUs per node", expected=f"{shape} has {most}")
        elif count and most is not None and self.payload.get(RDMA) and count < most:
            found = f"{count} GPUs per node with {RDMA}"
            yield self.fault("blueprint.gpus", found, expected=f"{most}, all of {shape}", severity="warning")

    def gpu_count(self) -> Optional[int]:
        """GPUs per node, of either vendor; None if not set, or no integer, which the schema reports."""
        count = self.payload.get("recipe_nvidia_gpu_count", self.payload.get("recipe_amd_gpu_count"))
        return count if is_int(count) else None

    def words(self) -> list[str]:
        """The container's arguments, as a shell would divide them."""
        return [part for item in self.payload.get("recipe_container_command_args") or [] for part in str(item).split()]

    def arguments(self, nodes: int) -> Findings:
        """Whether options that have one value are given once, and fit ports, GPUs and nodes."""
        given = _options(self.words(), self.facts)
        for name, values in given.items():
            if len(values) > 1:
                yield self.fault(
                    "blueprint.argument", f"--{name} is given as {' and '.join(values)}", expected="one of it"
                )
        port, own = given.get("port", [""])[-1], self.payload.get("recipe_container_port")
        if port and own and "$" not in port and port != own:
            yield self.fault("blueprint.port", f"--port is {port}, recipe_container_port is {own}", expected="the same")
        share = given.get("gpu-memory-utilization", [""])[-1]
        if share and "$" not in share and not re.fullmatch(r"0?\.\d*[1-9]\d*|1(\.0*)?", share):
            yield self.fault("blueprint.count", f"--gpu-memory-utilization is {share}", expected="above 0, at most 1")
        for name, own in (("nnodes", nodes), ("nproc-per-node", self.gpu_count())):
            count = given.get(name, [""])[-1]
            if count.isdecimal() and own is not None and int(count) != own:
                yield self.fault("blueprint.count", f"--{name} is {count}", expected=f"{own}, as in the blueprint")
        executor = given.get("distributed-executor-backend", [""])[-1]
        if nodes > 1 and executor in self.facts["one_node_executors"]:
            yield self.fault(
                "blueprint.executor", f"--distributed-executor-backend {executor} on {nodes} nodes", expected="ray"
            )
        yield from self.parallel(nodes, given)

    def parallel(self, nodes: int, given: Mapping[str, Sequence[str]]) -> Findings:
        """Whether tensor x pipeline (x data) parallelism equals nodes x GPUs."""
        kinds = ("tensor", "pipeline", "data")
        texts = {kind: given[f"{kind}-parallel-size"][-1] for kind in kinds if f"{kind}-parallel-size" in given}
        if any("$(" in text for text in texts.values()):
            return  # a variable of the container
        for kind, text in texts.items():
            if not re.fullmatch("[1-9][0-9]{0,8}", text):
                yield self.fault("blueprint.parallelism", f"--{kind}-parallel-size is {text!r}", expected="a number")
                return
        sizes, gpus = {kind: int(texts.get(kind, 1)) for kind in kinds}, self.gpu_count()
        total = math.prod(sizes.values())
        if gpus is None or not texts or total == nodes * gpus:
            return
        shown = [f"{kind} {size}" for kind, size in sizes.items() if kind != "data" or size > 1]
        yield self.fault(
            "blueprint.parallelism",
            f"{' x '.join(shown)} = {total}",
            expected=f"{nodes} nodes x {gpus} GPUs = {nodes * gpus}",
            remedy=f"--tensor-parallel-size {gpus} --pipeline-parallel-size {nodes}",
        )

    # ---- nodes that are added

    def address(self, name: str) -> bool:
        """Whether a node can have this name: an address of a private network, and not that of the network itself."""
        try:
            found = ipaddress.IPv4Address(name)
        except ValueError:
            return False
        networks = [ipaddress.IPv4Network(item) for item in self.facts["node_networks"]]
        return any(found in net and found not in (net[0], net[1], net[-1]) for net in networks)

    def update(self) -> Findings:
        """Rules of a blueprint that adds a node, or changes the MIG layout of a node or a pool."""
        name, layout = self.payload.get("recipe_node_name"), self.payload.get("shared_node_pool_mig_config")
        pool = self.payload.get("recipe_node_pool_name")
        if pool and self.pools and pool not in self.pools:
            known = f"one of {listed(sorted(self.pools))}"
            yield self.fault("blueprint.update-node", f"{pool!r} is not a shared pool", expected=known)
        if name is None:
            if self.missing("recipe_node_name") and not (layout and pool):
                yield self.fault(
                    "blueprint.update-node", "recipe_node_name is missing", expected="the node's private IP address"
                )
        elif self.around.nodes and name not in self.around.nodes:
            yield self.fault(
                "blueprint.update-node",
                f"{name!r} is not a node of the cluster",
                expected=f"one of {listed(sorted(self.around.nodes))}",
            )
        elif not self.address(name):
            yield self.fault(
                "blueprint.update-node",
                f"{name!r}",
                expected="the node's private IP address, its name in kubectl get nodes",
            )
        labels = self.payload.get("recipe_node_labels") or {}
        if "recipe_node_labels" in self.wrong or (layout and not labels):
            return
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
                    expected=f"{value!r}, otherwise RDMA is not scheduled",
                    severity="warning" if plain else "error",
                )


def _options(words: Sequence[str], facts: Json) -> dict[str, list[str]]:
    """Values of the options of ``once``, as ``--name value``, ``--name=value`` or ``-short value``; names may have
    underscores. "" = nothing follows."""
    found: dict[str, list[str]] = {}
    for index, word in enumerate(words):
        key, equals, value = word.partition("=")
        name = key.lstrip("-").replace("_", "-")
        name = facts["short"].get(name, name) if key.startswith("-") else ""
        if name in facts["once"]:
            after = words[index + 1] if index + 1 < len(words) else ""
            found.setdefault(name, []).append(value if equals else after)
    return found
