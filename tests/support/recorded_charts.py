# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real charts contain, as fixtures/recordings/charts has it, in the form of manifests."""

from __future__ import annotations

from typing import Any

import yaml

from support.paths import ROOT

FOLDER = ROOT / "tests/fixtures/recordings/charts"
NAMESPACE = "operators"
"""Of the releases that were recorded."""
CASES = [
    (path.stem, variant)
    for path in sorted(FOLDER.glob("*.yml"))
    for variant in yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["rendered"]
]
"""(chart, variant of its values)"""


def rendered(chart: str, variant: str) -> list[dict[str, Any]]:
    """The recorded objects, and the chart's definitions."""
    recorded = yaml.load((FOLDER / f"{chart}.yml").read_text("utf-8"), yaml.CSafeLoader)
    objects = [_manifest(item) for item in recorded["rendered"][variant]["objects"]]
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return [*objects, *({**crd, "metadata": {"name": item["name"]}} for item in recorded["crds"])]


def _manifest(item: dict[str, Any]) -> dict[str, Any]:
    notes = {key: value for key, value in item.items() if key.startswith("helm.sh/")}
    meta = {"name": item["name"], "annotations": notes}
    meta.update({"namespace": item["namespace"]} if "namespace" in item else {})
    made = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": meta}
    made.update({"rules": item["rules"]} if "rules" in item else {})
    if "roleRef" in item:
        kind, _sep, name = item["roleRef"].partition("/")
        made["roleRef"] = {"kind": kind, "name": name}
    return made
