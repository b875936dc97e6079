# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWX job templates with their surveys, from the playbooks' inputs and the roles' argument specs."""

from __future__ import annotations

import ast
import importlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import input_meanings
import input_table
import options
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "playbooks" / "vars" / "awx" / "templates.yml"
UTILS = "ansible_collections.gpuops.rdma.plugins.plugin_utils"
Json = dict[str, Any]

# Known by the files that are there.
CHOICES = {
    "rdma_profile": sorted(path.stem for path in (ROOT / "files" / "profiles").glob("[!k]*.yml")),
}
# Texts that open something, such as a pre-authenticated request.
SECRETS = {"rdma_blueprint_model"}
# Asked with a default of rdma_awx_* instead of the playbook's own: what a job leaves in its pod is lost.
DEFAULTS = {"rdma_report_keep": "{{ awx_report_keep }}"}
LEAST = {"rdma_oci_nodes": 2}
WORDS = {"mig": "MIG", "mps": "MPS", "nccl": "NCCL", "oci": "OCI", "url": "URL", "vgpu": "vGPU"}
# Lists whose items are known -> where: a constant of the core, or an option of a module.
ITEMS = {
    "rdma_teardown_operators": lambda: ["mpi_operator", "volcano", "network_operator", "gpu_operator"],
    "rdma_collectives": lambda: list(_constant("plan.resolve", "COLLECTIVES")),
    "rdma_mark": lambda: list(specs.options("node_mark")["measures"]["choices"]),
}


@dataclass(frozen=True)
class Template:
    """``asks`` are the survey's inputs in order; with a trailing * an answer is required. ``needs`` are the credential
    types whose credentials are attached."""

    name: str
    playbook: str
    description: str
    asks: tuple[str, ...]
    needs: tuple[str, ...] = ("gpuops kubeconfig", "gpuops OCI")
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    notifies: bool = False
    check: bool = True


_COMMON = ("rdma_shape", "rdma_nodes", "rdma_mode", "rdma_profile")
_PROVE = ("rdma_sharing_state", "rdma_sharing_prove")
_ROWS = (
    "rdma_taints_nodes",
    "rdma_taints_selector",
    "rdma_time_slicing_nodes",
    "rdma_time_slicing_selector",
    "rdma_time_slicing_replicas",
    "rdma_mps_nodes",
    "rdma_mps_selector",
    "rdma_mps_replicas",
    "rdma_mig_nodes",
    "rdma_mig_selector",
    "rdma_mig_layout",
    "rdma_mig_strategy",
    "rdma_mig_configs",
    "rdma_mig_drain",
)
_VGPU = ("rdma_vgpu_nodes", "rdma_vgpu_selector", "rdma_vgpu_repository", "rdma_vgpu_version", "rdma_vgpu_token")
_KEEP = ("rdma_report_keep", "rdma_report_keep_namespace", "rdma_report_keep_bucket")

