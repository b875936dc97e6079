# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that others publish, as they stand in ../shared/upstream/hardware: what is found of each is true of it."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import cluster, lint, linted
from support.paths import upstream

ASKED = {"selector": "", "shape": "", "resource": "", "network": "", "interface": "eth0", "mode": "auto", "taints": [],
         "single": [], "memlock_unlimited": False}  # fmt: skip
CLAIM = [("claim", "unknown")]
PUBLIC: dict[str, list[tuple[str, str]]] = {
    # Oracle's tests, each for the shape in its name and on the network of its name
    "oci-hpc-oke/nccl-BM.GPU.GB200-v2.4.yaml": [],
    "oci-hpc-oke/nccl-BM.GPU.GB200-v3.4.yaml": [],
    "oci-hpc-oke/nccl-BM.GPU.GB200.4.yaml": [],
    "oci-hpc-oke/nccl-BM.GPU.GB300.4.yaml": [],
    "oci-hpc-oke/rccl-BM.GPU.MI300X.8.yaml": [],
    "oci-hpc-oke/rccl-BM.GPU.MI355X-v1.8.yaml": [],
    "oci-hpc-oke/rccl-BM.GPU.MI355X.8.yaml": [],
    "oci-hpc-oke/rccl-vf-BM.GPU.MI300X.8.yaml": [],
    "oci-hpc-oke/rccl-vf-BM.GPU.MI355X-v1.8.yaml": [],
    # Google's tests of two pods
    "gcp/nccl-test-a4.yaml": [],
    "gcp/nccl-test-a4x-max.yaml": [],
    "gcp/nccl-test-imex-a4x-max.yaml": [],
    # claims of GPUs and NICs together, whose templates are in other files
    "dranet/oke-BM.GPU.H100.8_mpi-job.yaml": CLAIM,
    "dranet/oke-BM.GPU.GB200-v3.4_mpi-job.yaml": CLAIM,
    "dranet/oke-BM.GPU.GB200-v3.4_multinode-mpi-job.yaml": CLAIM,
    "dranet/install.yaml": [],
    "dra-driver-nvidia-gpu/channel-injection-all.yaml": [],
    # four pods that meet over NVLink: with the 64 MiB of a container's own /dev/shm, and not placed together
    "dra-driver-nvidia-gpu/nvbandwidth-test-job.yaml": [("fabric", "unknown"), ("shm", "error"), ("gang", "warning")],
}
"""File -> what is found of it, looked through by hand."""


def found(name: str, **more: str) -> list[tuple[str, str]]:
    documents = [one for one in yaml.safe_load_all(upstream("hardware", name).read_text("utf-8")) if one]
    around = cluster.around(None, documents, {**ASKED, **more}, None)
    judged = lint.lint(documents, linted.table(), around).findings
    return [(one.id.partition(".")[2], one.severity) for one in judged]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_job_has_no_false_alarm(name: str) -> None:
    assert found(name) == PUBLIC[name]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.startswith("oci-hpc-oke")])
def test_oracles_own_tests_are_clean_on_their_shapes(name: str) -> None:
    shape = re.search(r"BM\.GPU\.[\w-]+\.\d+", name)
    assert shape and found(name, shape=shape[0], mode="sriov" if "-vf-" in name else "host") == []


def test_every_public_job_is_looked_at() -> None:
    folder = upstream("hardware")
    kinds = re.compile(r"^kind: (MPIJob|PyTorchJob|JobSet|LeaderWorkerSet|TrainJob|RayJob|Job|Pod)$", re.MULTILINE)
    files = {path for part in ("oci-hpc-oke", "gcp", "dranet", "dra-driver-nvidia-gpu", "azure", "aicr", "rocm-cvs")
             for path in (folder / part).rglob("*.yaml") if kinds.search(path.read_text("utf-8"))}  # fmt: skip
    assert {str(path.relative_to(folder)) for path in files} <= set(PUBLIC)
