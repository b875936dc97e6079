# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_worker_image against the fake OCI: an import of 45 minutes on a faked clock, killed, repeated, refused."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    InputError,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import copy_image, import_image
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from support import oci_site
from support.fake_oci import FakeOci

GPU, SECRET = "ocid1.compartment.oc1..gpu", "s3cr3t"


class _Storage(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404 if "expired" in self.path else 200)
        self.send_header("content-length", "20000000000")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Storage)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path, storage: str) -> None:
        self.fake, self.lines = fake, []
        self.options = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.link = f"{storage}/p/{SECRET}/n/space/b/images/o/2026/{oci_site.IMAGE}.oci"
        fake.sources[self.link] = ""

    def run(self, link: str = "", check_mode: bool = False, **changes: Any) -> dict[str, Any]:
        options = {"compartment": GPU, "name": "", "operating_system": "Ubuntu", "operating_system_version": "24.04"}
        options.update({"shapes": [oci_site.H100], "tags": {"team": "ml"}, "timeout": 90, **changes})
        session = oci_session.Session(self.options, oci.retry.NoneRetryStrategy())
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        made = import_image.Import(session, options, link or self.link, Waits(self.lines.append, **clocks))
        return made.run(check_mode)

    def images(self) -> list[dict[str, Any]]:
        return list(self.fake.tables["images"].values())


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path, storage: str) -> Site:
    return Site(fake, url, config, tmp_path, storage)


def test_an_import_of_45_minutes_and_again(site: Site) -> None:
    before = site.fake.clock.now()
    first = site.run()
    assert site.fake.clock.now() - before >= 2700
    assert first["changed"] and first["added_shapes"] == [oci_site.H100]
    image = site.images()[0]
    assert (image["id"], image["lifecycleState"]) == (first["image_ocid"], "AVAILABLE")
    assert image["displayName"] == oci_site.IMAGE and image["freeformTags"]["team"] == "ml"
    assert sum("IN_PROGRESS" in line for line in site.lines) >= 40, "the progress is shown every minute"
    assert any(f"IN_PROGRESS, {half} %" in line for line in site.lines for half in (49, 50, 51))
    assert "20.0 GB" in site.lines[0] and "done after 45 min" in site.lines[-1]
    again = site.run(site.link.replace(SECRET, "another"))
    assert not again["changed"] and again["image_ocid"] == first["image_ocid"], "a new link to the same object"
    assert len(site.images()) == 1
    assert SECRET not in str(site.lines) and SECRET not in str(image["freeformTags"])


def test_shapes_of_the_index_that_oci_refuses_are_warnings(site: Site) -> None:
    """Oracle's index has shapes that a region or a tenancy lacks; the wanted one has to be added."""
    lacking = {"shapes": [oci_site.H100], "others": ["BM.GPU.B300.8.x", oci_site.H100, "BM.GPU.H200.8"]}
    first = site.run(**lacking)
    assert first["added_shapes"] == [oci_site.H100, "BM.GPU.H200.8"]
    words = "is not for these shapes, which OCI refuses: BM.GPU.B300.8.x (400 InvalidParameter)."
    assert len(first["warnings"]) == 1 and words in first["warnings"][0]
    again = site.run(**lacking)
    assert (again["changed"], again["warnings"]) == (False, first["warnings"])
    assert site.run(check_mode=True, **lacking) == {**again, "warnings": []}
    with pytest.raises(ClusterError, match=r"Cannot add BM\.GPU\.X to .*OCI answered 400"):
        site.run(shapes=["BM.GPU.X"], others=[])
    site.fake.fail("PUT .*/shapes/", 500, "InternalServerError", times=20)
    with pytest.raises(ClusterError, match="OCI answered 500"):
        site.run(shapes=[oci_site.H100], others=["BM.GPU.B200.8"])


def test_a_run_that_was_killed_is_adopted(site: Site) -> None:
    with pytest.raises(DeadlinePassed, match=r"not done \(work .*: IN_PROGRESS, 22 %\) after 10 min.*run again"):
        site.run(timeout=10)
    found = site.run()
    assert len(site.images()) == 1 and found["added_shapes"] == [oci_site.H100]
    assert site.images()[0]["lifecycleState"] == "AVAILABLE"


def test_a_new_image_that_is_not_listed_yet_is_not_made_twice(site: Site) -> None:
    site.fake.lag = 10_000
    with pytest.raises(DeadlinePassed):
        site.run(timeout=1, shapes=[])
    with pytest.raises(DeadlinePassed):
        site.run(timeout=1, shapes=[])
    assert len(site.images()) == 1, "the retry token makes it the same request"


def test_a_truncated_image_is_told(site: Site) -> None:
    site.fake.sources[site.link] = "The image file is truncated."
    assert hidden(f"x {site.link} y") == f"x {site.link} y".replace(SECRET, "(hidden)")
    words = r"FAILED after 45 min \(work request ocid1.*\): ImageImportFailed: The image file is truncated\."
    with pytest.raises(Unrecoverable, match=words):
        site.run()


