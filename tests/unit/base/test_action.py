# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments reach an action as plain Python, whatever classes Ansible gives its values."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import plain


class Text(str):
    """As ansible-core 2.19 marks where a string came from."""


class Number(int):
    """The same of a number."""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Text("lab-gpus"), "lab-gpus"),
        (Number(5), 5),
        (True, True),
        (None, None),
        (1.5, 1.5),
        ({Text("a"): [Text("b"), {Number(1): (Text("c"), False)}]}, {"a": ["b", {1: ["c", False]}]}),
    ],
)
def test_values_are_plain(value: Any, wanted: Any) -> None:
    found = plain(value)
    assert found == wanted and type(found) is type(wanted)
    assert yaml.safe_load(yaml.safe_dump(found)) == wanted
