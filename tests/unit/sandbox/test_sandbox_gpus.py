# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes with a machine's own GPUs: which GPUs a node has, and what its containers get."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from gpuops_sandbox import cli
from gpuops_sandbox.kubelets import gpus, images, inject, realnodes
from gpuops_sandbox.kubelets.hub import image_of

GPUS = {"devices": {"nvidia1": [195, 1], "nvidiactl": [195, 255]}, "files": {"/usr/bin/nvidia-smi": "/opt/nvidia-smi"}}


def config(kind: str = "container", **env: str) -> dict[str, Any]:
    """An OCI runtime configuration as containerd hands it to runc, as far as it matters."""
    return {
        "annotations": {inject.KIND: kind},
        "process": {"env": ["PATH=/bin", *(f"{name}={value}" for name, value in env.items())]},
        "mounts": [],
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }


def test_gpus_are_found_in_their_order_and_parted(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia0", "null", "nvidia1"):
        (tmp_path / name).touch()
    found = gpus.found(tmp_path)
    assert found == ["nvidia0", "nvidia1", "nvidia2", "nvidia10"]
    assert gpus.parts(found, 2) == [["nvidia0", "nvidia1"], ["nvidia2", "nvidia10"]]
    for names, nodes in ((found, 3), ([], 1)):
        with pytest.raises(ValueError, match=f"{len(names)} GPUs, which cannot be parted among {nodes} nodes"):
            gpus.parts(names, nodes)


def test_driver_files_go_to_a_place_where_programs_look(tmp_path: Path) -> None:
    folder = tmp_path / "usr/local/nvidia/lib64"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.580.1").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    program = tmp_path / "usr/bin/nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.touch()
    files = gpus.given([], tmp_path)["files"]
    (place, source) = next(iter(files.items()))
    assert place.startswith("/usr/lib/") and place.endswith("/libcuda.so.1") and source.endswith("libcuda.so.580.1")
    assert files["/usr/bin/nvidia-cuda-mps-control"] == str(program)
    mounts = "/dev/vda / ext4 rw 0 0\nn /usr/local/nvidia ext4 ro 0 0\nproc /proc proc rw 0 0\n"
    assert gpus.mounted({"/a": "/usr/local/nvidia/lib64/x", "/b": "/usr/lib/y"}, mounts) == ["/usr/local/nvidia"]


def test_a_container_that_asks_gets_gpus_and_none_gets_multicast() -> None:
    found = inject.injected(config(NVIDIA_VISIBLE_DEVICES="all", NCCL_NVLS_ENABLE="1"), GPUS)
    env = found["process"]["env"]
    assert {f"{name}={value}" for name, value in inject.NVLS_OFF.items()} <= set(
        env
    ) and "NCCL_NVLS_ENABLE=1" not in env
    assert [entry["path"] for entry in found["linux"]["devices"]] == ["/dev/nvidia1", "/dev/nvidiactl"]
    allowed = [(rule["major"], rule["minor"]) for rule in found["linux"]["resources"]["devices"] if rule["allow"]]
    assert allowed == [(195, 1), (195, 255)]
    (mount,) = found["mounts"]
    assert (mount["destination"], mount["source"]) == ("/usr/bin/nvidia-smi", "/opt/nvidia-smi") and "ro" in mount[
        "options"
    ]


MPS = {**GPUS, "env": {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe"}, "shared": {"/mps": "/run/nvidia/mps"}}


def test_a_container_of_a_node_with_mps_gets_the_way_to_its_daemon() -> None:
    found = inject.injected(config(NVIDIA_VISIBLE_DEVICES="all"), MPS)
    assert "CUDA_MPS_PIPE_DIRECTORY=/mps/pipe" in found["process"]["env"]
    mount = found["mounts"][-1]
    assert (mount["destination"], mount["source"]) == ("/mps", "/run/nvidia/mps") and "rw" in mount["options"]


@pytest.mark.parametrize("env", [{}, {"NVIDIA_VISIBLE_DEVICES": "void"}, {"NVIDIA_VISIBLE_DEVICES": ""}])
def test_other_containers_get_no_gpu_but_the_variables(env: dict[str, str]) -> None:
    found = inject.injected(config(**env), MPS)
    assert "devices" not in found["linux"] and found["mounts"] == []
    assert "NCCL_NVLS_ENABLE=0" in found["process"]["env"]


def test_a_pods_own_sandbox_is_left_alone() -> None:
    before = config("sandbox", NVIDIA_VISIBLE_DEVICES="all")
    assert inject.injected(copy.deepcopy(before), GPUS) == before


def test_every_image_is_the_machines() -> None:
    assert image_of(images.MACHINE_RULES, "registry.k8s.io/pause:3.10") == "pause"
    assert image_of(images.MACHINE_RULES, "library/nccl-tests:machine") == "machine"
    assert "inject.py" in realnodes.RUNC


@pytest.mark.parametrize(
    ("options", "found", "words"),
    [
        ([], ["nvidia0"], "--machine is for real nodes"),
        (["--kubelets", "1"], [], "has 0 GPUs, which cannot be parted among 1 nodes"),
        (["--kubelets", "1"], ["nvidia0"], "no image is there; tests/gpu/run makes it"),
    ],
)
def test_what_cannot_be_is_said_first(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    found: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(gpus, "found", lambda: found)
    assert cli.main(["up", "--name", "machine", "--gpu-nodes", "1", "--machine", str(tmp_path), *options]) != 0
    assert words in capsys.readouterr().err
