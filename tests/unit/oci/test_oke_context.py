# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An inventory of clusters and one kubeconfig: each host's tasks reach its own cluster, or nothing is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import inventory
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import action

# As OKE wrote them into a kubeconfig, in the output of a stack that somebody published.
OCID = "ocid1.cluster.oc1.eu-frankfurt-1.aaaaaaaa7opsktcg4ooflorjpmwxsixh3biidnsl45mtqcohdchdsdzv5z3a"
CONTEXT, SERVER = "context-chdsdzv5z3a", "https://141.144.224.35:6443"
ENDS = {"kubernetes": None, "publicEndpoint": "141.144.224.35:6443", "privateEndpoint": "10.0.0.10:6443"}


def test_the_context_has_okes_name_and_all_endpoints_are_known() -> None:
    item = {"id": OCID, "name": "east", "compartmentId": "c", "endpoints": {**ENDS, "vcnHostnameEndpoint": "k:6443"}}
    (host,) = inventory.clusters([{**item, "region": "eu-frankfurt-1"}], {})
    assert host["vars"]["oci_context"] == CONTEXT
    assert host["vars"]["oci_endpoints"] == ["141.144.224.35:6443", "10.0.0.10:6443", "k:6443"]


@pytest.mark.parametrize(
    ("server", "elsewhere"),
    [
        (SERVER, False),
        ("https://10.0.0.10:6443/", False),
        ("https://10.0.0.10:12250", True),
        ("https://141.144.224.36:6443", True),
        ("https://141.144.224.3:6443", True),
        ("https://127.0.0.1:6443", False),
        ("https://localhost:16443", False),
    ],
)
def test_a_server_is_the_cluster_or_not(server: str, elsewhere: bool) -> None:
    known = [end for end in ENDS.values() if end]
    assert inventory.elsewhere(server, known) is elsewhere
    assert not inventory.elsewhere(server, [])


def reach(server: str, monkeypatch: pytest.MonkeyPatch, **variables: Any) -> Any:
    monkeypatch.setattr(action.Client, "connect", lambda _auth: SimpleNamespace(host=server))
    made = action.RdmaAction.__new__(action.RdmaAction)
    made._auth, made._task_vars = {}, {"inventory_hostname": "west", **variables}
    made._templar = Templar(loader=DataLoader(), variables=variables)
    return made.client


OF_STACK = {"oci_public_endpoint": "", "oci_private_endpoint": "10.9.9.9:6443"}


@pytest.mark.parametrize("told", [{"oci_endpoints": ["10.9.9.9:6443"], "oci_cluster_id": OCID}, OF_STACK])
def test_a_kubeconfig_of_another_cluster_is_refused(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        reach(SERVER, monkeypatch, **told)
    text = str(caught.value)
    for words in (f"points to {SERVER}", "west is at 10.9.9.9:6443", "rdma_context", "oci_endpoints"):
        assert words in text
    assert (CONTEXT in text) is ("oci_cluster_id" in told)


@pytest.mark.parametrize(
    "told",
    [{}, {"oci_endpoints": ["141.144.224.35:6443"]}, {"oci_endpoints": [], **OF_STACK, "oci_private_endpoint": ""}],
)
def test_the_hosts_own_cluster_and_clusters_of_unknown_place_are_reached(
    told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reach(SERVER, monkeypatch, **told).host == SERVER
