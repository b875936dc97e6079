# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list as files: what skopeo-sync(1) documents, and a script that any shell reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import texts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Listing, Need, Unlisted

DIGEST = "sha256:" + "a" * 64
FOUND = Listing(
    {"nvcr.io/nvidia/x:1": "b" * 64},
    {
        "nvcr.io/nvidia/x:1": ["a", "b", "c", "d", "e"],
        "nvcr.io/nvidia/x:2": ["a"],
        f"ghcr.io/y/z:3@{DIGEST}": ["a"],
        "registry.k8s.io/pause": ["a"],
        "own.example:5000/$(touch x)/q:1": ["a"],
    },
    [
        Need("chart", "https://charts.example/gpu-operator:v1", ("release gpu_operator",)),
        Need("file", "https://get.example/helm.tar.gz", ("control node: Helm",), DIGEST),
        Need("package", "jinja2>=3.1", ("control node: pip",)),
        Need("package", "kubernetes.core:>=6", ("control node: collection",)),
    ],
    [Unlisted("images of OLM", "they are in a catalogue")],
)


def test_text_has_places_digests_users_and_what_is_not_known() -> None:
    lines = texts.text(FOUND, "m.example/r").splitlines()
    assert lines[0] == "container images: 5"
    assert "  nvcr.io/nvidia/x:1 -> m.example/r/nvidia/x:1" in lines
    assert f"    sha256:{'b' * 64}" in lines and "    for a; b; c; d; and 1 more" in lines
    assert "  own.example:5000/$(touch x)/q:1" in lines, "another private registry stays"
    assert lines[-2:] == ["not known: 1", "  images of OLM: they are in a catalogue"]
    assert "->" not in texts.text(FOUND, "")
    assert texts.summary(FOUND) == "5 images, 1 chart, 1 file, 2 packages; 1 part not known"


def test_sync_file_is_as_the_manual_has_it() -> None:
    assert yaml.safe_load(texts.sync([need for need in FOUND.needs if need.kind == "image"])) == {
        "nvcr.io": {"images": {"nvidia/x": ["1", "2"]}},
        "ghcr.io": {"images": {"y/z": [DIGEST]}},
        "registry.k8s.io": {"images": {"pause": ["latest"]}},
        "own.example:5000": {"images": {"$(touch x)/q": ["1"]}},
    }


def test_script_is_one_for_any_shell_and_runs_nothing_of_a_name(tmp_path: Path) -> None:
    text = texts.script(FOUND)
    (tmp_path / "carry.sh").write_text(text)
    assert subprocess.run(["sh", "-n", "carry.sh"], cwd=tmp_path, check=False).returncode == 0
    assert 'skopeo copy --all dir:images/nvcr.io/nvidia/x:1 "docker://$to"/nvidia/x:1' in text
    assert f'skopeo copy --all dir:images/ghcr.io/y/z@{DIGEST} "docker://$to"/y/z@{DIGEST}' in text
    assert "own.example" not in text, "what stays in its registry is not pushed"
    assert "pip download -d packages 'jinja2>=3.1'" in text
    assert "ansible-galaxy collection download -p collections 'kubernetes.core:>=6'" in text
    for command in (["carry.sh"], ["carry.sh", "push"]):
        done = subprocess.run(["sh", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "usage: sh carry.sh" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["carry.sh"]


def test_inputs_of_the_sealed_network() -> None:
    text = texts.inputs("m.example/r", {"gpu_operator": "m/charts/g.tgz"}, {"rdma_probe_image": "python:3"})
    assert yaml.safe_load(text) == {
        "rdma_image_registry": "m.example/r",
        "rdma_charts": {"gpu_operator": "m/charts/g.tgz"},
        "rdma_probe_image": "m.example/r/library/python:3",
    }
    assert yaml.safe_load(texts.inputs("", {}, {"rdma_probe_image": "python:3"})) is None
