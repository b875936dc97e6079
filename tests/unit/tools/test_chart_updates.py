# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a chart's new release changes, from files and from the real operators' values and definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chart_updates
import pytest
import yaml
from support.paths import upstream


def definition(fields: dict[str, Any]) -> dict[str, Any]:
    schema = {"properties": {"spec": {"properties": fields}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {"kind": "CustomResourceDefinition", "metadata": {"name": "a.x.io"}, "spec": {"versions": [version]}}


def release(folder: Path, *documents: Any) -> chart_updates.ChartRelease:
    folder.mkdir()
    (folder / "all.yaml").write_text(yaml.safe_dump_all(documents))
    return chart_updates.ChartRelease.read(folder)


def test_each_kind_of_change_is_a_line(tmp_path: Path) -> None:
    role = {"kind": "ClusterRole", "rules": [{"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]}]}
    old = release(
        tmp_path / "old",
        {"plugin": {"repository": "r", "image": "p", "version": "1", "enabled": True}, "gone": 1, "same": [1]},
        definition({"a": {"properties": {"b": {}}}}),
        role,
    )
    more = {**role, "rules": [*role["rules"], {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    new = release(
        tmp_path / "new",
        {"plugin": {"repository": "r", "image": "p", "version": "2", "enabled": False}, "same": [1]},
        definition({"c": {"items": {"properties": {"d": {}}}}}),
        more,
    )
    assert list(chart_updates.changes(old, new)) == [
        "~ image plugin.version: r/p:1 -> r/p:2",
        "- value gone: 1",
        "~ value plugin.enabled: true -> false",
        "- field a.x.io v1.spec.a",
        "+ field a.x.io v1.spec.c",
        "+ right ClusterRole: list pods",
    ]
    assert list(chart_updates.changes(old, old)) == []


@pytest.mark.parametrize(("operator", "old", "new", "line"), [
    ("gpu-operator", "v26.3.3", "v26.7.0", "+ definition gpuclusters.nvidia.com: v1alpha1 (stored)"),
    ("gpu-operator", "v26.3.3", "v26.7.0", "~ value dcgmExporter.serviceMonitor.enabled: false -> true"),
    ("network-operator", "v26.4.1", "v26.7.0-rc.2",
     "+ field nicclusterpolicies.mellanox.com v1alpha1.status.conditions"),
])  # fmt: skip
def test_the_operators_own_releases(tmp_path: Path, operator: str, old: str, new: str, line: str) -> None:
    found = []
    for version in (old, new):
        (tmp_path / version).mkdir()
        (tmp_path / version / "values.yaml").symlink_to(upstream("values", operator, f"{version}.yaml"))
        for path in upstream("crds", operator, version).iterdir():
            (tmp_path / version / path.name).symlink_to(path)
        found.append(chart_updates.ChartRelease.read(tmp_path / version))
    assert line in list(chart_updates.changes(*found))
