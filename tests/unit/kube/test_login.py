# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each way to log in sends its credential, and each that cannot is one sentence, never an anonymous request."""

from __future__ import annotations

import datetime
import http.server
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import login
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from support import authorities

API = "client.authentication.k8s.io/v1beta1"  # what `oci ce cluster create-kubeconfig` writes


class Server:
    """Takes the tokens of ``good``; answers others as an API server with anonymous access does."""

    def __init__(self) -> None:
        self.good: set[str] = set()
        self.seen: list[str] = []
        self.proxied: list[tuple[str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.headers.get("Authorization") or ""
                outer.seen.append(sent)
                outer.proxied.append((self.path, self.headers.get("Proxy-Authorization") or ""))
                status, message = 200, ""
                if not sent:
                    status, message = 403, 'nodes is forbidden: User "system:anonymous" cannot list resource "nodes"'
                elif sent not in outer.good:
                    status, message = 401, "Unauthorized"
                body = json.dumps({"message": message, "items": []}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    auth = ("K8S_AUTH_HOST", "K8S_AUTH_API_KEY", "K8S_AUTH_KUBECONFIG", "K8S_AUTH_CONTEXT", "KUBECONFIG")
    proxies = [f"{name}_proxy" for name in ("http", "https", "no")]
    for name in (*auth, *proxies, *map(str.upper, proxies)):
        monkeypatch.delenv(name, raising=False)
    login._PRINTED.keep({})
    one = Server()
    threading.Thread(target=one.http.serve_forever, args=(0.01,), daemon=True).start()
    yield one
    one.http.shutdown()
    one.http.server_close()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Any:
    """Writes a kubeconfig with this user; returns its path."""

    def write(user: Any, name: str = "config", **more: Any) -> str:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "oke",
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "oke", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": user}],
            **more,
        }
        (tmp_path / name).write_text(yaml.safe_dump(document), encoding="utf-8")
        return str(tmp_path / name)

    return write


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """Makes a login program of this shell code, which counts its runs in ``runs``; returns its entry of a user."""

    def make(code: str, **more: Any) -> dict[str, Any]:
        (tmp_path / "runs").write_text("", encoding="utf-8")
        path = tmp_path / "login"
        path.write_text(f"#!/bin/sh\necho run >>'{tmp_path}/runs'\n{code}\n", encoding="utf-8")
        path.chmod(0o755)
        return {"exec": {"apiVersion": API, "command": str(path), "interactiveMode": "Never", **more}}

    return make


def printed(token: str = "good", lives: float = 240, **status: Any) -> str:
    """Shell code that prints an ExecCredential."""
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=lives)
    status = {"token": token, "expirationTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ"), **status}
    return f"echo '{json.dumps({'apiVersion': API, 'kind': 'ExecCredential', 'status': status})}'"


def runs(folder: Path) -> int:
    return (folder / "runs").read_text(encoding="utf-8").count("run")


def nodes(path: str) -> Any:
    return Client.connect({"kubeconfig": path}).list("/api/v1/nodes")


