# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""support/ansible_bytecode.py: Ansible's processes keep a collection's bytecode beside others', and new code counts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

PROGRAM = """\
import importlib.util, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
from ansible_collections.one.two.plugins.module_utils import three
print(three.TEXT, three.__file__, importlib.util.cache_from_source(three.__file__))
"""


def test_bytecode_of_a_collection_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    for name in ("tests/sitecustomize.py", "tests/support/ansible_bytecode.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    program = tmp_path / "ansible-program"
    program.write_text(PROGRAM, "utf-8")
    source = tmp_path / "ansible_collections/one/two/plugins/module_utils/three.py"
    source.parent.mkdir(parents=True)
    for text in ("first", "another"):
        source.write_text(f"TEXT = {text!r}\n", "utf-8")
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "tests"), "ANSIBLE_COLLECTIONS_PATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found, place, kept = done.stdout.split()
        assert (found, place) == (text, str(source))
        assert Path(kept).read_bytes().count(text.encode()) == 1
    assert not list(source.parent.glob("__pycache__"))
