# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies a stack of Resource Manager, and finds what it needs and has made."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack_files, stack_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import stack as blueprints_stack
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import stack_inputs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import installed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

NAMES = {"oke": "oke-gpu-rdma", "blueprints": "oci-ai-blueprints"}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Brings the stack into its state; returns outputs, plan and job, of Blueprints also API and portal."""
        oci.of_kind(args["compartment"], "compartment", "compartment")
        session, args = oci.Session(args), {**args, "name": args["name"] or NAMES[args["kind"]]}
        if args["kind"] == "blueprints":
            return self._blueprints(session, args)
        if args["state"] == "login":
            raise InputError("state=login needs kind=blueprints: a cluster has no login.")
        if args["cluster"]:
            result = stack_files.adopted(session, args)
        else:
            stack = stack_run.Stack(session, args, self.progress)
            if args["state"] == "absent":
                return stack.absent(self.check_mode)
            result = stack.present(self.check_mode, args["state"] == "planned")
        if result["outputs"]:
            files = stack_files.ClusterFiles(session, args, self.check_mode)
            result["changed"] = files.written(result["outputs"]) or result["changed"]
        return {**result, "calls": session.requests}

    def _blueprints(self, session: oci.Session, args: dict[str, Any]) -> dict[str, Any]:
        stack = stack_run.Stack(session, args, self.progress)
        if args["state"] == "absent":
            return stack.absent(self.check_mode)
        if args["state"] == "login":
            return self._login(stack)
        chosen = self._choose(session, stack, args)
        result = stack.present(self.check_mode, args["state"] == "planned")
        found = stack_inputs.named(result["outputs"])
        result.update({"tools": chosen.notes, "api_url": found["api"], "portal_url": found["portal"]})
        if chosen.warnings:
            result["warnings"] = chosen.warnings
        if result["job"] and args["certificate_timeout"] and not self.check_mode:
            minutes, ca_path = args["certificate_timeout"], args["ca_path"] or ""
            stack_inputs.wait_for_certificate(result["api_url"], minutes, ca_path, self.progress)
        return result

    def _choose(self, session: oci.Session, stack: stack_run.Stack, args: dict[str, Any]) -> blueprints_stack.Chosen:
        """Completes the stack's variables from the cluster and its workloads."""
        found, table = stack.find(), stack_inputs.table()
        given = {**args["variables"], **args["secret_variables"]}
        there = found["variables"] if found else None
        workloads = installed.workloads(self.client, ("deployments",))
        chosen = blueprints_stack.choose(table, workloads, given, there)
        for line in chosen.notes:
            self.progress(line)
        values = dict(chosen.variables)
        if args["cluster"]:
            values.update(stack_inputs.place(session, args["cluster"], args))
        elif found is None:
            raise InputError("Set rdma_oci_cluster to the OCID of the cluster to install on.")
        version = stack.file(table["version_file"]).strip()
        values.update({table["version"]: version} if version else {})
        admin, password = table["admin"], args["admin_password"]
        if found is None or password:
            values.update({admin["username"]: args["admin_username"], admin["email"]: args["admin_email"]})
        missing = [name for name in ("admin_password", "admin_email") if not args[name]]
        if found is None and missing and not set(admin.values()) <= set(given):
            raise InputError(f"A new installation needs {' and '.join(missing)}.")
        known = stack.known()
        stack.options["variables"] = {
            **{k: v for k, v in values.items() if known is None or k in known},
            **args["variables"],
        }
        if password:
            stack.options["secret_variables"] = {admin["password"]: password, **args["secret_variables"]}
        return chosen

    def _login(self, stack: stack_run.Stack) -> dict[str, Any]:
        """Address and login; Ansible does not show the result (no_log)."""
        found = stack_inputs.named(stack.last_outputs())
        if not (found["api"] and found["username"] and found["password"]):
            raise InputError(f"The stack {stack.name} has no outputs with address and login yet: install it first.")
        shown = {"api_url": found["api"], "portal_url": found["portal"]}
        login = {"admin_username": found["username"], "admin_password": found["password"]}
        return {"changed": False, **shown, **login, "_ansible_no_log": True}
