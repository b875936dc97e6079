# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which images, charts and manifests a plan needs. PRIVATE to the collection.

listing(plan, rendered, features, table)  what is needed, each with what needs it; what is not known
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NodeSystem, Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import located, lookup, moved

_CONTAINERS = ("containers", "initContainers")
_ARGUMENT = re.compile(r"--[\w-]*image=(\S+)")
Rendered = Mapping[str, Union[Sequence[Json], str]]
"""Release -> its objects, or why they cannot be read."""


@dataclass(frozen=True)
class Need:
    """``kind``: image, chart, manifest, file or package. ``ref``: how it is asked for; of an image with its registry.
    ``digest``: ``sha256:...`` where one is published."""

    kind: str
    ref: str
    by: tuple[str, ...]
    digest: str = ""


@dataclass(frozen=True)
class Unlisted:
    """What is needed and cannot be named, and why."""

    what: str
    why: str


@dataclass
class Listing:
    """``images``: reference -> who needs it."""

    digests: Mapping[str, str] = field(default_factory=dict)
    images: dict[str, list[str]] = field(default_factory=dict)
    others: list[Need] = field(default_factory=list)
    unknown: list[Unlisted] = field(default_factory=list)

    def add(self, image: str, by: str) -> None:
        """Notes who needs the image; "" is none."""
        known = self.images.setdefault(located(image), []) if image else [by]
        known += [by] if by not in known else []

    @property
    def needs(self) -> list[Need]:
        """All of them, images first."""
        digest = {ref: f"sha256:{self.digests[ref]}" for ref in self.images if ref in self.digests}
        found = [Need("image", ref, tuple(by), digest.get(ref, "")) for ref, by in sorted(self.images.items())]
        return [*found, *self.others]


def listing(plan: Plan, rendered: Rendered, features: Mapping[str, str], table: Json) -> Listing:
    """``features``: input -> image that another playbook uses. ``table``: files/mirror.yml."""
    found = Listing({moved(ref, plan.image_registry): digest for ref, digest in table["digests"].items()})
    walk = _Walk(found, plan.systems, table)
    for key, release in plan.releases.items():
        if release.action != "absent":
            _release(walk, plan, key, release, rendered.get(key, ()))
    for stage, objects in plan.objects.items():
        walk.objects(objects, f"stage {stage}")
    for test in plan.tests:
        found.add(test.image, "NCCL test, scan, gate, ib_write_bw")
    found.add(plan.probe.image, "host checks, VF configuration, nvidia_peermem, probes of other playbooks")
    for name, image in features.items():
        found.add(image, f"playbooks that read {name}")
    if "operator" in (plan.driver, plan.ofed):
        what = "packages of the nodes' system, such as kernel headers"
        why = "containers of drivers load packages when they start, also with mirrored images; give them a repository"
        why += " (repositories in rdma_driver_packages), or use node images with drivers"
        found.unknown.append(Unlisted(what, why))
    return found


def _release(walk: _Walk, plan: Plan, key: str, release: Release, objects: Union[Sequence[Json], str]) -> None:
    found, by = walk.found, f"{release.chart} {release.version}".strip()
    if release.action == "olm":
        for one in plan.olm.get(key, ()):
            what = f"images of the operator {one.package}, {one.csv or one.channel or 'the default channel'}"
            found.unknown.append(
                Unlisted(what, f"the bundles of the catalogue {one.source} have them; oc-mirror copies it")
            )
    elif release.addons:
        found.unknown.append(Unlisted(f"images of OKE's add-on for {key}", "Oracle chooses and serves them"))
    elif isinstance(objects, str):
        found.unknown.append(Unlisted(f"images of {by}", objects))
    elif release.manifest:
        found.others.append(Need("manifest", release.manifest, (f"release {key}",)))
        walk.objects(objects, by)
    else:
        place = release.ref or f"{release.repo.rstrip('/')}/{release.chart}"
        found.others.append(Need("chart", f"{place}:{release.version}", (f"release {key}",)))
        walk.objects(objects, by)