def test_an_import_that_failed_is_begun_anew(site: Site) -> None:
    """Within the life of the retry token, with the same link and with a new one."""
    site.fake.sources[site.link] = "The link has expired."
    with pytest.raises(Unrecoverable, match="The link has expired"):
        site.run()
    site.fake.sources[site.link] = ""
    assert site.run()["changed"] and site.images()[-1]["lifecycleState"] == "AVAILABLE"


def test_a_replayed_answer_of_a_failed_import_is_not_believed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether OCI refuses the token or answers as before is not public."""
    site.fake.sources[site.link] = "The image file is truncated."
    with pytest.raises(Unrecoverable):
        site.run()
    for item in site.images():
        item["lifecycleState"] = "DISABLED"
    site.fake.sources[site.link] = ""
    assert site.run()["changed"] and site.images()[-1]["lifecycleState"] == "AVAILABLE"


def test_check_mode_makes_nothing(site: Site) -> None:
    assert site.run(check_mode=True) == {
        "changed": True,
        "image_ocid": "",
        "state": "",
        "added_shapes": [oci_site.H100],
        "warnings": [],
    }
    assert not site.images()


@pytest.mark.parametrize(
    ("link", "message"),
    [("/p/expired-s3cr3t/n/a/b/c/o/d", "is refused"), ("/p/s3cr3t/n/a/b/c", "is not a link to an object"), ("", "")],
)
def test_bad_links(site: Site, storage: str, link: str, message: str) -> None:
    if not link:
        with pytest.raises(InputError, match="is not a link"):
            site.run("not a link")
        return
    with pytest.raises(InputError, match=message) as error:
        site.run(storage + link)
    assert SECRET not in str(error.value)
    assert not site.images()


def copied(site: Site, image: str, check_mode: bool = False, **changes: Any) -> dict[str, Any]:
    options = {"compartment": GPU, "name": "", "operating_system": "Ubuntu", "operating_system_version": ""}
    options.update({"shapes": [oci_site.H100], "tags": {}, "timeout": 90, "image": image, "bucket": "images"})
    options.update({"from_region": "uk-london-1", "keep_object": False, **changes})
    session = oci_session.Session(site.options, oci.retry.NoneRetryStrategy())
    clocks = {"clock": site.fake.clock.now, "sleep": site.fake.clock.advance}
    return copy_image.Copy(session, options, Waits(site.lines.append, **clocks)).run(check_mode)


def test_an_image_of_another_region(site: Site) -> None:
    """Export and import with their progress; again: nothing. The link and the object are gone afterwards."""
    source = oci_site.image(site.fake)
    assert copied(site, source["id"], check_mode=True)["changed"] and len(site.images()) == 1
    told = copied(site, source["id"])
    made = site.fake.tables["images"][told["image_ocid"]]
    assert told["changed"] and made["displayName"] == oci_site.IMAGE and made["lifecycleState"] == "AVAILABLE"
    assert made["operatingSystem"] == "Canonical Ubuntu" and told["added_shapes"] == [oci_site.H100]
    assert any(line.startswith(f"export of {oci_site.IMAGE}: IN_PROGRESS") for line in site.lines)
    assert not site.fake.links and not site.fake.objects
    assert "secret" not in " ".join(site.lines)
    site.fake.calls.clear()
    assert not copied(site, source["id"])["changed"] and len(site.images()) == 2
    assert all(call.startswith("GET ") for call in site.fake.calls)


@pytest.mark.parametrize("ended", ["export", "import"])
def test_a_copy_that_was_killed_goes_on(site: Site, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, count = oci_site.image(site.fake), {"export": 1, "import": 2}[ended]
    waits: list[str] = []
    real = import_image.oci_work.wait

    def cut(session: Any, what: str, *args: Any, **more: Any) -> None:
        waits.append(what)
        if len(waits) == count:
            raise KeyboardInterrupt
        real(session, what, *args, **more)

    monkeypatch.setattr(import_image.oci_work, "wait", cut)
    with pytest.raises(KeyboardInterrupt):
        copied(site, source["id"])
    told = copied(site, source["id"])
    assert told["image_ocid"] and len(site.images()) == 2, "one export, one import"
    assert not site.fake.objects
    assert sum(call.endswith("actions/export") for call in site.fake.calls.elements()) == 1


def test_a_copy_asks_for_what_it_needs(site: Site) -> None:
    with pytest.raises(InputError, match="the image is already in eu-frankfurt-1"):
        copied(site, "ocid1.image.oc1.eu-frankfurt-1.a", from_region="eu-frankfurt-1")
    with pytest.raises(InputError, match="set from_region, bucket as well"):
        copy_image.needs({"image": "ocid1.image.oc1..a", "from_region": "", "bucket": ""})
