# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has Python import these files, which keeps their bytecode as it does that of our actions. PRIVATE to the collection.

Ansible's loader of collections compiles them anew in each process: a fifth of the CPU time of a run without changes.
"""

from __future__ import annotations

import functools
import gc
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from typing import Any, Optional

_OURS = tuple(f"{__name__.rpartition('.')[0]}.{folder}." for folder in ("plugin_utils", "module_utils"))


@functools.cache
def _folder(path: str) -> FileFinder:
    return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))


class _Finder:
    """Asked before Ansible's finder."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """The file of one of our modules."""
        return _folder(path[0]).find_spec(name, target) if name.startswith(_OURS) else None


if not isinstance(__spec__ and __spec__.loader, SourceFileLoader):
    sys.meta_path.insert(0, _Finder)
    gc.freeze()  # what Ansible has loaded; see RdmaAction
