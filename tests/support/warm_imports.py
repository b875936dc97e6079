# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server of support.warm imports once: Ansible's program and the collection's actions."""

from __future__ import annotations

import gc
import importlib
import os

import support.ansible_bytecode  # noqa: F401
from support.paths import ROOT

os.environ.update(ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_NOCOLOR="1")

import ansible.cli.playbook  # noqa: F401
from ansible.plugins.loader import init_plugin_loader

init_plugin_loader([str(ROOT / ".cache" / "collections")])
for path in sorted((ROOT / "plugins" / "action").glob("*.py")):
    importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.action.{path.stem}")
gc.freeze()
