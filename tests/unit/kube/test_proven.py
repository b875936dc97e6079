# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that was cut between its writes and its proof leaves nothing to write; the next must prove all the same."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import ANNOTATION, Proven


class Api:
    def __init__(self, annotations: Any = None) -> None:
        self.object: Any = {"metadata": {"annotations": annotations or {}}}
        self.patches = 0

    def find(self, path: str) -> Any:
        assert path == "policy"
        return self.object

    def patch(self, path: str, body: Any) -> None:
        self.patches += 1
        self.object["metadata"]["annotations"].update(body["metadata"]["annotations"])


def proven(api: Any, what: str = "vgpu", state: Any = "a") -> Proven:
    return Proven(api, "policy", what, state)


def test_only_a_noted_proof_spares_the_next_run_its_own() -> None:
    api = Api()
    assert proven(api).due("changed", changed=True)
    assert proven(api).due("changed", changed=False), "the earlier run failed before its proof"
    proven(api).note()
    assert not proven(api).due("changed", changed=False)
    assert proven(api).due("changed", changed=True)
    assert proven(api, state="b").due("changed", changed=False), "another state was never proven"
    assert proven(api, what="metrics").due("changed", changed=False), "nor was another row"
    proven(api).note()
    assert api.patches == 1


def test_rows_stand_beside_each_other() -> None:
    api = Api({"other": "stays"})
    proven(api).note()
    proven(api, "metrics").note()
    assert not proven(api).due("changed", changed=False)
    assert not proven(api, "metrics").due("changed", changed=False)
    assert api.object["metadata"]["annotations"]["other"] == "stays"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_a_note_that_cannot_be_read_is_none(text: str) -> None:
    api = Api({ANNOTATION: text})
    assert proven(api).due("changed", changed=False)
    proven(api).note()
    assert not proven(api).due("changed", changed=False)


def test_always_and_never_ask_nobody() -> None:
    assert proven(None).due("always", changed=False)
    assert not proven(None).due("never", changed=True)