JOBS = (
    Template(
        "RDMA site",
        "site",
        "From booted GPU nodes to an NCCL verdict.",
        (
            *_COMMON,
            "rdma_expected_nodes",
            "rdma_install",
            "rdma_launcher",
            "rdma_ip_pool_subnet",
            "rdma_image_registry",
            "rdma_tolerations",
            "rdma_allow_reboot",
            "rdma_host_checks",
            "rdma_collectives",
            "rdma_test_nodes",
            "rdma_max_bytes",
            "rdma_busy",
            "rdma_nccl_test_timeout",
            "rdma_charts",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA upgrade",
        "upgrade",
        "Upgrades the operators to the profile's releases: a plan, then waves of nodes.",
        (
            *_COMMON,
            "rdma_upgrade",
            "rdma_wave",
            "rdma_busy",
            "rdma_replace_releases",
            "rdma_adopt_policies",
            "rdma_remove_leftovers",
            "rdma_upgrade_pair",
            "rdma_host_checks",
            "rdma_charts",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA rollback",
        "rollback",
        "Returns to the operators of before the last upgrade: a plan, then waves of nodes.",
        (
            *_COMMON,
            "rdma_rollback",
            "rdma_wave",
            "rdma_busy",
            "rdma_upgrade_pair",
            "rdma_host_checks",
            "rdma_charts",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA verify",
        "verify",
        "Checks every stage once and changes nothing.",
        (*_COMMON, "rdma_expected_nodes", *_KEEP),
    ),
    Template(
        "RDMA host checks",
        "host_checks",
        "Checks drivers, NICs, VFs and GPUDirect of a cluster's hosts with a DaemonSet.",
        (*_COMMON, "rdma_host_checks_select", "rdma_host_checks_mute", "rdma_host_checks_interval"),
        extra_vars={"rdma_host_checks_by": "daemonset"},
    ),
    Template(
        "RDMA NCCL scan",
        "nccl_scan",
        "Finds the faulty node, rail or link, and marks it if requested.",
        (
            *_COMMON,
            "rdma_scan_block",
            "rdma_scan_across",
            "rdma_scan_rounds",
            "rdma_scan_parallel",
            "rdma_scan_pair_timeout",
            "rdma_scan_include_marked",
            "rdma_mark",
            "rdma_mark_max_out",
            *_KEEP,
        ),
        notifies=True,
    ),
    Template(
        "RDMA gate",
        "gate",
        "Proves new and rebooted nodes, and removes the startup taint of those that pass.",
        (*_COMMON, "rdma_gate_again", *_KEEP),
        notifies=True,
    ),
    Template(
        "RDMA repair",
        "repair",
        "Prints which faulty nodes it would restart or replace; with the plan's id in rdma_repair it does so.",
        (
            *_COMMON,
            "rdma_repair",
            "rdma_repair_by",
            "rdma_repair_replace",
            "rdma_repair_most",
            "rdma_repair_evict",
            "rdma_repair_force",
            "rdma_repair_soak",
            "rdma_repair_reset",
            *_KEEP,
        ),
        notifies=True,
    ),
    Template(
        "RDMA propose",
        "propose",
        "Looks at the node that an event names, and says what RDMA repair would do about it.",
        (
            "rdma_event_node*",
            "rdma_event_approval",
            *_COMMON,
            "rdma_repair_most",
            "rdma_repair_evict",
            "rdma_repair_force",
        ),
        check=False,
    ),
    Template(
        "RDMA health",
        "health",
        "Names nodes with faults, news since the last look, and who works on a node.",
        (*_COMMON, "rdma_host_checks", "rdma_health_pairs", *_KEEP),
        notifies=True,
    ),
    Template(
        "RDMA perftest",
        "perftest",
        "Measures every RDMA port between pairs of idle nodes, and names the slow one.",
        (
            *_COMMON,
            "rdma_perftest_nodes",
            "rdma_perftest_cuda",
            "rdma_perftest_dmabuf",
            "rdma_perftest_seconds",
            "rdma_host_checks",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA nvidia_peermem",
        "peermem",
        "Loads nvidia_peermem on the nodes that need it, now and at every boot.",
        (*_COMMON, "rdma_peermem_strict", "rdma_peermem_timeout"),
        extra_vars={"rdma_peermem_by": "daemonset"},
    ),
    Template(
        "RDMA workload lint",
        "workload_lint",
        "Finds what prevents a user's job from using the fabric.",
        (
            "rdma_lint_kind",
            "rdma_lint_name",
            "rdma_lint_namespace",
            "rdma_lint_memlock",
            "rdma_lint_fail_when",
        ),
    ),
    Template(
        "RDMA workload prove",
        "workload_prove",
        "Proves whether a running job's traffic uses the fabric, from its logs and the counters of its nodes.",
        (
            "rdma_prove_kind*",
            "rdma_prove_name*",
            "rdma_prove_namespace",
            "rdma_prove_seconds",
            "rdma_prove_fail_when",
        ),
        extra_vars={"rdma_prove_by": "daemonset"},
    ),
    Template(
        "RDMA workload namespaces",
        "workload_network",
        "Creates what namespaces need for jobs on the fabric, and the nodes' network locations for Kueue and Volcano.",
        (
            "rdma_workload_namespaces",
            "rdma_workload_state",
            "rdma_workload_copy_secrets",
            "rdma_workload_cluster_queue",
            "rdma_workload_local_queue",
            "rdma_workload_pod_security",
            "rdma_workload_placement",
            "rdma_workload_schedulers",
            *_COMMON,
        ),
    ),
    Template(
        "RDMA discover",
        "discover",
        "Describes nodes of an unknown shape; the shape is in the job's artifacts.",
        ("rdma_discover_name*", "rdma_discover_match", "rdma_discover_ports"),
    ),
    Template(
        "RDMA compare",
        "compare",
        "Shows what became slower between two report.json files that the job can read.",
        ("rdma_report_old*", "rdma_report_new*", "rdma_compare_tolerance", "rdma_compare_fail_when"),
        needs=(),
    ),
    Template(
        "RDMA OCI pool",
        "oci_pool",
        "Creates an RDMA node pool on OCI and continues to an NCCL verdict.",
        (
            "rdma_oci_pool*",
            "rdma_oci_shape*",
            "rdma_oci_nodes*",
            "rdma_oci_availability_domain*",
            "rdma_oci_kind",
            "rdma_oci_compartment",
            "rdma_oci_cluster",
            "rdma_oci_subnet",
            "rdma_oci_image",
            "rdma_oci_image_url",
            "rdma_oci_image_index",
            "rdma_oci_policies",
            "rdma_oci_group",
            "rdma_oci_labels",
            "rdma_site",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA GPU sharing",
        "sharing",
        "Sets up taints, time slicing, MPS and MIG on selected nodes.",
        (*_ROWS, *_PROVE),
    ),
    Template(
        "RDMA vGPU, serving and metrics",
        "workloads",
        "Sets up vGPU nodes, a served model and metrics.",
        (
            *_VGPU,
            "rdma_serving_model",
            "rdma_serving_name",
            "rdma_serving_namespace",
            "rdma_serving_nodes",
            "rdma_serving_gpus",
            "rdma_serving_hosts",
            "rdma_metrics",
            "rdma_metrics_dashboard",
            "rdma_workloads_state",
            "rdma_workloads_prove",
        ),
    ),
    Template(
        "RDMA autoscaling",
        "autoscaling",
        "GPU pools of OpenShift that grow from zero; rdma_autoscaling_pools goes into the extra variables.",
        (
            "rdma_autoscaling_state",
            "rdma_autoscaling_provider",
            "rdma_autoscaling_cluster",
            "rdma_autoscaling_prove",
            "rdma_autoscaling_prove_zones",
            "rdma_autoscaling_warm",
        ),
    ),
    Template(
        "RDMA teardown",
        "teardown",
        "Removes what this collection created, once rdma_teardown is true.",
        (
            "rdma_teardown",
            "rdma_teardown_operators",
            "rdma_teardown_machine_sets",
            "rdma_teardown_node_labels",
        ),
    ),
    Template(
        "RDMA OpenShift",
        "openshift_site",
        "Operators by OLM, sharing and vGPU on OpenShift, and site.yml.",
        (
            *_COMMON,
            *_ROWS,
            *_VGPU,
            "rdma_metrics",
            "rdma_sharing_prove",
            *_KEEP,
        ),
    ),
    Template(
        "RDMA Blueprints",
        "blueprints",
        "Rows of OCI AI Blueprints: policies, image, pool, nodes, service, inference.",
        (
            "rdma_oci_compartment",
            "rdma_blueprint_group",
            "rdma_oci_policies",
            "rdma_oci_image_url",
            "rdma_blueprint_pool",
            "rdma_blueprint_shape",
            "rdma_blueprint_pool_size",
            "rdma_blueprint_availability_domain",
            "rdma_blueprint_node_image",
            "rdma_blueprint_add_nodes",
            "rdma_blueprint_model",
            "rdma_blueprint_inference_nodes",
            "rdma_blueprint_nccl_debug",
        ),
        needs=("gpuops kubeconfig", "gpuops OCI", "gpuops Blueprints"),
        check=False,
    ),
)

WITHOUT = {
    "awx": "it makes the templates",
    "bm_*": "RDMA site asks for the shape",
    "mixed": "RDMA site without a shape is the same",
    "inputs": "it shows the inputs of a command line",
    "workload_render": "it writes a file for a person, and asks no cluster",
    "bundle": "its file would be deleted with the job's pod",
    "mirror": "its files would be deleted with the job's pod",
    "verify_evidence": "it reads files of the operator host",
    "oci_teardown": "it deletes a pool for good, and a survey would offer the confirmation of the last job",
}
"""Playbooks without a template, and why."""


@dataclass(frozen=True)
class Input:
    """What a playbook takes: ``spec`` is the role's option, or what is known of an input that no role takes."""

    name: str
    spec: Mapping[str, Any]
    default: Any
    roles: tuple[str, ...] = ()


def files(template: Template) -> list[pathlib.Path]:
    """The vars files of a playbook and of those that it imports."""
    path = ROOT / "playbooks" / f"{template.playbook}.yml"
    found: list[pathlib.Path] = []
    for play in yaml.safe_load(path.read_text("utf-8")):
        found += options.play_files(play)
        if play.get("ansible.builtin.import_playbook") in ("site.yml", "upgrade.yml"):
            found.append(path.parent / "vars" / "inputs.yml")
    return list(dict.fromkeys(found))


def inputs(template: Template, others: Mapping[str, tuple[str, str, str]]) -> dict[str, Input]:
    """Name -> input of a template's playbook. ``others``: those mapped to no role, as (type, default, meaning)."""
    found: dict[str, Input] = {}
    for path in files(template):
        for role, name, default in input_meanings.mapped(path.read_text("utf-8")):
            first = found.get(name) or Input(
                name, options.variables()[role], _literal(others[name][1] if name in others else default)
            )
            found[name] = replace(first, roles=(*first.roles, role))
    for name, one in found.items():
        texts = [input_meanings.described(role) for role in one.roles]
        text = others[name][2] if name in others else input_meanings.meaning(name, texts)
        found[name] = replace(one, spec={**one.spec, "description": text})
    found.update(_direct(template))
    for name, (kind, default, text) in others.items():
        found.setdefault(name, Input(name, {**input_table.spec(kind, name), "description": text}, _literal(default)))
    return found


def _direct(template: Template) -> dict[str, Input]:
    """Inputs that a playbook maps by ``vars`` of a task."""
    text = (ROOT / "playbooks" / f"{template.playbook}.yml").read_text("utf-8")
    if template.playbook == "host_checks":
        return {}
    return {
        name: Input(
            name,
            {**options.variables()[role], "description": input_meanings.described(role)},
            _literal(default),
            (role,),
        )
        for role, name, default in input_meanings.mapped(text)
    }


def question(given: Input, *, required: bool = False) -> Json:
    """One question. AWX sends text, integer, float, or a list of the chosen texts; an empty answer to a text is sent
    as empty text, which no type but text and list can take: those questions demand an answer."""
    spec, kind = given.spec, str(given.spec.get("type", "str"))
    choices = [str(choice) for choice in CHOICES.get(given.name) or spec.get("choices") or ()]
    made: Json = {
        "question_name": _title(given.name),
        "question_description": input_meanings.plain(spec.get("description", "")),
        "required": required,
        "variable": given.name,
    }
    if kind == "bool":
        return {
            **made,
            "type": "multiplechoice",
            "choices": ["true", "false"],
            "default": str(bool(given.default)).lower(),
        }
    if kind in ("int", "float"):
        least = {"min": LEAST[given.name]} if given.name in LEAST else {}
        default = "" if required else given.default
        return {**made, "type": {"int": "integer"}.get(kind, kind), **least, "default": default}
    if kind == "list" and given.name in ITEMS:
        return {**made, "type": "multiselect", "choices": ITEMS[given.name](), "default": "\n".join(given.default)}
    if kind == "list" and spec.get("elements", "str") in ("str", "int", "path", "raw"):
        return {**made, "type": "textarea", "default": "\n".join(map(str, given.default or ()))}
    if kind == "dict":
        return {**made, "type": "textarea", "required": True, "min": 2, "default": json.dumps(given.default or {})}
    if kind not in ("str", "path"):
        raise SystemExit(f"{given.name} is a {kind} of {spec.get('elements', kind)}: no survey can ask for it.")
    if spec.get("no_log") or given.name in SECRETS:
        return {**made, "type": "password"}
    if choices:
        return {
            **made,
            "type": "multiplechoice",
            "choices": choices,
            "default": DEFAULTS.get(given.name, str(given.default)),
        }
    default = str(given.default or "")
    return {**made, "type": "text", **({"required": True, "min": 1} if default or required else {}), "default": default}


def templates(
    tables: Mapping[str, tuple[str, Mapping[str, tuple[str, str, str]]]],
) -> Iterator[tuple[Template, list[Input]]]:
    """Each template with its inputs."""
    for template in JOBS:
        stems = {"inputs", *(path.stem for path in files(template))}
        others = {
            key: value for stem, (_title, table) in tables.items() if stem in stems for key, value in table.items()
        }
        known = inputs(template, others)
        names = [name.rstrip("*") for name in template.asks]
        if missing := [name for name in names if name not in known]:
            raise SystemExit(
                f"awx_templates: {template.name}: {template.playbook}.yml does not take {', '.join(missing)}."
            )
        yield template, [known[name] for name in names]


def text(tables: Mapping[str, tuple[str, Mapping[str, tuple[str, str, str]]]]) -> str:
    """playbooks/vars/awx/templates.yml."""
    made = [_template(template, given) for template, given in templates(tables)]
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text("utf-8"))["version"]
    told = {"awx_version": version, "controller_templates": made}
    return (
        "---\n# Generated by tools/generate.py from the playbooks' inputs and the roles' argument specs.\n"
        + options.dump(told)
    )


def _template(template: Template, given: list[Input]) -> Json:
    must = {name.rstrip("*") for name in template.asks if name.endswith("*")}
    told: Json = {
        "name": template.name,
        "description": template.description,
        "organization": "{{ awx_organization }}",
        "project": "{{ awx_project }}",
        "playbook": f"playbooks/{template.playbook}.yml",
        "inventory": "{{ awx_inventory }}",
        "execution_environment": "{{ awx_environment }}",
        "credentials": f"{{{{ {list(template.needs)} | intersect(awx_credentials) or none }}}}",
        "job_type": "run",
        "verbosity": 0,
        "ask_variables_on_launch": True,
        "ask_limit_on_launch": True,
        "ask_credential_on_launch": True,
        "ask_job_type_on_launch": template.check,
        "ask_tags_on_launch": True,
        "extra_vars": dict(template.extra_vars),
    }
    if template.notifies:
        told["notification_templates_success"] = "{{ awx_notifications }}"
        told["notification_templates_error"] = "{{ awx_notifications }}"
    spec = [question(one, required=one.name in must) for one in given]
    return {**told, "survey_enabled": True, "survey_spec": {"name": "", "description": "", "spec": spec}}


def _title(name: str) -> str:
    words = [WORDS.get(word, word) for word in name.removeprefix("rdma_").split("_")]
    return " ".join([words[0] if words[0] in WORDS.values() else words[0].capitalize(), *words[1:]])


def _literal(text: str) -> Any:
    """A default as it stands in Jinja or in a table of docs; an expression has no value before the play."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text if re.fullmatch(r"[\w.-]*", text) else ""


def _constant(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{UTILS}.{module}"), name)
