# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network namespace in which nothing but this machine's loopback exists, and a list of every address that was tried.

All addresses are this namespace's own (a local default route), so that a packet to any of them passes its interface
``lo``, where a packet socket sees it: of Ansible, Helm, kubectl and the sandbox alike. Nothing listens there, so that a
connection is refused at once. Only the calling thread and what it starts are in the namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of <linux/sched.h>."""
ALL_PROTOCOLS = 0x0003
"""ETH_P_ALL of <linux/if_ether.h>."""
PROTOCOLS = {6: "tcp", 17: "udp"}
FIRST = (
    (0x30, 0, 0, 0),  # version of IP
    (0x54, 0, 0, 0xF0),
    (0x15, 0, 6, 0x40),
    (0x30, 0, 0, 9),  # IPv4: UDP, or TCP with SYN and without ACK
    (0x15, 10, 0, 17),
    (0x15, 0, 10, 6),
    (0xB1, 0, 0, 0),
    (0x50, 0, 0, 13),
    (0x05, 0, 0, 4),
    (0x30, 0, 0, 6),  # IPv6: the same
    (0x15, 4, 0, 17),
    (0x15, 0, 4, 6),
    (0x30, 0, 0, 53),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 128),
    (0x06, 0, 0, 0),
)
"""A classic BPF program: only datagrams and the first packets of connections are read, so that none is lost."""
OWN = "198.51.100.9"
"""This machine's address besides the loopback's: an API server does not start without a default route and one."""
LINES = (
    "link set lo up",
    f"address add {OWN}/32 dev lo",
    "route add default via 198.51.100.1 dev lo onlink",
    "route add local default dev lo",
    "-6 route add local default dev lo",
)
ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of <asm/socket.h>."""
_libc = ctypes.CDLL(None, use_errno=True)


class Tried:
    """``addresses``: (protocol, address, port) of every connection and datagram."""

    def __init__(self) -> None:
        self.addresses: set[tuple[str, str, int]] = set()
        self.unread = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(ALL_PROTOCOLS))
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in FIRST))
        filtered = struct.pack("HxxxxxxP", len(FIRST), ctypes.addressof(program))
        self._socket.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, filtered)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def others(self) -> list[tuple[str, str, int]]:
        """Those that are not this machine's."""
        return sorted(one for one in self.addresses if one[1] != OWN and not ipaddress.ip_address(one[1]).is_loopback)

    def end(self) -> None:
        """Reads what has come; ``dropped`` packets would make the list incomplete."""
        self._over.set()
        self._thread.join()
        _seen, dropped = struct.unpack("II", self._socket.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
        self.unread = dropped
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                data, (_name, _protocol, kind, *_rest) = self._socket.recvfrom(128)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            if kind != socket.PACKET_OUTGOING:
                self.addresses.add(_target(data))


def _target(data: bytes) -> tuple[str, str, int]:
    """Whom a packet is the first of a connection to, or any datagram."""
    if data[0] >> 4 == 4:
        protocol, address, inner = data[9], str(ipaddress.ip_address(data[16:20])), data[(data[0] & 15) * 4 :]
    else:
        protocol, address, inner = data[6], str(ipaddress.ip_address(data[24:40])), data[40:]
    return PROTOCOLS[protocol], address, struct.unpack(">H", inner[2:4])[0]


def possible() -> bool:
    """Whether this user may make such a namespace."""
    return subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


@contextlib.contextmanager
def network() -> Iterator[Tried]:
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    assert _libc.unshare(NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    try:
        for line in LINES:
            subprocess.run(["ip", *line.split()], check=True)
        tried = Tried()
        try:
            yield tried
        finally:
            tried.end()
    finally:
        assert _libc.setns(before, NEW_NETWORK) == 0
        os.close(before)
