# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must not be shown, in reports, diffs and command lines alike."""

from __future__ import annotations

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import HIDDEN, masked, speaks_of_secret


def test_secrets_are_hidden_wherever_they_stand_and_references_are_not() -> None:
    tree = {
        "operator": {"certificate": {"tlsKey": "x", "tlsCrt": "y"}},
        "registry": {"password": "p", "passwords": ["p", "q"], "imagePullSecrets": ["pull"], "secretName": "lic"},
        "env": [{"name": "NGC_API_KEY", "value": "k"}, {"name": "MOFED_ENABLED", "value": "false"}],
        "deep": [{"list": [{"authToken": "t"}]}],
        "tokenCount": 3,
    }
    assert masked(tree) == {
        "operator": {"certificate": {"tlsKey": HIDDEN, "tlsCrt": "y"}},
        "registry": {
            "password": HIDDEN,
            "passwords": [HIDDEN, HIDDEN],
            "imagePullSecrets": ["pull"],
            "secretName": "lic",
        },
        "env": [{"name": "NGC_API_KEY", "value": HIDDEN}, {"name": "MOFED_ENABLED", "value": "false"}],
        "deep": [{"list": [{"authToken": HIDDEN}]}],
        "tokenCount": 3,
    }
    assert masked("plain") == "plain"


def test_an_input_that_speaks_of_a_secret_is_no_part_of_a_command_line() -> None:
    assert speaks_of_secret('{"rdma_gpu_operator_values": {"registry": {"password": "p"}}}')
    assert not speaks_of_secret("rdma_mode=sriov")
