# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks registries for images, without pulling any. PRIVATE to the collection."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import http
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.http import HttpAnswer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import registry
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.registry import ImageAnswer

TIMEOUT = 15
AT_ONCE = 8


def ask(images: Sequence[str]) -> dict[str, ImageAnswer]:
    """Whole reference -> what its registry says. Logs in as skopeo and podman do, by the first file of
    containers-auth.json(5) that there is."""
    known = _logins(os.environ)
    with ThreadPoolExecutor(AT_ONCE) as readers:
        return dict(zip(images, readers.map(lambda image: _ask(image, registry.credentials(known, image)), images)))


def _logins(env: Mapping[str, str]) -> Any:
    runtime, home = env.get("XDG_RUNTIME_DIR"), Path.home()
    places = [
        *([Path(env["REGISTRY_AUTH_FILE"])] if env.get("REGISTRY_AUTH_FILE") else []),
        *([Path(runtime) / "containers/auth.json"] if runtime else []),
        home / ".config/containers/auth.json",
        Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
    ]
    for place in places:
        try:
            return json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return {}


def _ask(image: str, login: str) -> ImageAnswer:
    url = registry.manifest_url(image)
    TASK.learn(login.partition(":")[2], whole=True)
    try:
        found = _send("HEAD", url, {"Accept": registry.ACCEPT})
        wanted = registry.challenge(found.headers.get("www-authenticate", "")) if found.status == 401 else None
        if not wanted:
            return registry.answer(found.status, found.headers)
        basic = f"Basic {base64.b64encode(login.encode()).decode()}"
        if wanted.scheme == "basic":
            authorization = basic if login and registry.safe(url) else ""
        else:
            if not registry.safe(wanted.realm):
                return ImageAnswer(registry.UNKNOWN, why="its tokens come from a service without TLS")
            given = _send("GET", wanted.url, {"Authorization": basic} if login else {})
            if not (word := registry.token(given.body)):
                why = f"no token: HTTP {given.status}" + ("" if login else ", without a login")
                return ImageAnswer(registry.UNKNOWN, why=why)
            authorization = f"Bearer {word}"
        if authorization:
            found = _send("HEAD", url, {"Accept": registry.ACCEPT, "Authorization": authorization})
        return registry.answer(found.status, found.headers)
    except (Unreachable, ValueError) as error:
        return ImageAnswer(registry.UNKNOWN, why=f"not reached: {error}")


def _send(method: str, url: str, headers: Mapping[str, str]) -> HttpAnswer:
    return http.ask(url, headers, TIMEOUT, method=method, most=1 << 20)
