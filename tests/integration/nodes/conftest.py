# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sandbox whose GPU nodes are real: kubelet, containerd, runc. Where none can be made its tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpuops_sandbox.cluster import home
from gpuops_sandbox.kubelets import images, programs, realnodes
from support.nccl_cluster import WITHOUT, install_volcano
from support.real_nodes import FAULT, NODES, Real
from support.sandboxes import Pool


@pytest.fixture(scope="session")
def possible() -> None:
    against = realnodes.refusals(home() / "probe", NODES)
    if programs.missing() or images.missing():
        against.append("programs or images are not built: make test-nodes")
    if against:
        pytest.skip(f"no real nodes: {'; '.join(against)}")


@pytest.fixture(scope="session")
def real(possible: None, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    options = ("--gpu-nodes", str(NODES), "--kubelets", str(NODES), "--cpu-nodes", "1", "--fault", FAULT)
    with pool.lease(folder, *options, "--without", WITHOUT) as lent:
        made = Real(lent.sandbox, folder)
        install_volcano(made)
        made.prepare()
        yield made
