# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a sandbox with real nodes: one namespace with a bridge, in which its control plane runs.

This process holds the namespace. It relays a port of the machine's loopback to the same port in there, where the API
server listens, so that one kubeconfig is good inside and outside; it answers the cluster's DNS, and serves the images.

    python -m gpuops_sandbox.kubelets.hub STATE IMAGES
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..cluster import Api, ApiError
from ..nodes import SERVICE_NETWORK
from . import kernel
from .realnodes import ADDRESS, BRIDGE, DOMAIN, HUB_READY, IMAGE_RULES, PREFIX, REGISTRY_PORT


def network() -> None:
    """A bridge in a new network namespace; pods and Services are behind it."""
    kernel.unshare(kernel.NEWNET)
    for command in (
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"address add {ADDRESS}/{PREFIX} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # kube-proxy rewrites the address on the way out, but there has to be a way.
        f"route add {SERVICE_NETWORK} dev {BRIDGE}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for name in ("all", BRIDGE):
        Path(f"/proc/sys/net/ipv4/conf/{name}/send_redirects").write_text("0")


# the relay


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inside = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, inside[1]), _pump(inside[0], writer))
    for end in (writer, inside[1]):
        end.close()


# DNS


class Names(asyncio.DatagramProtocol):
    """A records of Services and of pods behind headless ones, from the API server as it is now."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._api: Api | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        task = asyncio.ensure_future(self._answer(data, sender))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, sender: Any) -> None:
        found = await asyncio.to_thread(self.reply, data)
        if found:
            self.transport.sendto(found, sender)

    def reply(self, data: bytes) -> bytes:
        """The answer to one query; "" to what is none."""
        name, end = _name(data)
        if not name or len(data) < end + 4:
            return b""
        (kind,) = struct.unpack(">H", data[end : end + 2])
        addresses = self.addresses(name.lower())
        given = (addresses or []) if kind == 1 else []
        code = 2 if addresses is None else 0 if addresses else 3
        head = data[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(given), 0, 0)
        records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + ipaddress.IPv4Address(one).packed for one in given]
        return head + data[12 : end + 4] + b"".join(records)

    def addresses(self, name: str) -> list[str] | None:
        """[] for a name that there is not; None while the API server does not answer."""
        parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.endswith(f".svc.{DOMAIN}") or len(parts) not in (2, 3):
            return []
        namespace, service, host = parts[-1], parts[-2], parts[0] if len(parts) == 3 else ""
        try:
            self._api = self._api or Api(self.state / "admin.kubeconfig")
            found = self._api.find(f"/api/v1/namespaces/{namespace}/services/{service}")
            if found is None:
                return []
            if found["spec"].get("clusterIP") != "None":
                return [] if host else [found["spec"]["clusterIP"]]
            query = f"labelSelector=kubernetes.io/service-name%3D{service}"
            slices = self._api.call("GET", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}")
            early = found["spec"].get("publishNotReadyAddresses")
        except (ApiError, OSError):
            return None
        ends = [end for one in slices["items"] for end in one.get("endpoints") or ()]
        ends = [end for end in ends if early or end.get("conditions", {}).get("ready") is not False]
        return [address for end in ends if host in ("", end.get("hostname")) for address in end["addresses"]]


def _name(data: bytes) -> tuple[str, int]:
    """The name that a query asks for, and where it ends."""
    labels, place = [], 12
    while place < len(data) and data[place]:
        size = data[place]
        labels.append(data[place + 1 : place + 1 + size].decode(errors="replace"))
        place += 1 + size
    return ".".join(labels), place + 1


# the registry

PRIVATE, USER, PASSWORD = "private/", "reader", "sandbox"
"""Repositories that want a login, and the one that there is."""
LOGIN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def image_of(rules: dict[str, str], name: str) -> str:
    """The image that a repository and tag are served as; "" for none."""
    return next((image for pattern, image in rules.items() if re.search(pattern, name)), "")


def handler(state: Path, images: Path) -> type[BaseHTTPRequestHandler]:
    """Manifests and blobs of the image layouts below ``images``, read only."""

    class Registry(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = re.fullmatch(r"/v2/(?:(.+)/(manifests|blobs)/([\w.:+-]+))?", self.path.partition("?")[0])
            if found is None or not found[2]:
                self._send(200 if found else 404, b"{}" if found else b"", "application/json")
                return
            name, kind, reference = found.groups()
            if name.startswith(PRIVATE) and self.headers.get("Authorization") != f"Basic {LOGIN}":
                text = {"errors": [{"code": "UNAUTHORIZED", "message": f"{name} wants a login"}]}
                self._send(401, json.dumps(text).encode(), "application/json")
                return
            if kind == "manifests" and not reference.startswith("sha256:"):
                rules = json.loads((state / IMAGE_RULES).read_text())
                image = image_of(rules, f"{name}:{reference}")
                place = images / image / "manifest.json"
            else:
                digest = reference.partition(":")[2]
                place = next((one for one in images.glob(f"*/blobs/sha256/{digest}")), images / "none")
            if not place.is_file():
                text = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": f"{name}:{reference} is not known here"}]}
                self._send(404, json.dumps(text).encode(), "application/json")
                return
            types = {"manifests": "application/vnd.oci.image.manifest.v1+json", "blobs": "application/octet-stream"}
            self._send_file(place, types[kind])

        do_HEAD = do_GET

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="sandbox"')
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def _send_file(self, place: Path, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(place.stat().st_size))
            self.send_header("Docker-Content-Digest", f"sha256:{place.resolve().name}")
            self.end_headers()
            if self.command == "GET":
                with place.open("rb") as source:
                    while part := source.read(1 << 20):
                        self.wfile.write(part)

        def log_message(self, format: str, *args: Any) -> None:
            print(format % args, flush=True)

    return Registry


async def serve(state: Path, images: Path, outside: socket.socket) -> None:
    port = outside.getsockname()[1]
    registry = ThreadingHTTPServer((ADDRESS, REGISTRY_PORT), handler(state, images))
    registry.daemon_threads = True
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Names(state), local_addr=(ADDRESS, 53))
    server = await asyncio.start_server(lambda reader, writer: relay(port, reader, writer), sock=outside)
    draft = state / f".{HUB_READY}"
    draft.write_text(json.dumps({"pid": os.getpid(), "port": port}) + "\n")
    draft.replace(state / HUB_READY)
    await server.serve_forever()


def main() -> int:
    state, images = Path(sys.argv[1]), Path(sys.argv[2])
    outside = socket.socket()
    outside.bind(("127.0.0.1", 0))
    network()
    asyncio.run(serve(state, images, outside))
    return 0


if __name__ == "__main__":
    sys.exit(main())
