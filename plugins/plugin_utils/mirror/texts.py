# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of what a plan needs as files: text, YAML for skopeo-sync(1), a script, inputs. PRIVATE."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Listing, Need
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import moved

KINDS = {
    "image": "container images",
    "chart": "charts",
    "manifest": "manifests",
    "file": "files",
    "package": "packages of the control node",
}


def counts(found: Listing) -> dict[str, int]:
    """How many of each kind, and how many unknown parts."""
    kinds = [need.kind for need in found.needs]
    return {**{kind: kinds.count(kind) for kind in KINDS}, "unknown": len(found.unknown)}


def text(found: Listing, registry: str) -> str:
    """For people: each thing with its place in the registry and what needs it."""
    lines: list[str] = []
    for kind, title in KINDS.items():
        of = [need for need in found.needs if need.kind == kind]
        lines += [f"{title}: {len(of)}"] if of else []
        for need in of:
            there = moved(need.ref, registry) if kind == "image" and registry else need.ref
            lines.append(f"  {need.ref}" + (f" -> {there}" if there != need.ref else ""))
            lines += [f"    {need.digest}"] if need.digest else []
            lines.append(f"    for {listed(need.by, separator='; ')}")
    lines += [f"not known: {len(found.unknown)}"] + [f"  {one.what}: {one.why}" for one in found.unknown]
    return "\n".join(lines) + "\n"


def summary(found: Listing) -> str:
    """The counts in words."""
    number = counts(found)
    parts = [counted(number[kind], kind) for kind in KINDS if number[kind]]
    unknown = f"; {counted(number['unknown'], 'part')} not known" if number["unknown"] else ""
    return ", ".join(parts) + unknown


def split(ref: str) -> tuple[str, str, str]:
    """(registry, repository, tag or digest) of a whole reference; a tag beside a digest does not count."""
    host, _sep, rest = ref.partition("/")
    name, at, digest = rest.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _colon, tag = last.partition(":")
    return host, f"{folder}{slash}{last}", digest if at else tag or "latest"


def whole(ref: str) -> str:
    """The reference as skopeo writes it, with its tag or digest."""
    host, repository, tag = split(ref)
    return f"{host}/{repository}{'@' if ':' in tag else ':'}{tag}"


def sync(images: Sequence[Need]) -> str:
    """The source file of ``skopeo sync --src yaml``."""
    lines = []
    tree: dict[str, dict[str, list[str]]] = {}
    for need in images:
        host, repository, tag = split(need.ref)
        tree.setdefault(host, {}).setdefault(repository, []).append(tag)
    for host, repositories in sorted(tree.items()):
        lines += [f"{host}:", "  images:"]
        for repository, tags in sorted(repositories.items()):
            lines += [f"    {repository}:", *(f"      - {json.dumps(tag)}" for tag in sorted(set(tags)))]
    return "\n".join(["---", *lines]) + "\n"


SCRIPT = """\
#!/bin/sh
# Carries what list.txt names into a network without the internet. Needs skopeo, curl, pip and ansible-galaxy.
#   sh carry.sh pull            where the internet is: everything comes into this folder
#   sh carry.sh push REGISTRY   where the registry is: the images go there; log in first with skopeo login
set -eu
cd "$(dirname "$0")"
case "${1:-}" in
pull)
  skopeo sync --all --scoped --keep-going --src yaml --dest dir sync.yml images
  mkdir -p files packages collections
@files@
  ;;
push)
  to="${2:?usage: sh carry.sh push REGISTRY}"
@push@
  ;;
*)
  echo "usage: sh carry.sh pull | sh carry.sh push REGISTRY" >&2
  exit 2
  ;;
esac
"""


def script(found: Listing) -> str:
    """A shell script that brings everything over, by a folder."""
    files, push = [], []
    for need in found.needs:
        if need.kind == "image":
            # REGISTRY stands for the variable: moved() knows the way of an image below any registry
            there = moved(whole(need.ref), "REGISTRY")
            target = f'"docker://$to"/{shlex.quote(there.removeprefix("REGISTRY/"))}'
            if there.startswith("REGISTRY/"):
                push.append(f"  skopeo copy --all dir:images/{shlex.quote(whole(need.ref))} {target}")
        elif need.kind == "file":
            name = shlex.quote(f"files/{need.ref.rpartition('/')[2]}")
            files.append(f"  curl -fsSL -o {name} {shlex.quote(need.ref)}")
            files.append(f"  echo {need.digest.removeprefix('sha256:')}' '{name} | sha256sum -c -")
        elif need.kind == "package":
            how = (
                "ansible-galaxy collection download -p collections"
                if need.by[0].endswith("collection")
                else "pip download -d packages"
            )
            files.append(f"  {how} {shlex.quote(need.ref)}")
    return SCRIPT.replace("@files@", "\n".join(files)).replace("@push@", "\n".join(push))


def inputs(registry: str, charts: Mapping[str, str], features: Mapping[str, str]) -> str:
    """The inputs of runs in the sealed network, as a file of variables. ``charts``: key of rdma_charts -> file.
    ``features``: input of another playbook -> image, which rdma_image_registry does not move."""
    others = {name: moved(image, registry) for name, image in features.items()} if registry else {}
    own: Json = {"rdma_image_registry": registry, "rdma_charts": dict(charts), **others}
    lines = [f"{name}: {json.dumps(value)}" for name, value in own.items() if value]
    return "\n".join(["---", "# Inputs for runs where only the mirror can be reached.", *lines]) + "\n"
