# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for ib_write_bw of real nodes: it takes what our script says, and refuses what perftest refuses."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import perftest
from gpuops_sandbox.context import load_shapes
from gpuops_sandbox.kubelets import images

H100 = load_shapes()["BM.GPU.H100.8"]
GID = "0000:0000:0000:0000:0000:ffff:c0a8:0005"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """With two ports of 200 Gb/s, of which the second is down."""
    for number, state in enumerate(("4: ACTIVE", "1: DOWN")):
        port = tmp_path / "sys" / f"mlx5_{number}" / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("200 Gb/sec (2X NDR)\n")
        (port / "gids" / "3").write_text(f"{GID}\n")
        device = tmp_path / "pci" / f"0000:0c:00.{number}"
        device.mkdir(parents=True)
        (port.parents[1] / "device").symlink_to(device)
    path = tmp_path / "bin" / "ib_write_bw"
    path.parent.mkdir()
    text = images.IB_WRITE_BW.read_text().replace("/sys/class/infiniband", str(tmp_path / "sys"))
    path.write_text(text.replace("#!/usr/bin/python3", f"#!{sys.executable}"))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--use_cuda_dmabuf --use_cuda=0", "CUDA DMA-BUF cannot be used without CUDA"),
        ("--use_gpu=0", "ib_write_bw: unrecognized option '--use_gpu=0'\n Invalid Command or flag."),
        ("-d mlx5_9", "IB device mlx5_9 not found"),
        ("-d mlx5_0 10.0.0.1 10.0.0.2", " Invalid Command line. Please check command rerun"),
        ("-d mlx5_0 -p 1 127.0.0.1", " Couldn't connect to 127.0.0.1:1"),
    ],
)
def test_it_refuses_what_the_real_one_refuses(program: Path, words: str, said: str) -> None:
    done = subprocess.run([str(program), *words.split()], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(said), done


def two_free_ports() -> int:
    """The first of two that follow each other."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


def test_our_script_gets_a_bandwidth_of_each_port_from_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perftest, "PORT", two_free_ports())
    test = perftest.PairTest("r1", "ns", H100, "i", seconds=0, dmabuf=frozenset(["n1"]))
    script = perftest.script(test).replace("/sys/class/infiniband", str(tmp_path / "sys"))
    rails = "0,0000:0c:00.0,0 1,0000:0c:00.1,1"
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}", "RAILS": rails, "MEMORY": perftest.memory(test, "n1")}
    ask = ["/bin/bash", "-c", script]
    server = subprocess.Popen(ask, stdout=subprocess.PIPE, text=True, env={**env, "PEER": ""})
    client = subprocess.run(ask, capture_output=True, text=True, env={**env, "PEER": "127.0.0.1"})
    theirs, _ = server.communicate(timeout=60)
    good, bad = perftest.parse(client.stdout)
    assert good.gbits == 197.0 and bad.gbits is None, client.stdout + theirs
    assert bad.error == "Failed to modify QP 264 to RTR", bad
    assert perftest.parse(theirs)[0].gbits == 197.0