def test_each_login_sends_its_credential(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.good = {"Bearer good", "Basic dTpw"}
    (tmp_path / "token").write_text("good\n", encoding="utf-8")
    for user in (
        {"token": "good"},
        {"tokenFile": str(tmp_path / "token")},
        {"username": "u", "password": "p"},
        program(printed()),
    ):
        assert nodes(kubeconfig(user)) == []
    monkeypatch.setenv("K8S_AUTH_HOST", server.url)
    for key in ("good", "good\n"):
        monkeypatch.setenv("K8S_AUTH_API_KEY", key)
        assert Client.connect({}).list("/api/v1/nodes") == []
    assert Client.connect({"host": server.url, "api_key": "good"}).list("/api/v1/nodes") == []


def test_a_login_by_auth_provider_is_read_by_the_kubernetes_package(server: Server, kubeconfig: Any) -> None:
    token = "e30.eyJzdWIiOiJ1In0.c2ln"  # no end
    server.good = {f"Bearer {token}"}
    assert nodes(kubeconfig({"auth-provider": {"name": "oidc", "config": {"id-token": token}}})) == []


def test_paths_are_relative_to_the_file_and_a_link_to_it_is_not_followed(
    server: Server, kubeconfig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for kubectl: a file of dotfiles, a Secret's mounted file."""
    server.good, stub = {"Bearer good"}, {"name": "", "context": {"cluster": "", "user": ""}}
    contexts = [stub, {"name": "oke", "context": {"cluster": "c", "user": "u"}}]
    (tmp_path / "dotfiles").mkdir()
    written = kubeconfig({"tokenFile": "../certs/token"}, "dotfiles/prod.yml", contexts=contexts)
    (tmp_path / "kube").mkdir()
    (tmp_path / "kube/config").symlink_to(written)
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/token").write_text("good", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "dotfiles")
    assert nodes("../kube/config") == []


@pytest.mark.parametrize("key", ["tokenFile", "client-key"])
@pytest.mark.parametrize("secret", ["-----BEGIN PRIVATE KEY-----\nMIIE", "c4nary" * 60])
def test_a_secret_in_the_place_of_its_file_is_not_printed(kubeconfig: Any, key: str, secret: str) -> None:
    clusters = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
    said = rf"{key} is not the path of a file\. .* write it to (token|client-key-data)\."
    with pytest.raises(InputError, match=said) as caught:
        nodes(kubeconfig({key: secret}, clusters=clusters))
    assert "c4nary" not in str(caught.value) and "MIIE" not in str(caught.value)


def test_nothing_else_imports_that_package(server: Server, kubeconfig: Any) -> None:
    """It takes 0.3 CPU seconds."""
    server.good, path = {"Bearer good"}, kubeconfig({"token": "good"})
    code = (
        f"import sys; from {Client.__module__} import Client; Client.connect({{'kubeconfig': {path!r}}}).get('/'); "
        "sys.exit('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0


def test_a_pods_service_account_is_the_last_resort_and_its_token_is_read_anew(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, _own = authorities.make(tmp_path, "plain")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(login, "ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match=r"~/.kube/config \(absent\) and the pod's service account: Service host/port"):
        login.Login({})
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(InputError, match=r"Cannot read .*token: No such file"):
        login.Login({})
    (tmp_path / "ca.crt").write_bytes(Path(ca).read_bytes())
    (tmp_path / "token").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"token is empty"):
        login.Login({})
    (tmp_path / "token").write_text("first\n", encoding="utf-8")
    made = login.Login({})
    assert (made.host, made.header()) == ("https://[fd00::1]:443", "Bearer first")
    (tmp_path / "token").write_text("second\n", encoding="utf-8")
    assert made.header() == "Bearer second"


def test_a_program_runs_once_for_all_requests_and_again_before_its_token_ends(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OKE's takes 1.3 s and its tokens live for 4 minutes."""
    server.good, path = {"Bearer good"}, kubeconfig(program(printed()))
    for _ in range(3):
        nodes(path)
    client = Client.connect({"kubeconfig": path})
    assert runs(tmp_path) == 1
    now = login.time.monotonic()
    monkeypatch.setattr(login.time, "monotonic", lambda: now + 205)
    client.list("/api/v1/nodes")
    assert runs(tmp_path) == 1
    monkeypatch.setattr(login.time, "monotonic", lambda: now + 215)
    client.list("/api/v1/nodes")
    assert runs(tmp_path) == 2


def test_processes_that_ansible_forks_for_its_tasks_share_what_it_printed(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path
) -> None:
    server.good, path = {"Bearer good"}, kubeconfig(program(printed()))
    for _ in range(3):
        task = multiprocessing.get_context("fork").Process(target=nodes, args=(path,))
        task.start()
        task.join(60)
        assert task.exitcode == 0
    assert runs(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "login", "config"}, "no file has the token"
    big = {"status": {"token": "x" * 100_000}, "renew": login.time.monotonic() + 100}
    login._PRINTED.keep({"big": big})
    nodes(path)
    login._PRINTED._memory[40:44] = b"torn"
    nodes(path)
    assert runs(tmp_path) == 2, "what is torn is printed anew, what is too big is not kept"


def test_a_token_that_the_server_no_longer_takes_is_renewed_in_the_middle(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path
) -> None:
    code = f"[ $(wc -l <'{tmp_path}/runs') = 1 ] && {printed('first')} || {printed('second')}"
    server.good = {"Bearer first"}
    client = Client.connect({"kubeconfig": kubeconfig(program(code))})
    client.list("/api/v1/nodes")
    server.good = {"Bearer second"}
    client.list("/api/v1/nodes")
    assert list(client.log_lines("n", "p")) != []
    server.good = {"Bearer third"}
    with pytest.raises(Forbidden, match=r"refuses the token of the kubeconfig .*, context oke .*: log in again"):
        client.list("/api/v1/nodes")
    assert runs(tmp_path) == 3, "once more, not for ever"


def test_relative_programs_environment_and_the_clusters_data_are_as_kubectl_hands_them_on(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path
) -> None:
    server.good = {"Bearer good"}
    code = f'[ "$REGION" = fra ] && echo "$KUBERNETES_EXEC_INFO" >\'{tmp_path}/info\' && {printed()}'
    user = program(code, provideClusterInfo=True, env=[{"name": "REGION", "value": "fra"}])
    user["exec"]["command"] = "./login"
    nodes(kubeconfig(user))
    info = json.loads((tmp_path / "info").read_text(encoding="utf-8"))
    assert info["spec"] == {"interactive": False, "cluster": {"server": server.url}}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("exit 0", "printed nothing"),
        ("echo ServiceError: not authorized >&2", "printed nothing, and as error ServiceError: not authorized"),
        ("echo '{\"token\": \"s3cret\"}'", "did not print an ExecCredential as JSON"),
        ("echo WARNING: s3cret", "did not print an ExecCredential as JSON"),
        ("echo line 1 >&2; echo No profile OKE. >&2; exit 1", "exit code 1: No profile OKE. Run it in a shell"),
        ("kill -9 $$", "ended with exit code -9"),
        ("printf 'Password: ' >&2; read -r word || exit 2", "without a terminal. If it asks"),
        ("read -r word </dev/tty; exit 3", "without a terminal. If it asks"),
        (printed().replace("v1beta1", "v1"), f"printed an ExecCredential of .*/v1, the kubeconfig asks for {API}"),
        (printed(""), "printed neither a token nor a client certificate with its key"),
        (printed("", clientCertificateData="x"), "printed neither a token nor a client certificate with its key"),
    ],
)  # fmt: skip
def test_a_program_that_fails_is_one_sentence(
    server: Server, kubeconfig: Any, program: Any, code: str, words: str
) -> None:
    with pytest.raises(InputError, match=f"^Cannot log in to the cluster: the login program .*{words}") as caught:
        nodes(kubeconfig(program(code)))
    assert "\n" not in str(caught.value) and "s3cret" not in str(caught.value)
    assert not server.seen


def test_a_program_that_is_missing_hangs_or_wants_a_terminal(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"exec": {"apiVersion": API, "command": "oci-not-there", "installHint": "See\n  the page."}}
    with pytest.raises(InputError, match=r"oci-not-there .* is not in PATH .*pip install oci-cli.* See the page\.$"):
        nodes(kubeconfig(missing))
    missing["exec"]["command"] = str(tmp_path / "gone")
    with pytest.raises(InputError, match=r"gone .* is not an executable file"):
        nodes(kubeconfig(missing))
    with pytest.raises(InputError, match=r"interactiveMode: Always"):
        nodes(kubeconfig(program(printed(), interactiveMode="Always")))
    monkeypatch.setattr(login, "LONGEST_LOGIN", 0.3)
    with pytest.raises(InputError, match=r"did not end within 0 s.*If it asks for a password"):
        nodes(kubeconfig(program("sleep 30 & wait")))
    assert not server.seen


def test_a_token_that_had_expired_is_sent_and_the_refusal_says_when(
    server: Server, kubeconfig: Any, program: Any, tmp_path: Path
) -> None:
    """This machine's clock may be wrong, so the server decides."""
    path = kubeconfig(program(printed(lives=-600)))
    server.good = {"Bearer good"}
    assert nodes(path) == [] == nodes(path)
    assert runs(tmp_path) == 1
    server.good = set()
    with pytest.raises(
        Forbidden,
        match=r"which expired at 20.*Z, 60\d s ago by this machine's clock.*log in again",
    ):
        nodes(path)


def test_no_credential_is_said_and_not_an_anonymous_user(
    server: Server, kubeconfig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in ({}, {"token": ""}):
        with pytest.raises(Forbidden, match=r"no token was sent to http.*the kubeconfig .*, context oke has no token"):
            nodes(kubeconfig(user))
    with pytest.raises(Forbidden, match=r"no token was sent to http.* Set K8S_AUTH_API_KEY"):
        Client.connect({"host": server.url}).list("/api/v1/nodes")


def test_a_token_that_is_none_is_not_shown(server: Server, kubeconfig: Any, program: Any) -> None:
    for user in ({"token": "s3c\nret"}, {"token": "s3c\u00e9ret"}, program(printed("s3c\\nret"))):
        with pytest.raises(
            InputError, match=r"the token of .* has a line break or another invalid character"
        ) as caught:
            nodes(kubeconfig(user))
        assert "s3c" not in str(caught.value)


def test_a_proxy_that_drops_the_token_is_named(
    server: Server, kubeconfig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client.connect({"kubeconfig": kubeconfig({"token": "good"})})
    monkeypatch.setattr(client, "_headers", lambda *_: {"X-Authorization": "Bearer good"})
    with pytest.raises(Forbidden, match="no token was sent"):
        client.list("/api/v1/nodes")
    answer = 'nodes is forbidden: User "system:anonymous" cannot list'
    assert "A proxy or load balancer in between removes it" in client.login.refusal(403, answer, "Bearer good")
    assert client.login.refusal(403, 'User "bob" cannot list', "Bearer good") == ""


def test_files_that_are_no_kubeconfigs(server: Server, kubeconfig: Any, tmp_path: Path) -> None:
    twins = [{"name": "oke", "context": {"cluster": "c", "user": "u"}}] * 2
    for path, words in (
        (str(tmp_path), "it is a directory"),
        (str(tmp_path / "gone"), "no such file"),
        (kubeconfig({}, "twins", contexts=twins), "it has several contexts called oke"),
        (kubeconfig({}, "users", users=[{"name": "u", "user": {}}] * 2), "it has several users called u"),
        (kubeconfig({}, "user", users=[{"name": "u", "usr": {"token": "s3cret"}}]), "Expected key user in"),
        (kubeconfig({}, "other", **{"current-context": "gone"}), "gone"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            nodes(path)
        assert "s3cret" not in str(caught.value)
    for text in ("", "just words", "- a\n- b", "a: [", "contexts: 5", "contexts: [{}]"):
        (tmp_path / "bad").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="Cannot use the kubeconfig") as caught:
            nodes(str(tmp_path / "bad"))
        assert "\n" not in str(caught.value)


def test_of_several_files_the_first_current_context_is_used_as_by_kubectl(
    server: Server, kubeconfig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.good = {"Bearer good"}
    first = kubeconfig({"token": "good"})
    second = kubeconfig(
        {"token": "bad"},
        "second",
        users=[{"name": "v", "user": {"token": "bad"}}],
        contexts=[{"name": "second", "context": {"cluster": "c", "user": "v"}}],
        **{"current-context": "second"},
    )
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    assert Client.connect({}).list("/api/v1/nodes") == []
    monkeypatch.setenv("K8S_AUTH_CONTEXT", "second")
    with pytest.raises(Forbidden, match="context second"):
        Client.connect({}).list("/api/v1/nodes")


FAR = "http://api.invalid:6443"
"""Reached by no other way than a proxy: the name has no address."""


def behind(url: str = "", server: str = FAR) -> dict[str, Any]:
    """The clusters of a kubeconfig with this proxy-url."""
    cluster = {"server": server, **({"proxy-url": url} if url else {})}
    return {"clusters": [{"name": "c", "cluster": cluster}]}


def test_the_proxy_is_the_one_that_kubectl_and_helm_take(
    server: Server, kubeconfig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.good, user = {"Bearer good"}, {"token": "good"}
    login_to_proxy = server.url.replace("//", "//u%40x:p@")
    assert nodes(kubeconfig(user, **behind(login_to_proxy))) == []
    assert server.proxied == [(f"{FAR}/api/v1/nodes?limit=100", "Basic dUB4OnA=")]
    # The kubeconfig's before that of the environment, NO_PROXY or not; HTTP_PROXY is not for https.
    monkeypatch.setenv("HTTP_PROXY", "http://other.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "api.invalid")
    assert nodes(kubeconfig(user, **behind(server.url))) == []
    assert Client.connect({"kubeconfig": kubeconfig(user, **behind(server="https://far"))})._pool.proxy is None
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", server.url.removeprefix("http://"))
    assert nodes(kubeconfig(user, **behind())) == []
    assert nodes(kubeconfig(user)) == [] and server.proxied[-1][0].startswith("/"), "never to a loopback address"


def test_a_proxy_of_another_kind_is_refused_with_the_way_that_works(kubeconfig: Any) -> None:
    with pytest.raises(InputError, match=r"not http:// or https:// but socks5://.*ssh -L.*tls-server-name") as refused:
        nodes(kubeconfig({"token": "x"}, **behind("socks5://user:secret@127.0.0.1:1080")))
    assert "secret" not in str(refused.value)
