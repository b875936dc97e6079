# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the charts of a plan, and writes the list of what it needs. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import needs, texts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Listing, Need, Rendered, Unlisted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values, render

ROOT = files.FILES.parent


def of_plan(plan: Plan, features: Mapping[str, str]) -> tuple[Listing, Rendered]:
    """What a plan needs, and the objects of its releases. ``features``: see ``needs.listing``."""
    rendered: dict[str, list[Json] | str] = {}
    for key, release in plan.releases.items():
        if not release.elsewhere and not release.addons:
            try:
                objects = render.objects(release, plan.server_version)
                # As the run applies a manifest; a chart's images follow from its values.
                moves = release.image_registry if release.manifest else ""
                rendered[key] = chart_values.with_images(objects, moves, ()) if moves else objects
            except InputError as error:
                rendered[key] = str(error)
    return needs.listing(plan, rendered, features, files.document("mirror.yml")), rendered


def write(task: Task, args: Json) -> Json:
    """Writes the list to the folder ``dest``; returns counts and what is not known. The secrets
    of a plan below that folder are removed, since no run follows that needs them."""
    place, dest, registry = Path(args["plan"]), Path(args["dest"]), args["registry"].rstrip("/")
    plan = run.read_plan(str(place))
    features = {name: str(image) for name, image in args["features"].items() if image}
    features.update({name: str(image or plan.probe.image) for name, image in args["probes"].items()})
    found, rendered = of_plan(plan, features)
    found.others += _control_node(found)
    charts = dict(_charts(plan, rendered, dest))
    wanted = {
        "list.txt": texts.text(found, registry),
        "sync.yml": texts.sync([need for need in found.needs if need.kind == "image"]),
        "carry.sh": texts.script(found),
        "inputs.yml": texts.inputs(registry, {name: str(file) for name, (file, _data) in charts.items()}, features),
    }
    contents = {dest / name: text.encode() for name, text in wanted.items()} | dict(charts.values())
    changed = [file for file, data in contents.items() if not file.is_file() or file.read_bytes() != data]
    document = {"counts": texts.counts(found), "needs": to_dict(found.needs), "unknown": to_dict(found.unknown)}
    if not task.check_mode:
        (dest / "charts").mkdir(parents=True, exist_ok=True)
        for file in changed:
            files.put(file, contents[file], 0o644)
        run.write(dest / "list.json", document)
    if dest in place.parents:
        run.forget_plan(place.parent)
    for one in found.unknown:
        task.progress(f"not known: {one.what}: {one.why}")
    task.progress(f"{texts.summary(found)}: {dest / 'list.txt'}")
    return {**document, "changed": bool(changed), "dest": str(dest)}


def _charts(plan: Plan, rendered: Rendered, dest: Path) -> Iterator[tuple[str, tuple[Path, bytes]]]:
    """(key of rdma_charts, (file, its content)) of the charts that the plan fetched, and of manifests."""
    for key, release in plan.releases.items():
        objects = rendered.get(key, ())
        if release.manifest and not isinstance(objects, str):
            text = yaml.safe_dump_all(objects, sort_keys=False)
            yield release.operator, (dest / f"charts/{release.operator}.yml", text.encode())
        elif release.archive and Path(release.archive).is_file():
            archive = Path(release.archive)
            yield release.operator, (dest / "charts" / archive.name, archive.read_bytes())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _control_node(found: Listing) -> Iterator[Need]:
    """What the control node needs: Helm, packages, collections, and the base of the execution environment."""
    helm = files.document("control_node.yml")["helm"]["install"]
    for platform, digest in helm["sha256"].items():
        if platform.startswith("linux-"):
            url = helm["url"].format(version=helm["version"], platform=platform)
            yield Need("file", url, ("control node: Helm",), f"sha256:{digest}")
    for line in _text(ROOT / "requirements.txt").splitlines():
        if line and not line.startswith("#"):
            yield Need("package", line, ("control node: pip",))
    for one in yaml.safe_load(_text(ROOT / "requirements.yml") or "{}").get("collections", ()):
        yield Need("package", f"{one['name']}:{one['version']}", ("control node: collection",))
    base = yaml.safe_load(_text(ROOT / "execution-environment.yml") or "{}").get("images", {}).get("base_image", {})
    if base:
        found.add(str(base["name"]), "execution environment for AWX, which is built on it")
    found.unknown.append(Unlisted("image of the execution environment", "you build it for AWX: docs/awx.md"))
    found.unknown.append(
        Unlisted("system packages of the control node", "bindep.txt names them; they follow its system")
    )
