# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of charts, images, OLM operators, kernels and Python packages. PRIVATE to the collection."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError

MISSING_LIBRARY = ""
try:
    from packaging.version import Version
except ImportError as error:  # reported by parse(), so that documentation renders without the library
    MISSING_LIBRARY = str(error)

_FORM = re.compile(
    r"\s*(?:[a-z][a-z0-9.-]*\.(?=v\d))?v?(\d+(?:\.\d+)*)"
    r"(?:[-.]?(alpha|beta|rc|dev|a|b)[-.]?(\d*)(?![a-z0-9]))?"
)


def parse(text: Any) -> Version:
    """The version that ``text`` starts with; 0.dev0, which is older than all others, if it starts with none.

    ``v26.7.0-rc.2`` < ``26.7.0`` == ``v26.7.0-ubi8`` == ``gpu-operator-certified.v26.7.0`` == ``26.7``. Suffixes
    other than those of pre-releases are ignored: a kernel's ``5.15.0-1055-oracle`` is 5.15.0. Raises RdmaError without
    the package packaging.
    """
    if MISSING_LIBRARY:
        raise RdmaError("Cannot compare versions without the Python package packaging, which ansible-core requires.")
    found = _FORM.match(str(text))
    if not found:
        return Version("0.dev0")
    numbers, stage, number = found.groups()
    try:
        return Version(f"{numbers}.{stage}{number or 0}" if stage else numbers)
    except ValueError:  # of a damaged log: more digits than Python converts, or digits of another script
        return Version("0.dev0")


def known(text: Any) -> bool:
    """Whether ``text`` starts with a version."""
    return _FORM.match(str(text)) is not None


def older(text: Any, than: Any) -> bool:
    """Whether ``text`` is a version before ``than``; False if it is none."""
    return known(text) and parse(text) < parse(than)


def same(one: Any, other: Any) -> bool:
    """Whether two texts name one release, with or without v: of charts, ``26.7.0-nightly.1`` and ``-nightly.2`` are
    two."""
    return parse(one) == parse(other) and _suffix(one) == _suffix(other)


def _suffix(text: Any) -> str:
    """What follows the version, without build metadata."""
    found = _FORM.match(str(text))
    return str(text)[found.end() if found else 0 :].partition("+")[0]


def minor(text: Any) -> tuple[int, int]:
    """Major and minor number: (1, 34) of ``v1.34.2+k3s1``; (0, 0) if ``text`` starts with no version."""
    version = parse(text)
    return version.major, version.minor
