# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server of support.warm imports and reads once: Ansible's program, the collection's actions, its roles and
tables. Each play has all of it as if it had read it itself."""

from __future__ import annotations

import gc
import importlib
import os
from typing import Any

import yaml

import support.ansible_bytecode  # noqa: F401
from support.paths import ROOT

os.environ.update(ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_NOCOLOR="1")
# kubeconfigs by libyaml.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]

import ansible.cli.playbook  # noqa: F401
from ansible.parsing import dataloader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import is_trusted_as_template

COLLECTIONS = ROOT / ".cache" / "collections"
init_plugin_loader([str(COLLECTIONS)])
for path in sorted((ROOT / "plugins" / "action").glob("*.py")):
    importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.action.{path.stem}")

from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._report import html

files.shapes()
html._template()

_PARSED: dict[Any, Any] = {}
_PARSE = dataloader.from_yaml


def _key(data: str, file_name: str | None, options: dict[str, Any]) -> Any:
    return file_name, data, is_trusted_as_template(data), tuple(options.items())


def _from_yaml(data: str, file_name: str | None = None, **options: Any) -> Any:
    """Each document is given out once, as a play may change it; those of ``vars_files``, which Ansible reads anew for
    each task and copies, as often as it likes."""
    key = _key(data, file_name, options)
    made = _PARSED.get(key) if "/playbooks/vars/" in str(file_name) else _PARSED.pop(key, None)
    return _PARSE(data, file_name, **options) if made is None else made


def _keep(data: str, file_name: str | None = None, **options: Any) -> Any:
    made = _PARSED[_key(data, file_name, options)] = _PARSE(data, file_name, **options)
    return made


dataloader.from_yaml = _keep
roles = (COLLECTIONS / "ansible_collections" / "gpuops" / "rdma" / "roles").glob("*/*/*.yml")
for path in [*sorted(roles), *sorted((ROOT / "playbooks" / "vars").glob("*.yml"))]:
    if path.parent.name in ("tasks", "defaults", "vars", "meta") and path.name != "options.yml":
        dataloader.DataLoader().load_from_file(str(path), cache="none", unsafe=True, trusted_as_template=True)
dataloader.from_yaml = _from_yaml
gc.freeze()
