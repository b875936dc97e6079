# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox for the tests of this folder, whose operators are the tests themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import SHARED_RESOURCE

from support.sandboxes import SHAPE, Cluster, Pool

VF = "nvidia.com/sriov_rdma_vf"


class Small(Cluster):
    """A sandbox without simulated operators: the tests play them."""

    def offer(self, node: str, **resources: int) -> None:
        """Sets what a node offers; ``gpus``, ``vfs`` and ``shared`` (slots) are the names that matter here."""
        names = {"gpus": "nvidia.com/gpu", "vfs": VF, "shared": SHARED_RESOURCE}
        counts = {names[key]: str(value) for key, value in resources.items()}
        body = {"status": {"capacity": counts, "allocatable": counts}}
        self.client.patch(f"{self.client.path('v1', 'Node', '', node)}/status", body)

    def until(self, holds: Callable[[], bool]) -> None:
        """Until the API server has seen what was written, such as a Role."""
        deadline = time.monotonic() + 900
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def namespace(self, name: str) -> None:
        self.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def crd(self, plural: str, group: str, version: str, kind: str, scope: str = "Cluster", spec: Any = None) -> None:
        schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema.update({"properties": {"spec": spec}} if spec else {})
        served: dict[str, Any] = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
        served["schema"] = {"openAPIV3Schema": schema}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
        self.client.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {"group": group, "names": names, "scope": scope, "versions": [served]},
            }
        )

    def established(self, name: str) -> None:
        self.run("kubectl", "wait", "--for=condition=Established", f"crd/{name}", "--timeout=180s")

    def custom(self, obj: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        """Applies an object of a CRD that may be seconds old, and its status."""
        deadline = time.monotonic() + 900
        while True:
            try:
                path = self.client.path_of(obj)
                self.client.get(path.rsplit("/", 1)[0])
                break
            except NotFound as error:
                assert time.monotonic() < deadline, error
                time.sleep(0.1)
        self.client.apply(obj)
        if status is not None:
            self.client.patch(f"{path}/status", {"status": status})

    def daemonset(
        self, namespace: str, name: str, labels: dict[str, str], shape: str = SHAPE, image: str = "example.test/x:1"
    ) -> None:
        pod = {
            "nodeSelector": {"node.kubernetes.io/instance-type": shape},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": image}],
        }
        self.client.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            }
        )


@contextlib.contextmanager
def small_sandbox(pool: Pool, folder: Path, gpu_nodes: int) -> Iterator[Small]:
    """With that many GPU nodes, and one without GPU."""
    options = ("--gpu-nodes", str(gpu_nodes), "--cpu-nodes", "1", "--without", "all")
    with pool.lease(folder, *options) as lent:
        yield Small(lent.sandbox, folder)
