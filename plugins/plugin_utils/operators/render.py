# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders a release's chart by ``helm template``, without a request to the cluster. PRIVATE to the collection."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts_io, helm

TIMEOUT = 120.0
"""Seconds for a chart to be downloaded and rendered."""


def objects(want: Release, server_version: str = "", api_versions: Sequence[str] = ()) -> list[Json]:
    """All objects that installing the release makes, definitions and hooks too. ``api_versions``: what the cluster
    serves. Raises InputError if the chart or manifest cannot be reached or rendered."""
    return manifest(want) if want.manifest else parsed(text(want, server_version, api_versions))


def text(
    want: Release, server_version: str = "", api_versions: Sequence[str] = (), binary: Optional[str] = None
) -> str:
    """What ``helm template`` prints, with the definitions; each file of the chart is named in a comment. Raises
    InputError if the chart cannot be reached or rendered."""
    command = [helm.path(binary), "template", want.name, *charts_io.words(want), "--namespace", want.namespace]
    command += ["--include-crds", "--skip-tests"]
    command += ["--values", "-"]
    command += [] if want.action == "install" else ["--is-upgrade"]
    command += ["--kube-version", server_version] if server_version else []
    command += [part for version in api_versions for part in ("--api-versions", version)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(want.values),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{_attempt(want)}: no answer within {TIMEOUT:.0f} s") from None
    if done.returncode:
        raise InputError(f"{_attempt(want)}: {_reason(done.stderr)}")
    return done.stdout


def parsed(manifests: str) -> list[Json]:
    """The objects of a manifest, those of Lists one by one."""
    found = [item for item in yaml.load_all(manifests, files.LOADER) if item]
    return [one for item in found for one in (item["items"] if item["kind"] == "List" else [item])]


def manifest(want: Release) -> list[Json]:
    """The objects of the release's manifest, from a file or a URL. Raises InputError."""
    source, operator = want.manifest, want.operator
    hint = f"Download it and set rdma_charts.{operator} to the file."
    try:
        if "://" in source:
            from ansible.module_utils.urls import open_url  # .07 CPU seconds, which few runs need

            text = open_url(source, timeout=60, follow_redirects="safe").read().decode("utf-8")
        else:
            text = Path(source).expanduser().read_text(encoding="utf-8")
        objects = [item for item in yaml.load_all(text, files.LOADER) if item]
    except OSError as error:
        raise InputError(f"Cannot read the manifest {source} of {operator}: {error}. {hint}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{source} of {operator} is not a manifest: {str(error).splitlines()[0]}. {hint}") from None
    strange = [item for item in objects if not isinstance(item, dict) or "kind" not in item or "metadata" not in item]
    if strange or not objects:
        raise InputError(f"{source} of {operator} holds no Kubernetes objects. {hint}")
    return objects


def _attempt(want: Release) -> str:
    return f"Cannot render chart {want.chart} {want.version} from {want.ref or want.repo}"


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return " ".join(" ".join(lines).removeprefix("Error: ").split())[:400] or "no message"
