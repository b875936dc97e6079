# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Terraform stacks of OCI Resource Manager: variables, what a plan removes, errors of a log, outputs. PRIVATE.

    declared(files)                        the variables that a configuration declares
    settle(given, secret, there, known)    the desired variables of the stack, checked
    last_applied(jobs)                     the job that produced the current resources, None if unknown
    removed(plan), counts(plan)            of a Terraform plan in JSON
    errors(lines), hint(text)              Terraform's messages, and what to do
    split(outputs)                         (outputs that may be shown, those that are secrets)
    inventory(outputs, ...)                an Ansible inventory of the cluster, its bastion and its operator host

Names of outputs and variables are those of oracle-quickstart/oci-hpc-oke v26.7.0 (terraform/output.tf, variables.tf).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, as_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import speaks_of_secret
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import near

CHANGING = ("APPLY", "DESTROY", "APPLY_ROLLBACK", "IMPORT_TF_STATE")
RUNNING = ("ACCEPTED", "IN_PROGRESS", "CANCELING")
ERROR_LINES = 20


# ---- variables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    required: bool
    sensitive: bool


def declared(files: Mapping[str, str]) -> dict[str, Variable]:
    """The variables by name. ``files``: name -> text of the ``*.tf`` files of the root module."""
    found: dict[str, Variable] = {}
    for text in files.values():
        for match in re.finditer(r'^[ \t]*variable[ \t]+"([\w-]+)"[ \t]*\{', text, re.MULTILINE):
            names = dict(_attributes(text, match.end()))
            found[match.group(1)] = Variable("default" not in names, names.get("sensitive", "").startswith("true"))
    return found


_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|#[^\n]*|//[^\n]*|/\*.*?\*/|<<[-~]?(\w+)\n.*?\n[ \t]*\1\b|[{}\[\]()]'
    r"|([A-Za-z_]\w*)[ \t]*=(?!=)[ \t]*(\w*)",
    re.DOTALL,
)


def _attributes(text: str, start: int) -> Iterator[tuple[str, str]]:
    """(name, first word of the value) of a block whose brace was opened before ``start``."""
    depth = 1
    for match in _TOKEN.finditer(text, start):
        token = match.group(0)
        if token in ("{", "[", "("):
            depth += 1
        elif token in ("}", "]", ")"):
            depth -= 1
            if depth == 0:
                return
        elif match.group(2) and depth == 1:
            yield match.group(2), match.group(3)


@dataclass(frozen=True)
class Settled:
    """``values``: all variables of the stack; ``changed``: names whose value differs from the existing one;
    ``secrets``: values that must not be shown."""

    values: dict[str, str]
    changed: tuple[str, ...]
    secrets: tuple[str, ...]


def settle(
    given: Mapping[str, Any],
    secret: Mapping[str, Any],
    there: Optional[Mapping[str, Any]],
    known: Optional[Mapping[str, Variable]],
    defaults: Mapping[str, str],
) -> Settled:
    """The variables to set. ``there``: those of the existing stack, kept; None for a new one. ``known``: those
    that the configuration declares, None if it is not at hand. ``defaults``: for declared variables without a value.

    InputError for a name in both ``given`` and ``secret``, an undeclared name, or a required one without a value.
    """
    both = sorted(set(given) & set(secret))
    if both:
        raise InputError(f"Set each variable once: {', '.join(both)} is in variables and in secret_variables.")
    own = {name: as_text(value) for name, value in {**given, **secret}.items() if value is not None}
    present = {name: as_text(value) for name, value in (there or {}).items() if value is not None}
    base = {name: value for name, value in defaults.items() if known is not None and name in known and value}
    values = {**base, **present, **own}
    if known is not None:
        _check(own, values, known)
    changed = [name for name in sorted(values) if not same(name, present.get(name), values[name])]
    hidden = [values[name] for name in values if name in secret or is_secret(name, known)]
    return Settled(values, tuple(changed), tuple(sorted(set(hidden), key=len, reverse=True)))


def _check(own: Mapping[str, str], values: Mapping[str, str], known: Mapping[str, Variable]) -> None:
    faults = []
    for name in sorted(set(own) - set(known)):
        faults.append(f"{name} is not declared{near(name, known, '')}")
    faults += [f"{name} has no value" for name, item in sorted(known.items()) if item.required and name not in values]
    if faults:
        raise InputError("\n- ".join(["Cannot accept the variables of the Terraform configuration:", *faults]))


