# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things are in a checkout, and beside it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
RECORDINGS = FIXTURES / "recordings"
SHARED = ROOT.parent / "shared"
"""Beside the checkout, not part of the repository. What of it tests need is listed in tests/README.md."""
UPSTREAM = SHARED / "upstream"


def needed(path: Path) -> Path:
    """``path``, which is below SHARED; the test is skipped by that name where there is none."""
    if not path.exists():
        import pytest  # the sandbox reads paths too, in an environment without it

        pytest.skip(f"needs ../shared/{path.relative_to(SHARED)}")
    return path


def upstream(*parts: str) -> Path:
    """A file or folder of ../shared/upstream; the test is skipped by that name where there is none."""
    return needed(UPSTREAM.joinpath(*parts))


def load(name: str, path: str) -> ModuleType:
    """A file of tools/ as the module ``name``."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))  # type: ignore[arg-type]
    sys.modules[name] = module
    loader.exec_module(module)
    return module