@dataclass(frozen=True)
class _Walk:
    """Adds to ``found`` what objects need."""

    found: Listing
    systems: Sequence[NodeSystem]
    table: Json

    def objects(self, objects: Iterable[Json], by: str) -> None:
        """The images of these objects and of what operators make of them."""
        for item in objects:
            who = f"{by}: {item['kind']} {item['metadata']['name']}"
            if item["kind"] == "CustomResourceDefinition":
                continue
            for image in _of_pods(item):
                self.found.add(image, who)
            spec = mapping(item.get("spec"))
            suffixed = mapping(self.table["suffixed"].get(item["kind"]))
            for section, image in _parts(spec, spec.get("global"), "", self._unused(item["kind"], spec)):
                if image.endswith(":"):
                    self.found.unknown.append(Unlisted(f"version of {image[:-1]}", f"{who} names none in {section}"))
                elif section in suffixed.get("sections", ()) and "@" not in image:
                    self._of_systems(item["kind"], spec, image, who)
                else:
                    self.found.add(image, who)

    def _unused(self, kind: str, spec: Json) -> list[str]:
        """Sections of a policy that its operator makes no pods of."""
        rules = self.table["unused"].get(kind, ())
        return [name for rule in rules if lookup(spec, rule["unless"]) is not True for name in rule["sections"]]

    def _of_systems(self, kind: str, spec: Json, image: str, who: str) -> None:
        """The image with the tag of each system."""
        rule = self.table["suffixed"][kind]
        form = rule["precompiled" if lookup(spec, rule["precompiled_by"]) is True else "built"]
        place, _sep, version = image.rpartition(":")
        if not self.systems:
            self.found.unknown.append(Unlisted(f"tag of {image}", "no node's system is known: set rdma_mirror_systems"))
        for one in self.systems:
            tag = os_tag(one.os_image, kind, self.table)
            what = f"tag of {image} for {one.os_image}"
            if not tag:
                self.found.unknown.append(
                    Unlisted(
                        what, "no tag of its images is known for it; rdma_mirror_systems takes whole names of systems"
                    )
                )
            elif "{kernel}" in form and not one.kernel:
                self.found.unknown.append(Unlisted(what, "it contains the kernel, and no cluster was read"))
            else:
                made = form.format(version=version, os=tag, kernel=one.kernel, arch=one.arch or "amd64")
                self.found.add(f"{place}:{made}", who)


def _of_pods(tree: Any) -> Iterator[str]:
    """Images of all containers in an object, and those that their variables and arguments name."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _of_pods(item)
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if key not in _CONTAINERS or not isinstance(value, (list, tuple)):
            yield from _of_pods(value)
            continue
        for one in value:
            yield str(one.get("image") or "")
            variables = [entry for entry in one.get("env") or () if str(entry.get("name")).endswith("_IMAGE")]
            yield from (str(entry.get("value") or "") for entry in variables)
            words = map(str, [*(one.get("command") or ()), *(one.get("args") or ())])
            yield from (named[1] for word in words if (named := _ARGUMENT.fullmatch(word)))


def _parts(tree: Json, common: Any, path: str, unused: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(section, image) of a spec whose parts name their images, but for those that are switched off."""
    if tree.get("enabled") is False or path in unused:
        return
    if isinstance(tree.get("image"), str) and (tree.get("repository") or tree.get("version")):
        yield path, operands.image(tree, common)
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _parts(dict(value), common, f"{path}.{key}" if path else str(key), unused)


def os_tag(os_image: str, kind: str, table: Json) -> str:
    """A system in the tags of a policy's drivers, ``ubuntu22.04``; "" where it has none."""
    for one in table["systems"]:
        if matched := re.search(one["match"], os_image):
            return str(one[kind]).format(*matched.groups())
    return ""
