# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server of support.warm imports and reads once: Ansible's program, the collection's actions, its roles and
tables. Each play has all of it as if it had read it itself."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable
from typing import Any

import urllib3
import yaml

import support.ansible_bytecode  # noqa: F401
from support.paths import ROOT

os.environ.update(ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_NOCOLOR="1")
# kubeconfigs by libyaml.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]

import ansible.cli.playbook  # noqa: F401
from ansible._internal._templating._engine import TemplateEngine, TemplateOptions
from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext
from ansible.parsing import dataloader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import is_trusted_as_template
from jinja2.environment import TemplateExpression

COLLECTIONS = ROOT / ".cache" / "collections"
init_plugin_loader([str(COLLECTIONS)])
for path in sorted((ROOT / "plugins" / "action").glob("*.py")):
    importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.action.{path.stem}")

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import codec, plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import html

shape_table.shapes()
html._template()
codec.prepare(plan.Plan)
urllib3.util.ssl_.create_urllib3_context()  # OpenSSL looks for its algorithms once

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


_CODE: dict[Any, Any] = {}
_COMPILE, _COMPILE_CONDITION = AnsibleEnvironment.compile, AnsibleEnvironment.compile_expression


def _template(env: Any, source: Any, *where: Any, **options: Any) -> Any:
    """The code of a template; ``source`` is a tree for a condition."""
    context: Any = _TemplateCompileContext.current(optional=True)
    known = isinstance(source, str) and context and context.escape_backslashes and not env.overlayed
    return (known and _CODE.get(source)) or _COMPILE(env, source, *where, **options)


def _condition(env: Any, source: str, undefined_to_none: bool = True) -> Any:
    if (made := _CODE.get(("when", source))) is None:
        return _COMPILE_CONDITION(env, source, undefined_to_none)
    return TemplateExpression(env.template_class.from_code(env, made, env.make_globals(None)), undefined_to_none)


def _learn(key: Any, compiles: Callable[[], Any]) -> None:
    def kept(env: Any, source: Any, *where: Any, **options: Any) -> Any:
        made = _CODE[key] = _COMPILE(env, source, *where, **options)
        return made

    AnsibleEnvironment.compile = kept
    compiles()


def _compile(node: Any, key: str = "") -> None:
    """Compiles the templates and conditions of a document, which each task's process would do anew."""
    if isinstance(node, dict):
        for name, inner in node.items():
            _compile(inner, name)
    elif isinstance(node, list):
        for inner in node:
            _compile(inner, key)
    elif isinstance(node, str) and key == "when":
        text, options = node.strip(), TemplateOptions(escape_backslashes=False)
        _learn(("when", text), lambda: _ENGINE._compile_expression(text, options))
    elif isinstance(node, str) and "{{" in node:
        _learn(str(node), lambda: _ENGINE._compile_template(node, TemplateOptions.DEFAULT))


dataloader.from_yaml = _keep
roles = (COLLECTIONS / "ansible_collections" / "gpuops" / "rdma" / "roles").glob("*/*/*.yml")
for path in [*sorted(roles), *sorted((ROOT / "playbooks").glob("**/*.yml"))]:
    if path.parent.name in ("tasks", "defaults", "vars", "meta", "playbooks") and path.name != "options.yml":
        dataloader.DataLoader().load_from_file(str(path), cache="none", unsafe=True, trusted_as_template=True)
dataloader.from_yaml = _from_yaml

_ENGINE = TemplateEngine(loader=dataloader.DataLoader())
for document in _PARSED.values():
    _compile(document)
AnsibleEnvironment.compile, AnsibleEnvironment.compile_expression = _template, _condition
gc.freeze()
