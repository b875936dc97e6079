# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before anything is removed, every permission that this needs is checked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED, OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import kinds, objects, permissions, rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import permissions as plan_permissions
from support.fake_api import Api

KINDS = [("apps/v1", "DaemonSet"), ("v1", "ConfigMap"), ("v1", "Namespace"), ("x/v1", "Unserved")]
RESOURCES = {"DaemonSet": "daemonsets", "ConfigMap": "configmaps", "Namespace": "namespaces"}
FOUND = {"daemonsets": [{"name": "d", "namespace": "a"}], "namespaces": [{"name": "a"}], "configmaps": []}


class FakeClient:
    """Serves RESOURCES and has FOUND; denies what is in ``denied``."""

    def __init__(self, *denied: str) -> None:
        self.denied, self.asked = denied, set()

    def resource(self, _version: str, kind: str) -> tuple[str, bool]:
        if kind not in RESOURCES:
            raise NotFound(kind, 404)
        return RESOURCES[kind], kind != "Namespace"

    def path(self, _version: str, kind: str) -> str:
        return RESOURCES[kind]

    def list(self, path: str, **_selectors: str) -> Any:
        return [{"metadata": meta} for meta in FOUND[path]]

    def allowed(self, **asked: str) -> bool:
        line = f"{asked['verb']} {asked['resource']} {asked['namespace']}".strip()
        self.asked.add(line)
        return line not in self.denied


def test_what_is_there_may_be_removed() -> None:
    there = FakeClient()
    rights.require_removal(there, KINDS, "x=y")
    assert there.asked == {
        *(f"list {name}" for name in FOUND),
        *("get daemonsets a", "delete daemonsets a", "get namespaces", "delete namespaces"),
        *(f"list {RESOURCES[kind]} a" for _version, kind in objects.OCCUPANTS if kind in RESOURCES),
    }


@pytest.mark.parametrize(
    ("denied", "line"),
    [
        ("list configmaps", "in the whole cluster: list configmaps"),
        ("delete daemonsets a", "in namespace a: delete daemonsets.apps"),
        ("get namespaces", "in the whole cluster: get namespaces"),
        ("list configmaps a", "in namespace a: list configmaps"),
    ],
)
def test_any_right_that_is_missing_is_named(denied: str, line: str) -> None:
    with pytest.raises(InputError, match=f"^Nothing was removed.*\n- {line}\n.* --tags plan "):
        rights.require_removal(FakeClient(denied), KINDS, "x=y")


class Whole(Api):
    """One object of ours of each kind, in a namespace of ours where the kind has them; what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Permission] = []
        meta = {"name": "x", "labels": dict(OWNED)}
        found = [
            {"kind": kind, "metadata": {**meta, **({"namespace": "gpuops-rdma"} if self._of(version, kind)[1] else {})}}
            for version, kind in objects.KINDS
        ]
        super().__init__(*found)

    @staticmethod
    def _of(version: str, kind: str) -> tuple[str, bool]:
        return kinds.KINDS.get((version, kind), (f"{kind.lower()}s", kind != "PersistentVolume"))

    def resource(self, version: str, kind: str) -> tuple[str, bool]:
        return self._of(version, kind)

    def allowed(self, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        self.asked.append(Permission(verb, group, resource, namespace, name))
        return super().allowed(verb, group, resource, namespace, name)


def test_the_plan_announces_every_right_of_a_teardown_and_each_that_is_missing_is_named() -> None:
    there = Whole()
    rights.require_removal(there, objects.KINDS, OWNED_SELECTOR)  # type: ignore[arg-type]
    every = list(dict.fromkeys(there.asked))
    announced = plan_permissions.teardown(Plan(mode=Mode.SRIOV), kinds.KINDS)
    rules = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb], "at": one.namespace}
        for one in announced
    ]
    assert len(every) > 80
    for asked in every:
        known = [rule for rule in rules if rule["at"] in ("", asked.namespace)]
        # A namespace's own list comes with the right to list everywhere.
        assert permissions.allowed(asked, known), asked
        there.denied = {f"{asked.verb} {asked.resource} {asked.namespace}".strip()}
        with pytest.raises(InputError, match=r"^Nothing was removed") as error:
            rights.require_removal(there, objects.KINDS, OWNED_SELECTOR)  # type: ignore[arg-type]
        (line,) = permissions.texts([asked])
        place, _sep, words = line.partition(": ")
        assert place in str(error.value) and set(words.split()) <= set(re.split(r"[ ,;\n]+", str(error.value))), line


def test_objects_of_an_older_kueue_are_removed_too() -> None:
    class Older(Api):
        def resource(self, version: str, kind: str) -> tuple[str, bool]:
            if version == "kueue.x-k8s.io/v1beta2":
                raise NotFound("no such version", 404)
            return super().resource(version, kind)

    kinds = [("v1", "Pod"), ("kueue.x-k8s.io/v1beta2", "LocalQueue"), ("nvidia.com/v1alpha1", "NVIDIADriver")]
    both: Any = Older(absent=("NVIDIADriver",))
    assert rights.served(both, kinds) == [("v1", "Pod"), ("kueue.x-k8s.io/v1beta1", "LocalQueue")]
    newer: Any = Api()
    assert rights.served(newer, kinds) == kinds
    assert {version for version, _kind in objects.KINDS} >= set(objects.OLDER)
