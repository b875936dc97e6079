# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plugin_utils/__init__.py: Ansible's processes keep the bytecode of our files beside others', and new code counts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

INIT = "plugins/plugin_utils/__init__.py"
PROGRAM = """\
import importlib.util, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
import ansible_collections.one.two.plugins.plugin_utils.four.five as five
from ansible_collections.one.two.plugins.module_utils import three
print(*(f(module) for module in (three, five) for f in (
    lambda module: module.TEXT, lambda module: module.__file__,
    lambda module: importlib.util.cache_from_source(module.__file__))))
"""


def test_bytecode_of_the_collection_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM, "utf-8")
    collection = tmp_path / "ansible_collections/one/two"
    three, five = collection / "plugins/module_utils/three.py", collection / "plugins/plugin_utils/four/five.py"
    for folder in (three.parent, five.parent):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / INIT, collection / INIT)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "kept"), "ANSIBLE_COLLECTIONS_PATH": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    for text in ("first", "another"):
        for source in (three, five):
            source.write_text(f"TEXT = {text!r}\n", "utf-8")
        argv = [sys.executable, str(program), str(tmp_path)]
        words = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        assert (words[:2], words[3:5]) == ([text, str(three)], [text, str(five)])
        assert [Path(kept).read_bytes().count(text.encode()) for kept in words[2::3]] == [1, 1]
    assert not list(collection.rglob("__pycache__"))
