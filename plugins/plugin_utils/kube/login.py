# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How requests to an API server authenticate. PRIVATE to the collection.

Login programs (``exec``) are run here. To the kubernetes package a token is expired 5 minutes before its end, so it
runs OKE's program, whose tokens live for 4, before each request; where a program fails, it goes on as an anonymous
user. The header of requests is made here too: 36.0.0 drops every bearer token.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import importlib.util
import json
import mmap
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import unquote, urlsplit

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import kubeconfig

MISSING_LIBRARY = ""
try:
    import urllib3

    if importlib.util.find_spec("kubernetes") is None:  # with it comes requests; neither is imported here
        raise ImportError("No module named 'kubernetes'")
except ImportError as error:  # reported by Login(), so that documentation renders without the library
    MISSING_LIBRARY = str(error)

Json = dict[str, Any]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_LOGIN = 60.0
"""Seconds that a login program may take; OCI's takes 1.3."""
_PARTIAL_CHAIN = 0x80000
"""ssl.VERIFY_X509_PARTIAL_CHAIN, a name since Python 3.10."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What Kubernetes gives a pod."""
CONNECTIONS = 16


class _Printed:
    """What login programs printed, kept for this process and all that it forks: Ansible runs each task in one. It is in
    memory that they share, in no file. Two that write at once lose an entry: its program runs once more."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 16)

    def all(self) -> dict[str, Json]:
        """Key -> {status, renew}; ``renew``: by time.monotonic(), which processes share too."""
        size = int.from_bytes(self._memory[32:36], "big")
        text = self._memory[36 : 36 + size]
        whole = hashlib.sha256(text).digest() == self._memory[:32]
        return dict(json.loads(text)) if whole else {}

    def keep(self, entries: dict[str, Json]) -> None:
        """Instead of all others."""
        text = json.dumps(entries).encode()
        if len(text) <= len(self._memory) - 36:
            self._memory[: 36 + len(text)] = hashlib.sha256(text).digest() + len(text).to_bytes(4, "big") + text


@dataclass
class Program:
    """A login program of a kubeconfig (``exec``). What it printed is kept until shortly before it expires, for all
    tasks of a run."""

    spec: Json
    folder: Path
    """Of the kubeconfig: a relative command is relative to it."""
    cluster: Json
    context: str
    place: str
    """The kubeconfig and its context, in words."""

    def __post_init__(self) -> None:
        key = json.dumps([self.spec, str(self.folder), self.cluster], sort_keys=True, default=str)
        self._key = hashlib.sha256(key.encode()).hexdigest()

    def credential(self) -> Json:
        """The status of the ExecCredential that it printed. Raises InputError where it printed none."""
        now, kept = time.monotonic(), _PRINTED.all()
        if self._key not in kept or now >= kept[self._key]["renew"]:
            status = self._run()
            left = _seconds_left(str(status.get("expirationTimestamp") or ""))
            # A token that is past its end is sent as well: this machine's clock may be ahead of the server's.
            renew = now + (left - min(30.0, left / 4) if left > 0 else 3600.0)
            kept = {key: one for key, one in _PRINTED.all().items() if now < one["renew"]}
            _PRINTED.keep({**kept, self._key: {"status": status, "renew": renew}})
            return status
        return dict(kept[self._key]["status"])

    @property
    def expires(self) -> str:
        """When its last credential ends, RFC 3339; "" if it did not say."""
        found = _PRINTED.all().get(self._key)
        return str(found["status"].get("expirationTimestamp") or "") if found else ""

    def forget(self) -> None:
        """Makes the next use run the program anew."""
        _PRINTED.keep({key: one for key, one in _PRINTED.all().items() if key != self._key})

    def _run(self) -> Json:
        version, command = str(self.spec.get("apiVersion")), str(self.spec.get("command"))
        if self.spec.get("interactiveMode") == "Always":
            raise self._failure("needs a terminal (interactiveMode: Always), but there is none", _PASSWORD)
        path = str(self.folder / command) if "/" in command else command
        if not shutil.which(path):
            hint = " ".join(str(self.spec.get("installHint") or "").split())
            raise self._failure(
                "is not an executable file" if "/" in command else "is not in PATH of ansible-playbook",
                f"Install it (OKE's is oci: pip install oci-cli), or add its folder to PATH. {hint}".strip(),
            )
        info: Json = {"interactive": False}
        if self.spec.get("provideClusterInfo"):
            extensions = self.cluster.get("extensions") or ()
            own = [one["extension"] for one in extensions if one["name"] == "client.authentication.k8s.io/exec"]
            info["cluster"] = {**self.cluster, **({"config": own[0]} if own else {})}
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
        given = {str(one["name"]): str(one["value"]) for one in self.spec.get("env") or ()}
        code, output, errors = _run(
            [path, *map(str, self.spec.get("args") or ())],
            {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked, default=str)},
        )
        last = (errors.strip().splitlines() or [""])[-1].strip()[:300]
        if code is None:
            raise self._failure(f"did not end within {LONGEST_LOGIN:.0f} s", _PASSWORD)
        if code:
            raise self._failure(f"ended with exit code {code}{f': {last}' if last else ''}".rstrip("."), _PASSWORD)
        if not output.strip():
            raise self._failure(f"printed nothing{f', and as error {last}' if last else ''}".rstrip("."), _TRY)
        return self._read(output, version)

    def _read(self, output: str, version: str) -> Json:
        try:
            document = json.loads(output)
            kind, api, status = document["kind"], document["apiVersion"], dict(document["status"])
        except (ValueError, TypeError, KeyError):
            kind, api, status = "", "", {}
        if kind != "ExecCredential":
            raise self._failure("did not print an ExecCredential as JSON", _TRY)  # its output may hold a secret
        if api != version:
            raise self._failure(f"printed an ExecCredential of {api}, the kubeconfig asks for {version}", _TRY)
        if not status.get("token") and not (status.get("clientCertificateData") and status.get("clientKeyData")):
            raise self._failure("printed neither a token nor a client certificate with its key", _TRY)
        return status

    def _failure(self, found: str, remedy: str) -> InputError:
        program = f"the login program {self.spec.get('command')} of {self.place}"
        return InputError(f"Cannot log in to the cluster: {program} {found}. {remedy}")


_PRINTED = _Printed()
_TRY = "Run it in a shell with the arguments of the kubeconfig (users, exec)."
_PASSWORD = (
    f"{_TRY} It runs without a terminal. If it asks for a password, log in first, or use a kubeconfig with a token "
    "(rdma_kubeconfig)."
)


class Login:
    """The credential for one API server, and what its connections need."""

    def __init__(self, auth: Mapping[str, Any]) -> None:
        """Precedence: options, K8S_AUTH_*, KUBECONFIG, the default kubeconfig, the pod's service account. Raises
        InputError for a kubeconfig, login program or certificates that cannot be used."""
        if MISSING_LIBRARY:
            raise RdmaError(
                f"Cannot import a library of the control node: {MISSING_LIBRARY}. "
                "Install the collection's requirements.txt into the Python that runs ansible-playbook."
            )
        self.program: Optional[Program] = None
        """The login program of the kubeconfig, whether it prints tokens or certificates."""
        self._program: Optional[Program] = None
        self.host = "http://localhost"
        self._proxy = ""
        self._verify = True
        self._server_name = ""
        self._files: dict[str, str] = {}
        """Of certificates: ca, cert, key."""
        self._made: Callable[[], str] = lambda: ""
        """Makes the header where no program does."""
        self._lock = threading.Lock()
        # A kubeconfig that was asked for wins over the environment's host, which AWX's credentials set.
        asked = auth.get("kubeconfig") or auth.get("context")
        host = auth.get("host") or ("" if asked else os.environ.get("K8S_AUTH_HOST"))
        # TLS reads client certificates from files only: they are gone once they were read.
        with contextlib.ExitStack() as stack:
            if host:
                self._use_host(str(host), auth)
            else:
                self._use_kubeconfig(auth, stack)
            self.host = self.host.rstrip("/")
            self._certificate = bool(self._files.get("cert"))
            self.pool = self._pool()

    def header(self) -> str:
        """The value of a request's header Authorization; "" if a client certificate, or nothing, is the credential."""
        if self._program:
            with self._lock:
                token = self._program.credential().get("token")
            header = f"Bearer {token}"
        else:
            header = self._made().strip()
        if not (header.isascii() and header.isprintable()):
            raise InputError(
                f"Cannot log in to {self.host}: the token of {self._place} has a line break or another invalid "
                f"character. {self._remedy}"
            )
        return header

    def renew(self, refused: str) -> bool:
        """Whether there is another header than the one that the server refused."""
        if not self._program or not refused:
            return False
        with self._lock:
            if f"Bearer {self._program.credential().get('token')}" == refused:
                self._program.forget()
        return self.header() != refused

    def refusal(self, status: int, answer: str, sent: str) -> str:
        """What an ``answer`` 401 or 403 says about the login of a request that was sent with the header ``sent``; "" if
        the user is known and lacks a right."""
        anonymous = 'User "system:anonymous"' in answer
        if status != 401 and not anonymous:
            return ""
        if not sent and not self._certificate:
            return (
                f"no token was sent to {self.host}: {self._place} has no token, login program or client certificate. "
                f"{self._remedy}"
            )
        what = "token" if sent.startswith("Bearer") else "password" if sent else "client certificate"
        if anonymous:
            return (
                f"{self.host} treats the request as anonymous (HTTP {status}), although the {what} of "
                f"{self._place} was sent. A proxy or load balancer in between removes it. Use the API server's own "
                "address."
            )
        expires = self._program.expires if self._program else ""
        ago = -_seconds_left(expires)
        past = f", which expired at {expires}, {ago:.0f} s ago by this machine's clock" if ago > 0 else ""
        return (
            f"{self.host} refuses the {what} of {self._place}{past} (HTTP {status}). "
            "The credentials are expired or wrong: log in again."
        )

    def _use_host(self, host: str, auth: Mapping[str, Any]) -> None:
        self._place = "the login by host (option host, K8S_AUTH_HOST)"
        self._remedy = "Set K8S_AUTH_API_KEY, or rdma_kubeconfig instead of K8S_AUTH_HOST."
        self.host = host
        if token := str(auth.get("api_key") or os.environ.get("K8S_AUTH_API_KEY") or "").strip():
            self._made = lambda: f"Bearer {token}"
        self._files["ca"] = str(auth.get("ca_cert") or os.environ.get("K8S_AUTH_SSL_CA_CERT") or "")
        checked = auth.get("validate_certs")
        if checked is None:
            checked = os.environ.get("K8S_AUTH_VERIFY_SSL", "true").lower() not in ("false", "no", "0")
        self._verify = bool(checked)

    def _pool(self) -> Any:
        options = {
            "maxsize": CONNECTIONS,
            "retries": False,
            "cert_reqs": ssl.CERT_REQUIRED if self._verify else ssl.CERT_NONE,
            "ssl_context": self._context(),
        }
        options.update({"server_hostname": self._server_name} if self._server_name else {})
        proxy, headers = self._proxied()
        if not proxy:
            return urllib3.PoolManager(**options)
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)

    def _proxied(self) -> tuple[str, Optional[Mapping[str, str]]]:
        """(proxy, headers to log in to it); "" for none. Of the kubeconfig, else of the environment, as kubectl and
        Helm choose it: HTTP_PROXY is not for https."""
        found, name = self._proxy, f"proxy-url of {self._place}"
        server = urlsplit(self.host)
        if not found and server.hostname not in LOOPBACK:
            found, name = urllib.request.getproxies_environment().get(server.scheme, ""), "HTTPS_PROXY"
            found = f"http://{found}" if found and "://" not in found else found
            if found and _without_proxy(self.host):
                found = ""
        proxy = urlsplit(found)
        if found and proxy.scheme not in ("http", "https"):
            raise InputError(
                f"Cannot reach {self.host}: the proxy of {name} is not http:// or https:// but {proxy.scheme}://. "
                "Through SSH, forward a port of this machine instead (ssh -L), and set server and tls-server-name of "
                "the kubeconfig: docs/operator_host.md."
            )
        if not proxy.username:
            return found, None
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        return found, urllib3.make_headers(proxy_basic_auth=login)

    def _use_kubeconfig(self, auth: Mapping[str, Any], stack: contextlib.ExitStack) -> None:
        given = auth.get("kubeconfig") or os.environ.get("K8S_AUTH_KUBECONFIG") or os.environ.get("KUBECONFIG")
        context = str(auth.get("context") or os.environ.get("K8S_AUTH_CONTEXT") or "")
        paths = [Path(part).expanduser() for part in str(given or "~/.kube/config").split(os.pathsep) if part]
        present = [str(path) for path in paths if path.is_file()]
        self._remedy = "Set rdma_kubeconfig to a file with a login, or rdma_context to a context with one."
        if not present and given:
            found = "it is a directory" if any(path.is_dir() for path in paths) else "no such file"
            raise InputError(
                f"Cannot read the kubeconfig {given}: {found}. Set rdma_kubeconfig, K8S_AUTH_KUBECONFIG or KUBECONFIG "
                "to a file."
            )
        where = os.pathsep.join(present) or "~/.kube/config (absent) and the pod's service account"
        self._place = f"the kubeconfig {where}, context {context}" if context else f"the kubeconfig {where}"
        try:
            if present:
                self._use_context(kubeconfig.read(present, context), where, stack)
            else:
                self._place = "the pod's service account"
                self._use_account()
        except DataError as error:
            raise InputError(
                f"Cannot use the kubeconfig {where}{f', context {context}' if context else ''}: {first_line(error)}. "
                "Check the file, the context's name and the login it needs."
            ) from None
        except InputError:
            raise
        except Exception as error:  # of PyYAML and base64, and of the package for a login by auth-provider
            raise InputError(
                f"Cannot use the kubeconfig {where}: it is not valid ({type(error).__name__}: "
                f"{first_line(error)}). Check it: kubectl config view --kubeconfig {present[-1] if present else where}"
            ) from None
        if auth.get("validate_certs") is False:
            self._verify = False

    def _use_context(self, found: kubeconfig.KubeContext, paths: str, stack: contextlib.ExitStack) -> None:
        self._place = f"the kubeconfig {paths}, context {found.name}"
        user, cluster = found.user.value, dict(found.cluster.value)
        if authority := cluster.get("certificate-authority"):
            cluster["certificate-authority"] = str(found.cluster.folder / authority)
        self.host = str(cluster.get("server") or self.host)
        self._proxy = str(cluster.get("proxy-url") or "")
        self._server_name = str(cluster.get("tls-server-name") or "")
        self._verify = not cluster.get("insecure-skip-tls-verify")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuops-")))
        if self.host.startswith("https"):
            self._files["ca"] = found.cluster.file("certificate-authority", folder)
            self._files["cert"] = found.user.file("client-certificate", folder)
            self._files["key"] = found.user.file("client-key", folder)
        if user.get("exec") and not (user.get("token") or user.get("tokenFile")):
            program = Program(dict(user["exec"]), found.user.folder, cluster, found.name, self._place)
            self.program = self._program = program
            status = program.credential()
            if not status.get("token"):
                self._program = None
                printed = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
                login = {key: base64.b64encode(status[name].encode()).decode() for key, name in printed.items()}
                entry = kubeconfig.Entry(login, folder)
                self._files["cert"] = entry.file("client-certificate", folder)
                self._files["key"] = entry.file("client-key", folder)
        elif user.get("auth-provider"):
            self._made = kubeconfig.provided(found.user)
        elif token := user.get("token") or (user.get("tokenFile") and _text(Path(found.user.path("tokenFile")))):
            self._made = lambda: f"Bearer {token}"
        elif user.get("username") is not None and user.get("password") is not None:
            basic = urllib3.make_headers(basic_auth=f"{user['username']}:{user['password']}")["authorization"]
            self._made = lambda: str(basic)

    def _use_account(self) -> None:
        """Raises DataError outside of a pod."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise DataError("Service host/port is not set")
        self.host = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        for name in ("token", "ca.crt"):
            if not _text(ACCOUNT / name):
                raise DataError(f"{ACCOUNT / name} is empty")
        self._files["ca"] = str(ACCOUNT / "ca.crt")
        self._made = lambda: f"Bearer {_text(ACCOUNT / 'token')}"  # the kubelet renews it

    def _context(self) -> ssl.SSLContext:
        """The certificates, read once for all connections of the pool."""
        required = ssl.CERT_REQUIRED if self._verify else ssl.CERT_NONE
        context: ssl.SSLContext = urllib3.util.ssl_.create_urllib3_context(cert_reqs=required)
        # As kubectl: without keyUsage, which Python refuses from 3.13 on, or signed by another, which others refuse.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
        try:
            if self._files.get("ca"):
                context.load_verify_locations(self._files["ca"])
            else:
                context.load_default_certs()
            if self._files.get("cert"):
                context.load_cert_chain(self._files["cert"], self._files.get("key") or None)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"Cannot use the certificates that the kubeconfig or the options name: {first_line(error)}. "
                "Check the certificate authority, the client certificate and its key."
            ) from None
        return context


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}") from None


def _without_proxy(url: str) -> bool:
    """Whether NO_PROXY names this server, also by an address block."""
    from requests.utils import should_bypass_proxies  # the kubernetes package needs it

    return bool(should_bypass_proxies(url, no_proxy=None))


def _run(argv: list[str], env: Mapping[str, str]) -> tuple[Optional[int], str, str]:
    """(exit code, stdout, stderr); the code is None if the program did not end. Without input and terminal: what asks
    for a password fails instead of waiting for one, or of taking the terminal of the play."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(argv, env=env, stdin=nothing, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:  # such as a script whose interpreter is missing
        return 126, "", first_line(error)
    try:
        output, errors = process.communicate(timeout=LONGEST_LOGIN)
        return process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _seconds_left(expires: str) -> float:
    """Until this moment by this machine's clock; 0 if it is none."""
    try:
        end = datetime.datetime.fromisoformat(expires.replace("Z", "+00:00"))
        return end.timestamp() - time.time()
    except ValueError:
        return 0.0


def first_line(error: object) -> str:
    """The first line of an error's text, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