def is_secret(name: str, known: Optional[Mapping[str, Variable]] = None) -> bool:
    """Whether the value must not be shown: declared sensitive, or with a name that suggests it."""
    item = (known or {}).get(name)
    return bool(item and item.sensitive) or speaks_of_secret(name)


def same(name: str, present: Optional[str], wanted: str) -> bool:
    """Whether a variable has the wanted value. Asterisks in place of a secret count as equal."""
    if present is None:
        return False
    if present == wanted or (is_secret(name) and re.fullmatch(r"\*+", present)):
        return True
    try:
        return bool(json.loads(present) == json.loads(wanted)) if wanted[:1] in "[{" and wanted else False
    except ValueError:
        return False


def begins_outputs(line: str) -> bool:
    """Whether outputs follow in a job's log: a secret that is not declared sensitive would be in clear text there, over
    many lines for a key."""
    return _OUTPUTS.match(_STAMP.sub("", line)) is not None


# ---- configurations ------------------------------------------------------------------------------------------------


def same_files(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether two sets of digests by file name are equal, ignoring non-Terraform files that the service may add."""
    extra = [name for name in theirs if name not in ours and name.endswith((".tf", ".tf.json", ".tfvars"))]
    return not extra and all(theirs.get(name) == digest for name, digest in ours.items())


# ---- jobs ----------------------------------------------------------------------------------------------------------


def running(jobs: Iterable[Json]) -> Optional[Json]:
    """The first job that is not finished, or None. ``jobs``: ``{id, operation, state, created}``."""
    return next((job for job in jobs if job["state"] in RUNNING), None)


def last_applied(jobs: Iterable[Json]) -> Optional[Json]:
    """The successful APPLY after which no other job changed the resources (no destroy, no failed apply); else None."""
    over = [job for job in jobs if job["operation"] in CHANGING and job["state"] not in RUNNING]
    newest = max(over, key=lambda job: str(job["created"]), default=None)
    return newest if newest and newest["operation"] == "APPLY" and newest["state"] == "SUCCEEDED" else None


def nothing_made(jobs: Iterable[Json]) -> bool:
    """Whether no resources can exist: never applied, or destroyed since."""
    over = [job for job in jobs if job["operation"] in CHANGING]
    newest = max(over, key=lambda job: str(job["created"]), default=None)
    return newest is None or (newest["operation"] == "DESTROY" and newest["state"] == "SUCCEEDED")


# ---- plans and logs ------------------------------------------------------------------------------------------------


def counts(plan: Json) -> dict[str, int]:
    """{add, change, destroy} of a plan in Terraform's JSON; a replacement counts as added and destroyed."""
    words = {"add": "create", "change": "update", "destroy": "delete"}
    actions = [_actions(item) for item in plan.get("resource_changes") or []]
    return {name: sum(word in item for item in actions) for name, word in words.items()}


def removed(plan: Json) -> list[str]:
    """Terraform addresses of resources that the plan destroys or replaces."""
    return [str(item["address"]) for item in plan.get("resource_changes") or [] if "delete" in _actions(item)]


def _actions(item: Json) -> Sequence[str]:
    return (item.get("change") or {}).get("actions") or ()


def read_plan(data: bytes) -> Json:
    """A Terraform plan from its JSON. Raises DataError."""
    try:
        document = json.loads(data)
    except ValueError:
        raise DataError("Resource Manager returned a plan that is not JSON.") from None
    if not isinstance(document, dict):
        raise DataError("Resource Manager returned a plan that is not a JSON object.")
    return document


_ASSIGNED = re.compile(r"[^\w\"]*\"?(?P<name>[\w.-]+)\"? *= *(?!\(|<)(?=\S)")
_OUTPUTS = re.compile(r"\W*(Changes to )?Outputs:")
_FRAME = re.compile(r"^[\s│╷╵|]+")
_STAMP = re.compile(r"^\d{4}[/-]\d\d[/-]\d\d[T ]\d\d:\d\d:\d\d\S*\s*(\[(TERRAFORM_CONSOLE|INFO|ERROR)\]\s*)*")


def errors(lines: Iterable[str]) -> list[str]:
    """Terraform's error blocks, without frames and time stamps; at most ERROR_LINES."""
    found: list[str] = []
    inside, blank = False, 0
    for line in lines:
        text = _FRAME.sub("", _STAMP.sub("", line)).strip()
        if text.startswith("Error:") or text.startswith("Error "):
            inside, blank = True, 0
        if not inside:
            continue
        blank = blank + 1 if not text else 0
        if blank > 1:
            inside = False
        elif text and text not in found:
            found.append(text)
    return found[:ERROR_LINES]


_HINTS = (
    (
        r"out of (host )?capacity",
        "no host of that shape is free in that availability domain: use another one, a capacity reservation, or "
        "fewer nodes, and run again; existing resources are kept",
    ),
    (r"LimitExceeded|QuotaExceeded|service limit", "request a higher limit, or fewer resources, and run again"),
    (
        r"NotAuthorizedOrNotFound|NotAuthorized\b",
        "Resource Manager uses the permissions of the stack's creator: see docs/oci_policies.md",
    ),
    (r"No value for required variable", "set it in variables"),
    (r"timed? ?out|timeout while waiting", "run again; existing resources are kept"),
)


def hint(text: str) -> str:
    """What to do about an error of Terraform; "" for an unknown one."""
    return next((words for pattern, words in _HINTS if re.search(pattern, text, re.IGNORECASE)), "")


# ---- outputs -------------------------------------------------------------------------------------------------------


def split(outputs: Iterable[Json]) -> tuple[Json, Json]:
    """(outputs that may be shown, secret ones) by name, of what OCI lists."""
    shown: Json = {}
    secret: Json = {}
    for item in outputs:
        hidden = item.get("isSensitive") or is_secret(item["outputName"])
        (secret if hidden else shown)[item["outputName"]] = _value(item.get("outputValue"))
    return shown, secret


def _value(value: Any) -> Any:
    """Resource Manager returns strings; lists and objects as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return "" if value is None else value


def inventory(outputs: Json, place: Json, key: str = "", jump: str = "") -> Json:
    """The cluster as a host of the main job, its bastion and its operator host, from the stack's outputs.

    ``place``: {region, compartment}; ``key``: private key for SSH; ``jump``: another bastion, ``user@host``. DataError
    without a cluster.
    """
    if not outputs.get("cluster_id"):
        raise DataError("The stack has no output cluster_id, so no inventory can be written.")
    name = _host(outputs.get("cluster_name") or "cluster")
    bastion = jump or _login(outputs, "bastion_ssh_user", "bastion_public_ip")
    operator = _login(outputs, "operator_ssh_user", "operator_private_ip")
    variables = {
        "ansible_connection": "local",
        "oci_cluster_id": outputs["cluster_id"],
        "oci_compartment_id": place["compartment"],
        "oci_region": place["region"],
        "oci_vcn_id": outputs.get("vcn_id", ""),
        "oci_public_endpoint": outputs.get("cluster_public_endpoint", ""),
        "oci_private_endpoint": outputs.get("cluster_private_endpoint", ""),
        **({"oci_bastion": [bastion]} if bastion else {}),
    }
    groups: Json = {"clusters": {"hosts": {name: variables}}}
    if bastion and not jump:
        groups["bastion"] = {"hosts": {f"{name}-bastion": _ssh(bastion, key)}}
    if operator:
        groups["operator"] = {"hosts": {f"{name}-operator": {**_ssh(operator, key), **_through(bastion, key)}}}
    return {"all": {"children": groups}}


def _host(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def _login(outputs: Json, user: str, address: str) -> str:
    return f"{outputs.get(user) or 'opc'}@{outputs[address]}" if outputs.get(address) else ""


def _ssh(login: str, key: str) -> Json:
    user, _sep, address = login.partition("@")
    return {"ansible_host": address, "ansible_user": user, **({"ansible_ssh_private_key_file": key} if key else {})}


def _through(bastion: str, key: str) -> Json:
    """ProxyJump does not pass the key of the target to the jump host: with a key, ProxyCommand is needed."""
    if not bastion:
        return {}
    if key:
        return {"ansible_ssh_common_args": f"-o ProxyCommand=\"ssh -q -i '{key}' -W %h:%p {bastion}\""}
    return {"ansible_ssh_common_args": f"-o ProxyJump={bastion}"}
