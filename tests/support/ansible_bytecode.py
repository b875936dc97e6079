# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes Ansible cheaper in tests: tests/sitecustomize.py imports this in its programs.

Ansible compiles a collection's files anew in each process, 0.4 of the 1.2 CPU seconds that importing our actions takes;
here the bytecode is kept where that of any other package is (in .cache/bytecode, where make has named no place).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

FINDER = "ansible.utils.collection_loader._collection_finder"


def _compiled(self: Any, fullname: str) -> Any:
    """``get_code`` of Ansible's loaders: from bytecode if that is as new as the source."""
    path = self._source_code_path
    if self._compiled_code is None and path:
        self._compiled_code = importlib.machinery.SourceFileLoader(fullname, path).get_code(fullname)
    return self._compiled_code


class _AnsibleLoader(importlib.abc.MetaPathFinder):
    """Waits for Ansible's module of loaders, and gives them ``_compiled``."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != FINDER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def patched(module: Any) -> None:
            execute(module)
            module._AnsibleCollectionPkgLoaderBase.get_code = _compiled

        spec.loader.exec_module = patched
        return spec


sys.dont_write_bytecode = False
sys.pycache_prefix = sys.pycache_prefix or str(Path(__file__).resolve().parents[2] / ".cache" / "bytecode")
sys.meta_path.insert(0, _AnsibleLoader())
