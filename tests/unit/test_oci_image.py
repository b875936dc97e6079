# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which node image: picked from Oracle's index, known by its object."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import _oci_image
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import DataError, InputError

INDEX = pathlib.Path(__file__).resolve().parents[2] / ".." / "shared" / "upstream" / "oci" / "worker-node-images.json"
LINK = "https://x.objectstorage.eu-frankfurt-1.oci.customer-oci.com/p/abc/n/ns/b/images/o/2026/Ubuntu-24.04.oci"


@pytest.fixture(scope="module")
def index():
    if not INDEX.is_file():
        pytest.skip("shared/upstream/oci/worker-node-images.json is not there")
    return json.loads(INDEX.read_text("utf-8"))


def test_one_image_is_picked(index) -> None:
    wanted = {"shape": "BM.GPU.H100.8", "os_version": "24.04", "kernel": "6.8"}
    found = _oci_image.pick(index, wanted)
    assert (found["os_version"], found["kernel"], found["gpu_driver"], found["cuda"]) == ("24.04", "6.8", "595", "13.2")
    assert "BM.GPU.H100.8" in found["shapes"]
    assert _oci_image.name(found["url"]) == found["name"].removesuffix(".oci")


def test_several_and_none_are_listed(index) -> None:
    with pytest.raises(InputError, match="3 images fit shape") as error:
        _oci_image.pick(index, {"shape": "BM.GPU.H100.8"})
    assert "kernel 6.14" in str(error.value) and "/p/" not in str(error.value)
    with pytest.raises(InputError, match="fits gpu_driver 560") as error:
        _oci_image.pick(index, {"gpu_driver": "560", "cuda": "12.6"})
    assert "driver 595, CUDA 13.2" in str(error.value)


def test_every_image_of_the_index_can_be_picked(index) -> None:
    for item in index["images"]:
        wanted = {key: str(item.get(key) or "") for key in _oci_image.FIELDS if key != "shape"}
        found = _oci_image.pick(index, {**wanted, "shape": item["shapes"][0]})
        assert found["name"] == item["name"]


def test_of_builds_of_the_same_the_newest() -> None:
    one = {"shapes": ["A"], "os": "Ubuntu", "os_version": "24.04", "release_date": "2026-07-01", "name": "old"}
    two = {**one, "release_date": "2026-08-01", "name": "new"}
    assert _oci_image.pick({"images": [two, one]}, {"shape": "A"})["name"] == "new"
    for broken in ([], {}, {"images": {}}):
        with pytest.raises(DataError, match="no list of images"):
            _oci_image.pick(broken, {})


def test_a_link_is_known_by_its_object() -> None:
    assert _oci_image.digest(LINK) == _oci_image.digest(LINK.replace("/p/abc", "/p/xyz"))
    assert _oci_image.digest(LINK) == _oci_image.digest(LINK.replace("/p/abc", ""))
    assert _oci_image.digest(LINK) != _oci_image.digest(LINK.replace("24.04", "22.04"))
    assert "abc" not in _oci_image.hidden(LINK) and _oci_image.name(LINK) == "Ubuntu-24.04"


@pytest.mark.parametrize(
    "link", ["", "x", LINK[:60], LINK.split("/o/", maxsplit=1)[0], "ftp://a/n/b/b/c/o/d", "https://a/p/secret/x"]
)
def test_no_link(link: str) -> None:
    with pytest.raises(InputError, match="is no link to an object") as error:
        _oci_image.digest(link)
    assert "secret" not in str(error.value)


def test_a_ready_image_comes_before_one_that_is_coming() -> None:
    def image(key: str, state: str, source: str = "x", created: str = "1") -> dict:
        return {"id": key, "state": state, "tags": {_oci_image.TAG: source}, "created": created}

    images = [image("a", "IMPORTING"), image("b", "AVAILABLE", created="2"), image("c", "AVAILABLE", created="3")]
    assert _oci_image.there(images, "x")["id"] == "b"
    assert _oci_image.there(images[:1], "x")["id"] == "a"
    assert _oci_image.there([image("d", "DELETED"), image("e", "AVAILABLE", "y")], "x") is None
