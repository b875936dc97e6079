# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the API of AWX 24.6.1: as much of it as awx.awx needs to make what playbooks/awx.yml makes.

It refuses what AWX refuses, as far as that was read; no AWX has confirmed it. Sources: the documentation of awx.awx's
own modules (which fields an object has, their types and choices); AWX's serializers and views as of October 2024
(unique names, references, surveys, credential types, schedules, loops in workflows), and of approvals at 0078f9e
(WorkflowJobTemplateNodeCreateApproval); for launches, what ansible-rulebook 1.3.2 asks for. Secrets are shown as
$encrypted$. Lists have pages. It runs no job: a project's update succeeds at once, a launched job ends as a test says.
Where AWX derives a field (the organisation of a job template is its project's), so does this.
"""

from __future__ import annotations

import ast
import base64
import http.server
import importlib.util
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import jinja2
import yaml
from jinja2 import sandbox

Json = dict[str, Any]
ENCRYPTED = "$encrypted$"
TOKEN = "stand-in"
NOTIFY = ("notification_templates_started", "notification_templates_success", "notification_templates_error")
PROMPTS = ("credentials", "labels", "instance_groups")
QUESTIONS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "textarea": (str,),
    "password": (str,),
    "multiplechoice": (str,),
    "multiselect": (str,),
    "integer": (int,),
    "float": (float, int),
}


RUN = {"job_templates": "jobs", "workflow_job_templates": "workflow_jobs"}
"""Templates that can be launched -> their jobs."""


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status} {body}")
        self.status, self.body = status, body


def bad(**fields: str) -> Refused:
    return Refused(400, {name: [text] for name, text in fields.items()})


@dataclass(frozen=True)
class Kind:
    """An endpoint. ``module`` documents its fields; ``refs``: field -> endpoint; ``lists``: association -> endpoint."""

    type: str
    module: str
    unique: tuple[tuple[str, ...], ...]
    required: tuple[str, ...] = ("name",)
    refs: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    extra: dict[str, type] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    """Options that are mappings for the module and JSON text for the API."""


_NOTIFIED = dict.fromkeys(NOTIFY, "notification_templates")
_RUN = {"inventory": "inventories", "execution_environment": "execution_environments"}
KINDS: dict[str, Kind] = {
    "organizations": Kind(
        "organization",
        "organization",
        (("name",),),
        refs={"default_environment": "execution_environments"},
        lists={
            "galaxy_credentials": "credentials",
            "notification_templates_approvals": "notification_templates",
            **_NOTIFIED,
        },
    ),
    "credential_types": Kind(
        "credential_type", "credential_type", (("name", "kind"),), required=("name", "kind"), extra={"managed": bool}
    ),
    "credentials": Kind(
        "credential",
        "credential",
        (("organization", "name", "credential_type"),),
        required=("name", "credential_type"),
        refs={"organization": "organizations", "credential_type": "credential_types"},
        defaults={"inputs": {}},
    ),
    "execution_environments": Kind(
        "execution_environment",
        "execution_environment",
        (("name",),),
        required=("name", "image"),
        refs={"organization": "organizations", "credential": "credentials"},
    ),
    "projects": Kind(
        "project",
        "project",
        (("organization", "name"),),
        refs={
            "organization": "organizations",
            "credential": "credentials",
            "default_environment": "execution_environments",
        },
        lists=_NOTIFIED,
    ),
    "inventories": Kind(
        "inventory",
        "inventory",
        (("organization", "name"),),
        required=("name", "organization"),
        refs={"organization": "organizations"},
        texts=("variables",),
        defaults={"host_filter": None},
    ),
    "hosts": Kind(
        "host",
        "host",
        (("inventory", "name"),),
        required=("name", "inventory"),
        refs={"inventory": "inventories"},
        texts=("variables",),
        defaults={"enabled": True},
    ),
    "inventory_sources": Kind(
        "inventory_source",
        "inventory_source",
        (("inventory", "name"),),
        required=("name", "inventory", "source"),
        refs={
            "inventory": "inventories",
            "source_project": "projects",
            "credential": "credentials",
            "execution_environment": "execution_environments",
        },
        lists=_NOTIFIED,
        texts=("source_vars",),
    ),
    "notification_templates": Kind(
        "notification_template",
        "notification_template",
        (("organization", "name"),),
        required=("name", "organization", "notification_type"),
        refs={"organization": "organizations"},
    ),
    "job_templates": Kind(
        "job_template",
        "job_template",
        (("organization", "name"),),
        refs={"organization": "organizations", "project": "projects", **_RUN},
        lists={"credentials": "credentials", "labels": "labels", "instance_groups": "instance_groups", **_NOTIFIED},
        defaults={"job_type": "run", "job_slice_count": 1, "survey_spec": {}},
        texts=("extra_vars",),
    ),
    "workflow_job_templates": Kind(
        "workflow_job_template",
        "workflow_job_template",
        (("organization", "name"),),
        refs={"organization": "organizations", "inventory": "inventories"},
        lists={"labels": "labels", "notification_templates_approvals": "notification_templates", **_NOTIFIED},
        defaults={"survey_spec": {}},
        texts=("extra_vars",),
    ),
    "workflow_job_template_nodes": Kind(
        "workflow_job_template_node",
        "workflow_job_template_node",
        (("workflow_job_template", "identifier"),),
        required=("workflow_job_template",),
        refs={
            "workflow_job_template": "workflow_job_templates",
            "unified_job_template": "unified_job_templates",
            **_RUN,
        },
        lists={
            **dict.fromkeys(("success_nodes", "failure_nodes", "always_nodes"), "workflow_job_template_nodes"),
            **{name: name for name in PROMPTS},
        },
        defaults={"extra_data": {}},
        extra={"type": str},
    ),
    # AWX makes them only below a node (WorkflowJobTemplateNodeCreateApproval of its views), with these three fields.
    "workflow_approval_templates": Kind("workflow_approval_template", "workflow_job_template_node", ()),
    "schedules": Kind(
        "schedule",
        "schedule",
        (("unified_job_template", "name"),),
        required=("name", "rrule", "unified_job_template"),
        refs={"unified_job_template": "unified_job_templates", **_RUN},
        lists={name: name for name in PROMPTS},
        defaults={"enabled": True, "extra_data": {}},
    ),
    "labels": Kind("label", "label", (("organization", "name"),), refs={"organization": "organizations"}),
    "instance_groups": Kind("instance_group", "instance_group", (("name",),)),
}
UNIFIED = ("projects", "inventory_sources", "job_templates", "workflow_job_templates")


def modules() -> Path:
    """The folder of awx.awx's modules."""
    spec = importlib.util.find_spec("ansible_collections.awx.awx.plugins.modules")
    assert spec, "awx.awx is not installed; the package ansible brings it"
    return Path(next(iter(spec.submodule_search_locations or ())))


def module_options(modules: Path, name: str) -> Json:
    """The options that awx.awx documents for a module, from its source."""
    for node in ast.parse((modules / f"{name}.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return dict(yaml.safe_load(ast.literal_eval(node.value))["options"])
    raise LookupError(name)


class Awx:
    """The objects. ``modules`` is the folder of awx.awx's; ``playbooks`` are those of the project's repository."""

    def __init__(self, modules: Path, playbooks: Iterable[str]) -> None:
        self.options = {end: module_options(modules, kind.module) for end, kind in KINDS.items()}
        self.playbooks = set(playbooks)
        approval = self.options["workflow_job_template_nodes"]["approval_node"]["suboptions"]
        self.options["workflow_approval_templates"] = approval
        self.objects: dict[str, dict[int, Json]] = {end: {} for end in KINDS}
        self.links: dict[tuple[str, int, str], list[int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.jobs: dict[str, list[Json]] = {path: [] for path in RUN.values()}
        self.ends: dict[str, str] = {}
        """Name of a template -> status of its jobs; the others are successful."""
        self.lock = threading.RLock()
        self._last = 0
        self._make(
            "credential_types", {"name": "Ansible Galaxy/Automation Hub API Token", "kind": "galaxy", "managed": True}
        )
        galaxy = self._last
        self._make("credentials", {"name": "Ansible Galaxy", "credential_type": galaxy})

    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] != "GET" and "/tokens/" not in request[1]]

    def named(self, end: str, name: str) -> Json:
        return next(one for one in self.objects[end].values() if one["name"] == name)

    # ---- requests

    def handle(self, method: str, path: str, query: list[tuple[str, str]], body: Any) -> tuple[int, Any]:
        end, *rest = path.removeprefix("/api/v2/").strip("/").split("/")
        if end == "project_updates":
            return 200, {
                "id": int(rest[0]),
                "status": "successful",
                "failed": False,
                "finished": "2026-01-01T00:00:00Z",
            }
        if end == "config":
            return 200, {"version": "24.6.1"}
        if end in RUN.values():
            wanted = dict(query).get("id__in", "").split(",")
            return 200, {"results": [one for one in self.jobs[end] if str(one["id"]) in wanted], "next": None}
        if end not in KINDS and end != "unified_job_templates":
            raise Refused(404, {"detail": "Not found."})
        if not rest:
            return self._list(end, query) if method == "GET" else (201, self._create(end, body))
        if not rest[0].isdigit() or int(rest[0]) not in self.objects[end]:
            raise Refused(404, {"detail": "Not found."})
        number = int(rest[0])
        if len(rest) == 1:
            return self._one(end, number, method, body)
        if rest[1] == "create_approval_template" and end == "workflow_job_template_nodes" and method == "POST":
            return 201, self._approval(number, body)
        if rest[1] == "launch" and end in RUN and method == "POST":
            return 201, self._launch(end, number, body or {})
        if rest[1] == "survey_spec" and "survey_spec" in self.objects[end][number]:
            return self._survey(end, number, method, body)
        if rest[1] not in KINDS[end].lists:
            raise Refused(404, {"detail": "Not found."})
        return self._associate(end, number, rest[1], method, body, query)

    def _one(self, end: str, number: int, method: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH":
            self._check(end, body, number)
            self._store(end, number, body)
        elif method == "DELETE":
            del self.objects[end][number]
            return 204, None
        return 200, self._shown(end, number)

    def _create(self, end: str, body: Json) -> Json:
        missing = [name for name in KINDS[end].required if body.get(name) in (None, "")]
        if missing:
            raise bad(**dict.fromkeys(missing, "This field is required."))
        self._check(end, body, None)
        return self._shown(end, self._make(end, body))

    def _make(self, end: str, body: Json) -> int:
        self._last += 1
        made: Json = {}
        for name, option in self.options[end].items():
            if name not in KINDS[end].lists and name not in ("state", "new_name", "copy_from"):
                made[name] = {"bool": False, "int": 0}.get(option.get("type", "str"), "")
        made.update(dict.fromkeys(KINDS[end].refs), **KINDS[end].defaults)
        self.objects[end][self._last] = made
        self._store(end, self._last, body)
        return self._last

    def _store(self, end: str, number: int, body: Json) -> None:
        old = self.objects[end][number]
        new = {name: "" if value is None and isinstance(old.get(name), str) else value for name, value in body.items()}
        if end == "credentials" and "inputs" in new:
            kept = {key: old["inputs"].get(key) for key, value in new["inputs"].items() if value == ENCRYPTED}
            new["inputs"] = {**new["inputs"], **kept}
        if end == "job_templates":
            project = self.objects["projects"].get(new.get("project", old["project"]) or 0)
            new["organization"] = project["organization"] if project else None
        old.update(new)

    def _approval(self, node: int, body: Json) -> Json:
        """Its serializer takes timeout, name and description, and ignores the rest."""
        given = {name: body[name] for name in self.options["workflow_approval_templates"] if name in body}
        made = self._create("workflow_approval_templates", given)
        self.objects["workflow_job_template_nodes"][node]["unified_job_template"] = made["id"]
        return made

    def _launch(self, end: str, number: int, body: Json) -> Json:
        """A job that has ended, with what a test says; of a workflow nothing is run. Answers to a survey are
        refused as AWX refuses them; variables that the template does not ask for are ignored."""
        template = self.objects[end][number]
        given = dict(body.get("extra_vars") or {}) if template.get("ask_variables_on_launch") else {}
        spec = template.get("survey_spec") or {}
        told = launch(spec, given) if template.get("survey_enabled") and spec else given
        self._last += 1
        path = RUN[end]
        job = {"id": self._last, "url": f"/api/v2/{path}/{self._last}/", "name": template["name"], "extra_vars": told}
        job |= {"limit": body.get("limit", ""), "created": "2026-01-01T00:00:00Z", "artifacts": {}}
        job["status"] = self.ends.get(template["name"], "successful")
        self.jobs[path].append(job)
        return job

    # ---- what AWX refuses

    def _check(self, end: str, body: Json, number: Optional[int]) -> None:
        if not isinstance(body, dict):
            raise Refused(400, {"detail": "JSON parse error"})
        for name, value in body.items():
            self._check_field(end, name, value)
        whole = {**(self.objects[end][number] if number else {}), **body}
        for fields in KINDS[end].unique:
            for other, item in self.objects[end].items():
                if other != number and all(item.get(key) == whole.get(key) for key in fields):
                    raise Refused(
                        400, {"__all__": [f"{KINDS[end].type} with this {', '.join(fields)} already exists."]}
                    )
        check: Optional[Callable[[Json], None]] = getattr(self, f"_check_{end}", None)
        if check:
            check(whole)

    def _check_field(self, end: str, name: str, value: Any) -> None:
        kind = KINDS[end]
        if name in kind.refs:
            if value is not None and not self._there(kind.refs[name], value):
                raise bad(**{name: f'Invalid pk "{value}" - object does not exist.'})
            return
        if name in kind.extra:
            wanted: tuple[type, ...] = (kind.extra[name],)
        elif name not in self.options[end] or name in kind.lists:
            raise bad(**{name: "awx.awx knows no such field."})
        elif name in kind.texts:
            json.loads(value or "{}")
            wanted = (str,)
        else:
            option = self.options[end][name]
            types = {"bool": bool, "int": int, "float": float, "dict": dict, "list": list}
            wanted = (types.get(option.get("type", "str"), str),)
            if option.get("choices") and value not in (*option["choices"], None, ""):
                raise bad(**{name: f'"{value}" is not a valid choice.'})
        if value is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise bad(**{name: f"{value!r} is no {wanted[0].__name__}."})

    def _there(self, end: str, number: Any) -> bool:
        return any(number in self.objects[one] for one in (UNIFIED if end == "unified_job_templates" else (end,)))

    def _check_credential_types(self, new: Json) -> None:
        if new.get("managed"):
            return
        if new["kind"] not in ("cloud", "net"):
            raise bad(kind="Must be 'cloud' or 'net'.")
        inputs, injectors = new.get("inputs") or {}, new.get("injectors") or {}
        fields = [one["id"] for one in inputs.get("fields", ())]
        for one in inputs.get("fields", ()):
            if set(one) - {
                "id",
                "label",
                "type",
                "format",
                "secret",
                "multiline",
                "choices",
                "help_text",
                "default",
                "ask_at_runtime",
            }:
                raise bad(inputs=f"Additional properties are not allowed: {one}")
            if not re.fullmatch(r"[a-zA-Z_]+[a-zA-Z0-9_]*", one["id"]) or not one.get("label") or one["id"] == "tower":
                raise bad(inputs=f"{one} has no good id, or no label.")
            if one.get("type", "string") not in ("string", "boolean"):
                raise bad(inputs=f"{one['type']} is not one of string, boolean")
            if one.get("multiline") and one.get("choices"):
                raise bad(inputs="multiline and choices exclude each other")
        if len(set(fields)) != len(fields) or set(inputs.get("required", ())) - set(fields):
            raise bad(inputs="ids must be unique, and required must name some of them.")
        if set(injectors) - {"file", "env", "extra_vars"}:
            raise bad(injectors="Additional properties are not allowed")
        files = list(injectors.get("file", ()))
        if (
            files
            and files != ["template"]
            and not all(re.fullmatch(r"template\.[a-zA-Z_]+[a-zA-Z0-9_]*", name) for name in files)
        ):
            raise bad(injectors="Must use multi-file syntax when injecting multiple files")
        known = {*fields, "tower"}
        for name, text in ((n, t) for part in injectors.values() for n, t in part.items()):
            if set(re.findall(r"\{\{\s*(\w+)", text)) - known:
                raise bad(injectors=f"{name}: undefined field in {text}")
            if "tower.filename" in text and not files:
                raise bad(injectors="Must define unnamed file injector in order to reference `tower.filename`.")
        for name in injectors.get("env", ()):
            if not re.fullmatch(r"[a-zA-Z_]+[a-zA-Z0-9_]*", name) or name.startswith("ANSIBLE_"):
                raise bad(injectors=f"Environment variable {name} is not allowed to be used in credentials.")

    def _check_credentials(self, new: Json) -> None:
        of = self.objects["credential_types"][new["credential_type"]]
        fields = {one["id"] for one in (of.get("inputs") or {}).get("fields", ())}
        if strange := set(new.get("inputs") or {}) - fields:
            raise bad(inputs=f"'{', '.join(sorted(strange))}' not in the fields of {of['name']}")

    def _check_job_templates(self, new: Json) -> None:
        if not new.get("inventory") and not new.get("ask_inventory_on_launch"):
            raise bad(inventory="You must provide an inventory.")
        if not new.get("project"):
            raise bad(project="This field is required.")
        if new.get("playbook") not in self.playbooks:
            raise bad(playbook="Playbook not found for project.")
        if new.get("survey_enabled") and new.get("webhook_service") not in ("", None):
            raise bad(survey_enabled="Survey and webhook.")

    def _check_inventory_sources(self, new: Json) -> None:
        if new["source"] == "scm" and (not new.get("source_project") or not new.get("source_path")):
            raise bad(source_project="Project and path are required for scm type sources.")

    def _check_notification_templates(self, new: Json) -> None:
        needed = {
            "webhook": {"url", "http_method", "headers", "username", "password", "disable_ssl_verification"},
        }.get(new["notification_type"])
        given = new.get("notification_configuration")
        if needed and (not isinstance(given, dict) or set(given) != needed):
            raise bad(notification_configuration=f"fields must be {sorted(needed)}")
        for event, told in (new.get("messages") or {}).items():
            if event not in ("started", "success", "error", "workflow_approval"):
                raise bad(messages=f"Event '{event}' invalid")
            for text in (told or {}).values():
                self._check_message(text)

    @staticmethod
    def _check_message(text: Any) -> None:
        """AWX renders it with a job that has no artifacts, and refuses what is not defined then."""
        if text is None:
            return
        if not isinstance(text, str):
            raise bad(messages=f"Expected string, found {type(text)}")
        try:
            rendered(text, {}, jinja2.StrictUndefined)
        except jinja2.TemplateError as error:
            raise bad(messages=f"Unable to render message: {error}") from None

    def _check_schedules(self, new: Json) -> None:
        rule = str(new["rrule"])
        if not re.match(r"DTSTART(;TZID=[\w/+-]+:\d{8}T\d{6}|:\d{8}T\d{6}Z)\s+RRULE:", rule):
            raise bad(rrule="Valid DTSTART required in rrule. Value should start with: DTSTART:YYYYMMDDTHHMMSSZ")
        if rule.count("DTSTART") != 1:
            raise bad(rrule="Multiple DTSTART is not supported.")
        if "INTERVAL" not in rule:
            raise bad(rrule="INTERVAL required in rrule.")
        if "SECONDLY" in rule:
            raise bad(rrule="SECONDLY is not supported.")
        template = self.objects["job_templates"].get(new["unified_job_template"], {})
        for one in (template.get("survey_spec") or {}).get("spec", ()):
            if (
                one["required"]
                and one.get("default") in (None, "")
                and one["variable"] not in (new.get("extra_data") or {})
            ):
                raise bad(variables_needed_to_start=f"'{one['variable']}' value missing")

    # ---- surveys

    def _survey(self, end: str, number: int, method: str, body: Any) -> tuple[int, Any]:
        item = self.objects[end][number]
        if method == "POST":
            item["survey_spec"] = survey(body)
        elif method == "DELETE":
            item["survey_spec"] = {}
        shown = json.loads(json.dumps(item["survey_spec"]))
        for one in shown.get("spec", ()):
            if one["type"] == "password" and one.get("default"):
                one["default"] = ENCRYPTED
        return 200, shown if method == "GET" else {}

    # ---- associations

    def _associate(
        self, end: str, number: int, name: str, method: str, body: Any, query: list[tuple[str, str]]
    ) -> tuple[int, Any]:
        linked = self.links.setdefault((end, number, name), [])
        other = KINDS[end].lists[name]
        if method == "GET":
            return 200, self._page(other, linked, query, f"/api/v2/{end}/{number}/{name}/")
        if body.get("disassociate"):
            linked.remove(body["id"])
            return 204, None
        if body.get("id") not in self.objects[other]:
            raise Refused(400, {"detail": f"{other} {body.get('id')} does not exist."})
        self._check_link(end, number, name, body["id"], linked)
        linked.append(body["id"])
        return 204, None

    def _check_link(self, end: str, number: int, name: str, target: int, linked: list[int]) -> None:
        if name == "credentials":
            kinds = {self.objects["credentials"][one]["credential_type"] for one in linked}
            if self.objects["credentials"][target]["credential_type"] in kinds:
                raise Refused(400, {"error": "Cannot assign multiple credentials of one type."})
        if end == "workflow_job_template_nodes" and name.endswith("_nodes"):
            reached, todo = set(), [target]
            while todo:
                node = todo.pop()
                reached.add(node)
                for way in ("success_nodes", "failure_nodes", "always_nodes"):
                    todo += [one for one in self.links.get((end, node, way), ()) if one not in reached]
            if number in reached:
                raise Refused(400, {"Error": "Cycle detected."})

    # ---- lists

    def _list(self, end: str, query: list[tuple[str, str]]) -> tuple[int, Any]:
        ends = UNIFIED if end == "unified_job_templates" else (end,)
        found = []
        for one in ends:
            found += [number for number in self.objects[one] if self._matches(one, number, query)]
        return 200, self._page(end, found, query, f"/api/v2/{end}/")

    def _matches(self, end: str, number: int, query: list[tuple[str, str]]) -> bool:
        item = self._shown(end, number)
        either, all_of = [], True
        for key, value in query:
            if key in ("page", "page_size", "order_by"):
                continue
            name = key.removeprefix("or__")
            if name not in item:
                if end in UNIFIED:
                    return False
                raise Refused(400, {"detail": f"{KINDS[end].type} has no field named '{name}'"})
            same = str(item[name]) == value
            if key.startswith("or__"):
                either.append(same)
            else:
                all_of = all_of and same
        return all_of and (not either or any(either))

    def _page(self, end: str, numbers: list[int], query: list[tuple[str, str]], path: str) -> Json:
        asked = dict(query)
        page, size = int(asked.get("page", 1)), min(int(asked.get("page_size", 25)), 200)
        more = len(numbers) > page * size
        following = urllib.parse.urlencode([*((k, v) for k, v in query if k != "page"), ("page", page + 1)])
        results = [self._shown(self._home(end, one), one) for one in numbers[(page - 1) * size : page * size]]
        return {
            "count": len(numbers),
            "next": f"{path}?{following}" if more else None,
            "previous": None,
            "results": results,
        }

    def _home(self, end: str, number: int) -> str:
        ends = UNIFIED if end == "unified_job_templates" else (end,)
        return next(one for one in ends if number in self.objects[one])

    def _shown(self, end: str, number: int) -> Json:
        item = {key: value for key, value in self.objects[end][number].items() if key != "survey_spec"}
        url = f"/api/v2/{end}/{number}/"
        related = {name: f"{url}{name}/" for name in KINDS[end].lists}
        summary: Json = {}
        if "survey_spec" in self.objects[end][number]:
            related["survey_spec"] = f"{url}survey_spec/"
        if end == "workflow_job_template_nodes" and item["unified_job_template"]:
            used = item["unified_job_template"]
            home = next(one for one in (*UNIFIED, "workflow_approval_templates") if used in self.objects[one])
            related["unified_job_template"] = f"/api/v2/{home}/{used}/"
        if end in RUN:
            related["launch"] = f"{url}launch/"
            of_org = self.objects["organizations"].get(item["organization"] or 0, {"name": ""})
            summary["organization"] = {"name": of_org["name"]}
        if end == "projects":
            summary["current_update"] = {"id": number}
            item["scm_revision"] = "0" * 40
            related["update"] = f"{url}update/"
        if end == "credentials":
            of = self.objects["credential_types"][item["credential_type"]]
            secrets = {one["id"] for one in (of.get("inputs") or {}).get("fields", ()) if one.get("secret")}
            item["inputs"] = {k: ENCRYPTED if k in secrets and v else v for k, v in item["inputs"].items()}
        shown = {"id": number, "type": KINDS[end].type, "url": url, "related": related, "summary_fields": summary}
        return json.loads(json.dumps({**item, **shown}))


def rendered(text: str, artifacts: Json, undefined: Any = jinja2.Undefined) -> str:
    """A notification's message as AWX makes it: of the job, these fields among others may be named."""
    job = {"id": 42, "name": 'RDMA "scan"', "status": "failed", "artifacts": artifacts}
    told = {"job": job, "url": "https://awx.example.com/#/jobs/playbook/42?a&b", "job_friendly_name": "Job"}
    return str(sandbox.ImmutableSandboxedEnvironment(undefined=undefined).from_string(text).render(told))


def survey(spec: Any) -> Json:
    """A survey as AWX stores it, or its refusal (views of job_templates/N/survey_spec)."""
    for name, kind in (("name", str), ("description", str), ("spec", list)):
        if name not in spec:
            raise Refused(400, {"error": f"Field '{name}' is missing from survey spec."})
        if not isinstance(spec[name], kind):
            raise Refused(400, {"error": f"Expected {kind.__name__} for field '{name}'."})
    if not spec["spec"]:
        raise Refused(400, {"error": "'spec' doesn't contain any items."})
    seen: set[str] = set()
    for index, one in enumerate(spec["spec"]):
        for name in ("type", "question_name", "variable", "required"):
            if not isinstance(one.get(name), bool if name == "required" else str):
                raise Refused(400, {"error": f"'{name}' missing from survey question {index}, or of another type."})
        if one["variable"] in seen:
            raise Refused(400, {"error": f"'variable' '{one['variable']}' duplicated in survey question {index}."})
        seen.add(one["variable"])
        _check_question(one)
    return json.loads(json.dumps(spec))


def _check_question(one: Json) -> None:
    kind, name = one["type"], one["variable"]
    if kind not in QUESTIONS:
        raise Refused(400, {"error": f"'{kind}' in survey question is not one of {', '.join(QUESTIONS)}."})
    given = one.get("default", "")
    if given != "" and (not isinstance(given, QUESTIONS[kind]) or isinstance(given, bool)):
        raise Refused(400, {"error": f"Default value {given} for '{name}' expected to be of type {kind}."})
    for bound in ("min", "max"):
        if one.get(bound) is not None and not isinstance(one[bound], int):
            raise Refused(400, {"error": f"The {bound} limit of '{name}' expected to be integer."})
    if kind in ("multiselect", "multiplechoice"):
        if "choices" not in one:
            raise Refused(400, {"error": f"Survey question '{name}' of type {kind} must specify choices."})
        choices = one["choices"].splitlines() if isinstance(one["choices"], str) else one["choices"]
        chosen = [text for text in str(given).splitlines() if text.strip()]
        if kind == "multiplechoice" and len(chosen) > 1:
            raise Refused(400, {"error": "Multiple Choice (Single Select) can only have one default value."})
        if set(chosen) - set(choices):
            raise Refused(400, {"error": f"Default choice of '{name}' must be answered from the choices listed."})


def launch(spec: Json, answers: Json, others: bool = True) -> Json:
    """The extra variables of a job: the survey's defaults, then the answers. Raises Refused as a launch does."""
    told: Json = {}
    for one in spec["spec"]:
        if one.get("default") is not None and not _wrong(one, {one["variable"]: one["default"]}):
            told[one["variable"]] = one["default"]
    wrong = [text for one in spec["spec"] for text in _wrong(one, {**told, **answers})]
    wrong += [] if others else [f"Variables {name} are not allowed on launch." for name in set(answers) - set(told)]
    if wrong:
        raise Refused(400, {"variables_needed_to_start": wrong})
    return {**told, **answers}


def _wrong(one: Json, data: Json) -> list[str]:
    """Why AWX refuses an answer to a question."""
    name, kind = one["variable"], one["type"]
    if name not in data:
        return [f"'{name}' value missing"] if one["required"] else []
    value = data[name]
    choices = one.get("choices", [])
    choices = choices.splitlines() if isinstance(choices, str) else choices
    if kind == "multiselect":
        if not isinstance(value, list):
            return [f"'{name}' value is expected to be a list."]
        return [f"Value {item} for '{name}' expected to be one of {choices}." for item in value if item not in choices]
    if kind == "multiplechoice":
        return [] if value in choices else [f"Value {value} for '{name}' expected to be one of {choices}."]
    if isinstance(value, bool) or not isinstance(value, QUESTIONS[kind]):
        return [f"Value {value!r} for '{name}' expected to be {kind}."]
    size = len(value) if isinstance(value, str) else value
    if one.get("min") not in ("", None) and size < one["min"]:
        return [f"'{name}' value {value} is too small (must be at least {one['min']})."]
    if one.get("max") not in ("", None) and size > one["max"]:
        return [f"'{name}' value {value} is too large (must be no more than {one['max']})."]
    return []


# ---- the server


class _Handler(http.server.BaseHTTPRequestHandler):
    awx: Awx
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"null")
        with self.awx.lock:
            self.awx.requests.append((self.command, url.path))
            try:
                status, answer = self._answer(url, body)
            except Refused as refusal:
                status, answer = refusal.status, refusal.body
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("X-API-Product-Name", "AWX")
        self.send_header("X-API-Product-Version", "24.6.1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, url: urllib.parse.SplitResult, body: Any) -> tuple[int, Any]:
        told = self.headers.get("Authorization", "")
        if url.path.startswith("/api/v2/tokens/"):
            if told != "Basic " + base64.b64encode(b"admin:password").decode():
                raise Refused(401, {"detail": "Invalid username/password."})
            return (201, {"id": 1, "token": TOKEN}) if self.command == "POST" else (204, None)
        if told != f"Bearer {TOKEN}":
            raise Refused(401, {"detail": "Authentication credentials were not provided."})
        query = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
        return self.awx.handle(self.command, url.path, query, body)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve


def serve(awx: Awx) -> tuple[http.server.ThreadingHTTPServer, str]:
    """Runs it on a free port of 127.0.0.1; returns the server, to be shut down, and its address."""
    handler = type("Handler", (_Handler,), {"awx": awx})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
