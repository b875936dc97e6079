# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the charts of a plan, and writes the list of what it needs. PRIVATE to the collection."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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


def of_plan(plan: Plan, features: Json) -> tuple[Listing, Rendered]:
    """What a plan needs, and the objects of its releases. ``features``: as in ``needs.listing``; an image "" is that of
    the plan's probe."""
    rendered: dict[str, list[Json] | str] = {}
    for key, release in plan.releases.items():
        if not release.elsewhere and not release.addons:
            try:
                objects = render.objects(release, plan.server_version)
                # As the run applies it; charts have their values.
                moves = bool(release.manifest)
                rendered[key] = chart_values.with_images(objects, release.image_registry, ()) if moves else objects
            except InputError as error:
                rendered[key] = str(error)
    chosen = {name: str(image or plan.probe.image) for name, image in features.items()}
    return needs.listing(plan, rendered, chosen, files.document("mirror.yml")), rendered


def write(task: Task, args: Json) -> Json:
    """Writes the list to the folder ``dest``; returns counts, what is not known, and the paths."""
    plan, dest, registry = run.read_plan(args["plan"]), Path(args["dest"]), args["registry"].rstrip("/")
    found, rendered = of_plan(plan, args["features"])
    found.others += _control_node(found)
    known = [need for need in found.needs if need.kind == "image"]
    wanted = {
        "list.txt": texts.text(found, registry),
        "sync.yml": texts.sync(known),
        "carry.sh": texts.script(found),
    }
    charts = {}
    for key, release in plan.releases.items():
        objects = rendered.get(key, ())
        if release.manifest and not isinstance(objects, str):
            name = f"charts/{release.operator}.yml"
            wanted[name] = yaml.safe_dump_all(objects, sort_keys=False)
            charts[release.operator] = str(dest / name)
        elif release.archive and Path(release.archive).is_file():
            charts[release.operator] = str(dest / "charts" / Path(release.archive).name)
    chosen = {name: str(image or plan.probe.image) for name, image in args["features"].items()}
    wanted["inputs.yml"] = texts.inputs(registry, charts, chosen)
    document = {"counts": texts.counts(found), "needs": to_dict(found.needs), "unknown": to_dict(found.unknown)}
    changed = [name for name, text in wanted.items() if _text(dest / name) != text]
    if not task.check_mode:
        (dest / "charts").mkdir(parents=True, exist_ok=True)
        for name in changed:
            files.replace(dest / name, wanted[name])
        for release in plan.releases.values():
            if release.operator in charts and not release.manifest:
                shutil.copyfile(release.archive, charts[release.operator])
        run.write(dest / "list.json", document)
    for one in found.unknown:
        task.progress(f"not known: {one.what}: {one.why}")
    task.progress(f"{texts.summary(found)}: {dest / 'list.txt'}")
    return {**document, "changed": bool(changed), "dest": str(dest)}


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
