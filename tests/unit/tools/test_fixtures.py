# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was recorded names no machine, no tenancy and no secret of anybody."""

from __future__ import annotations

import ipaddress
import re
import tarfile

import pytest
from support import skips
from support.paths import FIXTURES

TEXTS = sorted(path for path in (FIXTURES / "recordings").rglob("*") if path.is_file())
RECORDED = {path.relative_to(FIXTURES).as_posix(): path.read_text("utf-8") for path in TEXTS}
with tarfile.open(FIXTURES / "hosts" / "h200_real.tgz") as archive:
    for member in archive.getmembers():
        if member.isfile():
            RECORDED[f"h200_real/{member.name}"] = archive.extractfile(member).read().decode()  # type: ignore[union-attr]

SECRET = r"-----BEGIN [A-Z ]+-----|LS0tLS1CRUdJTi|\beyJ[\w-]{20,}|ocid1\.\w+\.oc1\.[\w-]*\.(?!\.)\w{20,}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
ADDRESS = r"(?<![\d.v-])\d{1,3}(?:\.\d{1,3}){3}(?![\d.-])"
MAC = r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"


def test_recordings_are_there() -> None:
    assert len(RECORDED) > 200


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_that_names_somebody(name: str) -> None:
    text = RECORDED[name]
    assert re.findall(SECRET, text) == []
    assert {one for one in re.findall(UUID, text) if not one.startswith("00000000-0000-4000-")} == set()
    assert {one for one in re.findall(MAC, text) if ":00:0" not in one} == set()
    addresses = {one for one in re.findall(ADDRESS, text) if all(int(part) < 256 for part in one.split("."))}
    assert {one for one in addresses if not ipaddress.ip_address(one).is_private} <= {"1.1.0.0"}, "as a version"


@pytest.mark.parametrize(
    ("reason", "taken"),
    [
        ("needs ../shared/upstream/crds/kueue", True),
        ("GPUOPS_MATRIX=all: two runs", True),
        ("flaky today", False),
        ("got empty parameter set for (path)", False),
        ("needs ../shared/recordings/batch", False),
    ],
)
def test_a_skip_has_a_reason_that_is_allowed(reason: str, taken: bool) -> None:
    assert skips.allowed(reason) is taken


def test_another_skip_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\ndef test_a(): pytest.skip('flaky today')\ndef test_b(): pass")
    done = pytester.runpytest_subprocess("-p", "support.skips", "-q")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["SKIP NOT ALLOWED *test_a: flaky today*"])
    pytester.makepyfile("import pytest\ndef test_a(): pytest.skip('no sshd: none')")
    assert pytester.runpytest_subprocess("-p", "support.skips", "-q").ret == pytest.ExitCode.OK
