# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Registries: what is asked, with which login, and what an answer means, against a stand-in with the rules."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import registry, registry_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Need, Unlisted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.registry import ImageAnswer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey
from support import registry as stand_in


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[stand_in.Registry]:
    with stand_in.served() as made:
        made.images = {"nvidia/x:1", "nvidia/x:2"}
        (tmp_path / "auth.json").write_text(made.login())
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
        yield made


def said(mirror: stand_in.Registry, *names: str) -> list[ImageAnswer]:
    images = [f"{mirror.place}/{name}" for name in names]
    found = registry_io.ask(images)
    assert list(found) == images and stand_in.PASSWORD not in repr(found)
    return list(found.values())


def test_images_are_there_or_missing(mirror: stand_in.Registry) -> None:
    assert said(mirror, "nvidia/x:1", "nvidia/x:3", "nvidia/y:1") == [
        ImageAnswer("there", stand_in.digest("nvidia/x:1")),
        ImageAnswer("missing"),
        ImageAnswer("missing"),
    ]
    assert {method for method, path in mirror.asked if "/manifests/" in path} == {"HEAD"}, "nothing is pulled"


def test_what_is_not_known_is_not_missing(mirror: stand_in.Registry, tmp_path: Path) -> None:
    mirror.broken = 503
    assert said(mirror, "nvidia/x:1") == [ImageAnswer("unknown", why="HTTP 503")]
    mirror.broken = 429
    assert "too many requests" in said(mirror, "nvidia/x:1")[0].why
    auth = base64.b64encode(b"robot:wrong").decode()
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {mirror.place: {"auth": auth}}}))
    assert said(mirror, "nvidia/x:1") == [ImageAnswer("unknown", why="no token: HTTP 401")]
    (tmp_path / "auth.json").write_text("{}")
    assert said(mirror, "nvidia/x:1") == [ImageAnswer("unknown", why="no token: HTTP 401, without a login")]


def test_a_registry_that_is_not_there() -> None:
    with stand_in.served() as gone:
        place = gone.place
    (answer,) = registry_io.ask([f"{place}/a:1"]).values()
    assert answer.state == "unknown" and answer.why.startswith("not reached: ")


def test_a_registry_without_login() -> None:
    with stand_in.served(login=False) as open_one:
        open_one.images = {"a:1"}
        assert [one.state for one in said(open_one, "a:1", "a:2")] == ["there", "missing"]
        assert not [path for _method, path in open_one.asked if "token" in path]


def test_credentials_go_nowhere_else(mirror: stand_in.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to a service without TLS nor along a redirect."""
    seen: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            seen.append(self.headers.get("Authorization"))
            if "redirect" in self.path:
                self.send_response(302)
                self.send_header("Location", f"{mirror.url}/v2/nvidia/x/manifests/1")
            else:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Bearer realm="http://evil.example/token",service="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    place = f"127.0.0.1:{server.server_address[1]}"
    asked = len(mirror.asked)
    plain, moved = registry_io.ask([f"{place}/x:1", f"{place}/redirect:1"]).values()
    server.shutdown()
    server.server_close()
    assert plain == ImageAnswer("unknown", why="its tokens come from a service without TLS")
    assert moved == ImageAnswer("unknown", why="HTTP 302")
    assert seen == [None, None] and len(mirror.asked) == asked


@pytest.mark.parametrize(
    ("image", "url"),
    [
        ("nvcr.io/nvidia/x:1", "https://nvcr.io/v2/nvidia/x/manifests/1"),
        ("docker.io/library/python:3", "https://registry-1.docker.io/v2/library/python/manifests/3"),
        ("r.example:5000/a@sha256:ab", "https://r.example:5000/v2/a/manifests/sha256:ab"),
        ("localhost:5000/a/b", "http://localhost:5000/v2/a/b/manifests/latest"),
        ("127.0.0.1:5000/a:1@sha256:ab", "http://127.0.0.1:5000/v2/a/manifests/sha256:ab"),
    ],
)
def test_address_of_a_manifest(image: str, url: str) -> None:
    assert registry.manifest_url(image) == url


def test_challenges_and_logins() -> None:
    header = 'Bearer realm="https://a.example/t?x=1",service="s",scope="repository:a/b:pull"'
    found = registry.challenge(header)
    assert found and found.url == "https://a.example/t?x=1&service=s&scope=repository%3Aa%2Fb%3Apull"
    assert registry.challenge('Basic realm="x"') == registry.Challenge("basic", "x")
    assert registry.challenge("Negotiate") is None and registry.token(b"<html>") == ""
    assert registry.token(b'{"access_token": "t"}') == "t"
    login = {name: {"auth": base64.b64encode(name.encode() + b":p").decode()} for name in ("r.io", "r.io/team")}
    login["https://index.docker.io/v1/"] = {"auth": base64.b64encode(b"hub:p").decode()}
    of = {
        image: registry.credentials({"auths": login}, image)
        for image in ("r.io/x:1", "r.io/team/x:1", "r.io/teams:1", "r.iox/x:1", "docker.io/library/x:1")
    }
    assert list(of.values()) == ["r.io:p", "r.io/team:p", "r.io:p", "", "hub:p"]
    assert registry.credentials({"auths": {"r.io": {"auth": "no base64!"}}}, "r.io/x:1") == ""
    assert registry.credentials([], "r.io/x:1") == ""


def test_findings_of_preflight() -> None:
    need = Need("image", "m/x:1", ("gpu-operator v1: Deployment a", "stage s: DaemonSet b"), "sha256:1")
    view = preflight.PreflightView(Plan(), Survey(), (), {}, {})

    def found(*answers: ImageAnswer, unlisted: Any = ()) -> list[Finding]:
        images = [(need, answer) for answer in answers]
        return list(preflight.registry(preflight.replace(view, images=images, unlisted=unlisted)))

    assert found() == [] == found(ImageAnswer("there", "sha256:1"), ImageAnswer("there"))
    (missing,) = found(ImageAnswer("missing"))
    assert (missing.severity, missing.subject) == ("error", "image m/x:1")
    assert missing.found.endswith("for gpu-operator v1: Deployment a; stage s: DaemonSet b")
    (other,) = found(ImageAnswer("there", "sha256:2"))
    assert (other.severity, other.expected) == ("warning", "sha256:1")
    (unknown,) = found(ImageAnswer("unknown", why="HTTP 503"), ImageAnswer("unknown", why="HTTP 503"))
    assert (unknown.severity, unknown.subject) == ("warning", "registry m")
    assert unknown.found == "unknown whether it has 2 images of the run: HTTP 503"
    (unlisted,) = found(unlisted=[Unlisted("images of y", "no chart")])
    assert unlisted.found == "unknown: no chart"
