#!/usr/bin/python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for perftest's ib_write_bw on machines without RDMA ports; it runs in containers on real nodes.

Server and client meet over TCP as the real ones do. Ports, their state, rate and GIDs are those of /sys. Nothing is
transferred: a healthy port has 98.5 % of its rate. What the real one refuses, it refuses in the same words
(src/perftest_parameters.c, perftest_resources.c, perftest_communication.c).
"""

import json
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

LONG = {"tclass": True, "report_gbits": False, "use_cuda": True, "use_cuda_dmabuf": False}
SHORT = {"d": True, "p": True, "s": True, "q": True, "D": True, "x": True, "S": True, "F": False}
LINE = "-" * 87
PORTS = Path("/sys/class/infiniband")
HEALTHY = 0.985


def refuse(*lines: str) -> "int":
    print("\n".join(lines), file=sys.stderr)
    raise SystemExit(1)


def options(words: "list[str]") -> "tuple[dict[str, str], str]":
    """(option -> value, the server's address)."""
    found, peer, rest = {"p": "18515", "q": "1", "s": "65536", "x": "-1", "D": "5"}, "", list(words)
    while rest:
        word = rest.pop(0)
        name, same, value = word.lstrip("-").partition("=")
        known = LONG if word.startswith("--") else SHORT
        if not word.startswith("-"):
            if peer:
                refuse(" Invalid Command line. Please check command rerun ")
            peer = word
            continue
        if name not in known or (same and not known[name]):
            kind = f"unrecognized option '{word}'" if known is LONG else f"invalid option -- '{name[:1]}'"
            refuse(f"ib_write_bw: {kind}", " Invalid Command or flag.", " Please check command line and run again.")
        if name == "use_cuda_dmabuf" and "use_cuda" not in found:
            refuse("CUDA DMA-BUF cannot be used without CUDA")
        if known[name] and not same:
            if not rest:
                refuse(f"ib_write_bw: option requires an argument -- '{name}'", " Invalid Command or flag.")
            value = rest.pop(0)
        found[name] = value
    return found, peer


def port_of(device: str) -> Path:
    there = sorted(path.name for path in PORTS.iterdir()) if PORTS.is_dir() else []
    if not there:
        refuse(
            " Did not detect devices ",
            " If device exists, check if driver is up",
            " Unable to find the Infiniband/RoCE device",
        )
    if device not in there:
        refuse(f"IB device {device} not found", " Unable to find the Infiniband/RoCE device")
    return PORTS / device / "ports" / "1"


def meet(peer: str, port: int, mine: "dict[str, str]") -> "tuple[socket.socket, TextIO, dict[str, str]]":
    """The connection over which both tell their options, what is read from it, and the other's options."""
    if peer:
        try:
            link = socket.create_connection((peer, port), timeout=30)
        except OSError:
            refuse(
                f" Couldn't connect to {peer}:{port}",
                " Unable to open file descriptor for socket connection",
                " Unable to init the socket connection",
            )
    else:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("", port))
        except OSError:
            refuse(f"Couldn't listen to port {port}", " Unable to open file descriptor for socket connection")
        own.listen(1)
        print(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}", flush=True)
        link = own.accept()[0]
    link.settimeout(60)
    link.sendall(json.dumps(mine).encode() + b"\n")
    heard = link.makefile()
    line = heard.readline()
    if not line:
        refuse(" Failed to exchange data between server and clients")
    return link, heard, json.loads(line)


def main() -> int:
    given, peer = options(sys.argv[1:])
    place = port_of(given.get("d") or min(path.name for path in PORTS.iterdir()))
    up = (place / "state").read_text().startswith("4:")
    gids = place / "gids" / given["x"]
    routed = up and (given["x"] == "-1" or (gids.exists() and gids.read_text().strip("0:\n")))
    mine = {name: given[name] for name in ("s", "q", "D")}
    link, heard, theirs = meet(peer, int(given["p"]), {**mine, "up": str(bool(routed))})
    if theirs["up"] != "True" or not routed:
        refuse(" Failed to modify QP 264 to RTR", " Unable to Connect the HCA's through the link")
    if {name: theirs[name] for name in mine} != mine:
        refuse(" Failed to exchange data between server and clients")
    time.sleep(float(given["D"]))
    link.sendall(b"done\n")
    if not heard.readline():
        refuse(" Completion with error at client", " Failed status 12: wr_id 0 syndrom 0x81", "scnt=128, ccnt=0")
    gbits = float((place / "rate").read_text().split()[0]) * HEALTHY
    unit, shown = ("Gb", gbits) if "report_gbits" in given else ("MB", gbits * 1e9 / 8 / 2**20)
    size = int(given["s"])
    count = int(gbits * 1e9 / 8 / size * float(given["D"]))
    print(
        LINE,
        f"                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : {given.get('d', '')}",
        sep="\n",
    )
    print(f"{LINE}\n #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]")
    rate = gbits * 1e3 / 8 / size
    print(f" {size:<7d}    {count:<10d}       {0.0:<7.2f}            {shown:<7.2f}\t\t   {rate:<7.6f}\n{LINE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
