# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether pods of the GPU Operator's operands are made of the ClusterPolicy's shared settings. PRIVATE. Pure.

``spec`` is the policy's, ``operand`` an entry of files/operands.yml, ``made`` a DaemonSet or pod as
rollout.template() projects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

DRIVER_PODS = "app.kubernetes.io/component=nvidia-driver"
"""Label of the pods that install the NVIDIA driver."""
PEERMEM = "nvidia-peermem-ctr"
"""Container of such a pod that loads nvidia_peermem."""
DEFAULT_CONFIG = "DEFAULT_CONFIG"
"""Variable of the containers that choose a node's configuration; without one in the policy these are left out."""


def at(spec: Any, path: str) -> Any:
    """The value at a dotted path of a policy's spec, None where a part is missing."""
    for key in path.split("."):
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec


def settings(operand: Json, spec: Json, made: Json) -> str:
    """What ``made`` does not carry of a ConfigMap and of values that the operator writes as variables; "" = nothing.

    A setting that the policy no longer has must be gone, unless it sets the variable by hand.
    """
    env = made["env"]
    path = operand.get("config")
    if path:
        name, default = str(at(spec, f"{path}.name") or ""), str(at(spec, f"{path}.default") or "")
        if bool(name) != (DEFAULT_CONFIG in env) or (name and name not in made["config_maps"]):
            return f"{path}.name {name or '(none)'}"
        if name and default not in env[DEFAULT_CONFIG]:
            return f"{path}.default {default or '(none)'}"
    own = {str(entry.get("name")) for path in operand.get("env") or () for entry in at(spec, path) or ()}
    for variable, path in (operand.get("variables") or {}).items():
        wanted, there = str(at(spec, path) or ""), set(env.get(variable, ())) - {""}
        if (wanted not in there) if wanted else (there and variable not in own):
            return f"{path} {wanted or '(none)'}"
    return ""


def tolerations(spec: Json, made: Json) -> str:
    """The toleration of ``daemonsets.tolerations`` that ``made`` lacks; "" = none. The operator replaces the list, so
    one more belongs to a policy before."""
    there = [_plain(one) for one in made["tolerations"]]
    for one in at(spec, "daemonsets.tolerations") or ():
        if _plain(one) not in there:
            what = one.get("key") or "of every taint"
            return f"the toleration {what}{':' + one['effect'] if one.get('effect') else ''}"
    return ""


def _plain(toleration: Json) -> Json:
    """Without empty fields, and without the operator that is the default."""
    found = {key: value for key, value in toleration.items() if value not in ("", None)}
    return {**found, "operator": found.get("operator", "Equal")}
