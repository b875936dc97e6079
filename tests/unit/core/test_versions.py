# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions as charts, images, OLM, kernels and Python packages write them; lists that are cut."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed


def test_versions_are_ordered() -> None:
    rising = ["", "1.0.0.dev1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    rising += ["1.0.0-rc.1", "1.0.0", "1.0.1", "1.9", "1.10", "v2", "v26.7.0-rc.2", "26.7.0"]
    keys = [versions.parse(text) for text in rising]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("v3.19.0+g1234", "3.19"),
        ("v1.14.5-ubi8", "1.14.5"),
        ("gpu-operator-certified.v25.10.1", "25.10.1"),
        ("sriov-network-operator.v4.20.0-202510291116", "4.20"),
        ("5.15.0-1055-oracle", "5.15"),
        ("1.33.0-gke.100", "1.33.0"),
        ("550.163.02", "550.163.2"),
        ("1.2.3-a1b2c3", "1.2.3"),
        ("2.20.0b1", "2.20.0-beta.1"),
    ],
)
def test_what_stands_beside_the_numbers_does_not_count(text: str, same: str) -> None:
    assert versions.known(text) and versions.parse(text) == versions.parse(same)


def test_what_is_no_version() -> None:
    for text in ("", "garbage", "latest", None):
        assert not versions.known(text) and versions.minor(text) == (0, 0)
        assert not versions.older(text, "1.0") and versions.parse(text) < versions.parse("0.0.1-alpha")
    assert versions.older("v5.11.22", "5.12") and not versions.older("5.12", "5.12.0")
    assert versions.minor("v1.34.2+k3s1") == (1, 34) and versions.minor("535") == (535, 0)


@pytest.mark.parametrize("text", ["2." + "9" * 5000, "\u0662.27"])
def test_what_python_does_not_convert_is_no_version(text: str) -> None:
    assert versions.minor(text) == (0, 0) and versions.older(text, "2.19")


def test_the_same_release() -> None:
    for one, other in (("v26.7.0", "26.7.0"), ("26.7", "v26.7.0+ab1"), ("v26.7.0-rc.2", "26.7.0-rc2"), ("", "")):
        assert versions.same(one, other)
    for one, other in (("26.7.0-rc.2", "26.7.0"), ("26.7.0-nightly.1", "26.7.0-nightly.2"), ("26.7.0-1", "26.7.0")):
        assert not versions.same(one, other)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MISSING_LIBRARY", "No module named 'packaging'")
    with pytest.raises(RdmaError, match="packaging, which ansible-core requires"):
        versions.parse("1.0")


def test_lists_are_cut() -> None:
    assert listed([]) == "" and listed(["a", "b", "c"]) == "a, b, c"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more" and listed(list("abc"), 1, "; ") == "a; and 2 more"
    assert (counted(1, "node"), counted(0, "node"), counted(2, "more block")) == ("1 node", "0 nodes", "2 more blocks")
