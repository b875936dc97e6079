# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every recording gives the verdict that docs/nccl.md states."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from support.paths import ROOT


def load():
    spec = importlib.util.spec_from_file_location("nccl_verdicts", ROOT / "tools" / "nccl_verdicts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["nccl_verdicts"] = module
    spec.loader.exec_module(module)
    return module


VERDICTS = load()
CASES = VERDICTS.cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.path.name}-{case.described}")
def test_every_recording_has_its_documented_verdict(case):
    got = case.judged()
    assert got.verdict == case.verdict, got.reason


def test_no_recording_is_left_out():
    there = {path for folder in (VERDICTS.FIXTURES, VERDICTS.RECORDINGS) for path in folder.iterdir()}
    wanted = {path for path in there if path.suffix in (".txt", ".json", ".xml")}
    assert {path.name for path in wanted} == {case.path.name for case in CASES}


def test_the_document_is_up_to_date():
    text = VERDICTS.DOCUMENT.read_text("utf-8")
    assert VERDICTS.document() == text, "run tools/generate.py"
    assert text.count(VERDICTS.BEGIN) == 1
