# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which node image: picked from Oracle's index, known by its object."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import image as oci_image
from support.paths import upstream

LINK = "https://x.objectstorage.eu-frankfurt-1.oci.customer-oci.com/p/abc/n/ns/b/images/o/2026/Ubuntu-24.04.oci"


@pytest.fixture(scope="module")
def index():
    return json.loads(upstream("oci", "worker-node-images.json").read_text("utf-8"))


def test_one_image_is_picked(index) -> None:
    wanted = {"shape": "BM.GPU.H100.8", "os_version": "24.04", "kernel": "6.8"}
    found = oci_image.pick(index, wanted)
    assert (found["os_version"], found["kernel"], found["gpu_driver"], found["cuda"]) == ("24.04", "6.8", "595", "13.2")
    assert "BM.GPU.H100.8" in found["shapes"]
    assert oci_image.name(found["url"]) == found["name"].removesuffix(".oci")


def test_several_and_none_are_listed(index) -> None:
    with pytest.raises(InputError, match="3 images match shape") as error:
        oci_image.pick(index, {"shape": "BM.GPU.H100.8"})
    assert "kernel 6.14" in str(error.value) and "/p/" not in str(error.value)
    assert "Set os_version (rdma_oci_image_os_version) or kernel (rdma_oci_image_kernel)." in str(error.value)
    with pytest.raises(InputError, match=r"2 images match .*\. Set kernel \(rdma_oci_image_kernel\)\. They"):
        oci_image.pick(index, {"shape": "BM.GPU.H100.8", "os_version": "24.04"})
    with pytest.raises(InputError, match="matches gpu_driver 560") as error:
        oci_image.pick(index, {"gpu_driver": "560", "cuda": "12.6"})
    assert "driver 595, CUDA 13.2" in str(error.value)
    assert "Change gpu_driver (rdma_oci_image_gpu_driver) or cuda (rdma_oci_image_cuda)." in str(error.value)


def test_every_image_of_the_index_can_be_picked(index) -> None:
    for item in index["images"]:
        wanted = {key: str(item.get(key) or "") for key in oci_image.FIELDS if key != "shape"}
        found = oci_image.pick(index, {**wanted, "shape": item["shapes"][0]})
        assert found["name"] == item["name"]


def test_of_builds_of_the_same_the_newest() -> None:
    one = {"shapes": ["A"], "os": "Ubuntu", "os_version": "24.04", "release_date": "2026-07-01", "name": "old"}
    two = {**one, "release_date": "2026-08-01", "name": "new"}
    assert oci_image.pick({"images": [two, one]}, {"shape": "A"})["name"] == "new"
    for broken in ([], {}, {"images": {}}):
        with pytest.raises(DataError, match="no list of images"):
            oci_image.pick(broken, {})


def test_a_link_is_known_by_its_object() -> None:
    assert oci_image.digest(LINK) == oci_image.digest(LINK.replace("/p/abc", "/p/xyz"))
    assert oci_image.digest(LINK) == oci_image.digest(LINK.replace("/p/abc", ""))
    assert oci_image.digest(LINK) != oci_image.digest(LINK.replace("24.04", "22.04"))
    assert "abc" not in hidden(LINK) and oci_image.name(LINK) == "Ubuntu-24.04"


@pytest.mark.parametrize(
    "link", ["", "x", LINK[:60], LINK.split("/o/", maxsplit=1)[0], "ftp://a/n/b/b/c/o/d", "https://a/p/secret/x"]
)
def test_no_link(link: str) -> None:
    with pytest.raises(InputError, match="is not a link to an object") as error:
        oci_image.digest(link)
    assert "secret" not in str(error.value)


def test_a_ready_image_comes_before_one_that_is_coming() -> None:
    def image(key: str, state: str, source: str = "x", created: str = "1") -> dict:
        tags = {oci_image.TAG: source}
        return {"id": key, "lifecycleState": state, "freeformTags": tags, "timeCreated": created}

    images = [image("a", "IMPORTING"), image("b", "AVAILABLE", created="2"), image("c", "AVAILABLE", created="3")]
    assert oci_image.there(images, "x")["id"] == "b"
    assert oci_image.there(images[:1], "x")["id"] == "a"
    assert oci_image.there([image("d", "DELETED"), image("e", "AVAILABLE", "y")], "x") is None
