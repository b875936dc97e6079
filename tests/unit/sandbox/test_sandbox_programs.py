# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of the operators' own programs: which pods are theirs, their lease, their root."""

from __future__ import annotations

import asyncio
import time
import types

import pytest
from gpuops_sandbox import pod_process, real
from gpuops_sandbox.operators import _hub, _lease
from gpuops_sandbox.operators.real_programs import _expanded

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/53822513.nvidia.com"


class Leases:
    """One lease, whose holder renews it until ``renewed_until``."""

    def __init__(self, clock, holder, renewed_until):
        self.clock, self.until, self.writes = clock, renewed_until, []
        spec = {"holderIdentity": holder, "renewTime": "0"}
        self.lease = {"metadata": {"resourceVersion": "1"}, "spec": spec} if holder else None

    async def find(self, path):
        assert path == LEASE
        if self.lease and not self.writes:
            self.lease["spec"]["renewTime"] = str(min(self.clock[0], self.until))
        return self.lease

    async def create(self, path, body):
        assert path == LEASE.rpartition("/")[0]
        return await self.replace(LEASE, body)

    async def replace(self, _path, body):
        self.writes.append(self.clock[0])
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}}
        return body


@pytest.mark.parametrize(("holder", "renewed_until", "taken"), [("", 0, 0), ("other", -1, 16), ("other", 20.0, 36)])
def test_a_program_leads_once_nobody_has_renewed_the_lease_for_15_s(holder, renewed_until, taken, monkeypatch):
    clock = [0.0]
    api = Leases(clock, holder, renewed_until)
    process = types.SimpleNamespace(name="gpu-operator", leads=False)

    async def sleep(seconds):
        clock[0] += seconds
        if process.leads and clock[0] > taken + 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(_lease.asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    hub = types.SimpleNamespace(api=api, ctx=types.SimpleNamespace(namespace="ns"), complain=print)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_lease.keep(hub, process))
    assert api.writes[:3] == [taken, taken + 2, taken + 4]


def test_a_program_is_of_the_release_of_its_start_and_acts_while_it_leads():
    deployments, begun = [{"metadata": {"name": "v1"}}], []
    hub = types.SimpleNamespace(ctx=types.SimpleNamespace(namespace="ns"), deployments=deployments)
    process = _hub.Process(hub, "gpu-operator", lambda _one: True, lambda: begun.append(1))
    assert process.deployment() == (None, 0.5)
    deployments[:] = [{"metadata": {"name": "v2"}}]
    process.leads = True
    assert [process.deployment()[0]["metadata"]["name"] for _ in range(2)] == ["v1", "v1"]
    assert begun == [1]


def test_a_pod_is_of_the_program_whose_controller_and_labels_it_has():
    labels = {"app.kubernetes.io/component": "gpu-operator", "batch.kubernetes.io/job-name": "gpu-operator-upgrade-crd"}
    names = ("gpu-operator", "gpu-operator-upgrade-crd")
    assert real.of_pod("ReplicaSet", labels, names) == "gpu-operator"
    assert real.of_pod("Job", labels, names) == "gpu-operator-upgrade-crd"
    assert real.of_pod("Job", labels, names[:1]) == real.of_pod("DaemonSet", labels, names) == ""
    assert real.jq_of_pods(()) == "(false)"


def test_variables_of_arguments():
    assert _expanded("--a=$(SPACE)/$(OTHER)", {"SPACE": "ns"}) == "--a=ns/$(OTHER)"


def test_a_root_has_the_files_of_the_machine_and_those_of_the_program(tmp_path, monkeypatch):
    host, brought, made = tmp_path / "host", tmp_path / "brought", []
    (host / "opt" / "own").mkdir(parents=True)
    (host / "lib").symlink_to("opt")
    (brought / "manifests").mkdir(parents=True)
    monkeypatch.setattr(pod_process.kernel, "mount", lambda source, place, **_: made.append((source, place)))
    target = tmp_path / "root"
    target.mkdir()
    pod_process._fill(target, host, {("manifests",): brought / "manifests", ("opt", "gpu-operator"): brought})
    assert sorted(made) == sorted([
        (str(brought / "manifests"), target / "manifests"),
        (str(brought), target / "opt" / "gpu-operator"),
        (str(host / "opt" / "own"), target / "opt" / "own"),
    ])  # fmt: skip
    assert (target / "lib").is_symlink()


def test_only_what_the_machine_has_not_is_laid_into_the_root(tmp_path):
    (tmp_path / "etc" / "gpuops-sandbox-test").mkdir(parents=True)
    (tmp_path / "manifests").mkdir()
    assert real.files(tmp_path) == {
        "/etc/gpuops-sandbox-test": str(tmp_path / "etc" / "gpuops-sandbox-test"),
        "/manifests": str(tmp_path / "manifests"),
    }
    assert real.files(tmp_path / "nothing") == {}
