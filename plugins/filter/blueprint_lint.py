# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter blueprint_lint."""

from __future__ import annotations

DOCUMENTATION = r"""
name: blueprint_lint
short_description: Check blueprints of OCI AI Blueprints before they are sent
version_added: 0.1.0
description:
- Findings of the module M(gpuops.rdma.blueprint_lint), with the same rules (docs/blueprint_lint.md). Asks no server.
- The options of the module about what is known (region, pools, names and so on) are keywords too.
positional: _input
options:
  _input:
    description: A blueprint, or several that are to be sent together.
    type: raw
    required: true
  rdma:
    description: V(false) accepts pools of RDMA shapes without RDMA.
    type: bool
    default: true
author:
- gpuops maintainers (@gpuops)
"""

EXAMPLES = r"""
- name: Refuse a blueprint that would make a pool without RDMA
  ansible.builtin.assert:
    that: blueprint | gpuops.rdma.blueprint_lint | selectattr('severity', 'eq', 'error') | length == 0
"""

RETURN = r"""
_value:
  description: Findings with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import rules


def blueprint_lint(documents: Any, **known: Any) -> list[dict[str, Any]]:
    """Returns the findings of the blueprints as dictionaries. AnsibleFilterError for invalid documents or options."""
    try:
        return [to_dict(item) for item in rules.lint(documents, known)]
    except RdmaError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    def filters(self) -> dict[str, Any]:
        """Returns filter name -> function, as Ansible expects it."""
        return {"blueprint_lint": blueprint_lint}
