# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses variables that are named like inputs and are none, and values that an input cannot have; prints what a run
was given and what was decided."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.utils.vars import load_extra_vars
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, codec, files, inputs, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError, Taken
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import exclusive
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


def _fits(name: str, value: Any) -> bool:
    """Whether an input can have a value. What is empty or secret, or refers to what is not known yet, is judged where
    it is used."""
    if value in (None, "") or (isinstance(value, str) and "{{" in value):
        return True
    return not ArgumentSpecValidator({name: INPUTS[name]}).validate({name: value}).error_messages


class ActionModule(RdmaAction):
    reads = (shape_table.shapes, functools.partial(codec.prepare, Plan))

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The names that are no inputs, and where each input that is set is set. Raises InputError for unknown names,
        unless they are to be warned of, for wrong values, and for uses of GPUs that exclude each other on a node."""
        by = self._set_by()
        unknown = inputs.unknown(by)
        if unknown and args["unknown"] == "refuse":
            raise InputError(inputs.refusal(unknown, by))
        values = {name: self._value(name) for name in sorted(by) if name in INPUTS and name in self._task_vars}
        if faulty := [name for name, value in values.items() if not _fits(name, value)]:
            raise InputError(inputs.wrong(faulty, values, by))
        if faults := [text for name in extras.CHECKS for text in extras.faulty(name, values.get(name) or {})]:
            raise InputError("\n- ".join(["Nothing was done:", *faults]))
        if strange := self._strange(values):
            raise InputError("\n- ".join(["Nothing was done, and no cluster was asked:", *strange]))
        if args["show"] or "plan" in (self._task_vars.get("ansible_run_tags") or []):
            for line in [
                *inputs.shown(self._task_vars["inventory_hostname"], values, by),
                *self._decided(args["plan"]),
            ]:
                self.progress(line)
        if self._task.run_once:  # of a play whose hosts are nodes
            self._note_forks()
        exclusive.refuse(args["uses"], self._named)
        busy = self._take(args["leases"] == "nodes", args["writes"] and self.one_run.writes())
        if args["run_dir"]:
            self.one_run.begin(Path(args["run_dir"]), args["keep_test"])
        given = {name: by[name] for name in sorted(by) if name in INPUTS}
        secret = [name for name in given if inputs.secret(name, values.get(name))]
        result = {"unknown": sorted(unknown), "given": given, "secrets": secret, "busy": busy}
        return {**result, "warnings": [inputs.warning(unknown, by)]} if unknown else result

    def _named(self, selector: str) -> list[str]:
        return self.client.projected(NODES, lambda node: str(node["metadata"]["name"]), label_selector=selector)

    def _note_forks(self) -> None:
        known = self._task_vars
        if line := inputs.too_few_forks(len(known["ansible_play_hosts_all"]), int(known.get("ansible_forks") or 5)):
            self.progress(line)

    def _take(self, nodes: bool, writes: bool) -> str:
        """Takes the cluster's Lease before anything is planned, unless the run is to hold those of ``nodes``; returns
        who has it if that is another run. Raises Taken then, if this one ``writes``. What else is wrong with the
        cluster the stages say."""
        try:
            if nodes:
                self.one_run.begin_for_nodes(self.client)
            elif writes:
                self.one_run.take(self.client, patience=0.0)
        except Taken as error:
            if writes:
                raise
            return str(error)
        except RdmaError:
            pass
        return ""

    def _strange(self, values: dict[str, Any]) -> list[str]:
        """What is wrong with names of shapes and profiles, which are known without a cluster; not what cannot be read
        here, such as a folder of shapes: that is judged where it is used."""
        named = argspec.with_lists({"shape": {"type": "list"}}, {"shape": values.get("rdma_shape") or []})["shape"]
        found = []
        with contextlib.suppress(InputError):
            shapes = shape_table.known({"shapes_dir": values.get("rdma_shapes_dir")})
            unknown = [name for name in named if isinstance(name, str) and "{{" not in name and name not in shapes]
            found = [f"rdma_shape: {shape_files.unknown(name, shapes)}" for name in unknown]
        profile = str(values.get("rdma_profile") or "")
        if profile and "{{" not in profile and profile not in files.profile_names():
            found.append(f"rdma_profile: {profile!r} is unknown; known: {', '.join(files.profile_names())}")
        return found

    def _set_by(self) -> dict[str, str]:
        """Variable -> where it is set, of this host or, where the task runs once, of all hosts of the play."""
        hostvars, here = self._task_vars["hostvars"], self._task_vars["inventory_hostname"]
        hosts = self._task_vars["ansible_play_hosts_all"] if self._task.run_once else [here]
        found = dict.fromkeys(self._task_vars, inputs.PLAYBOOK)
        for host in hosts:
            found.update(dict.fromkeys(hostvars.raw_get(host), inputs.INVENTORY))
        found.update(dict.fromkeys(load_extra_vars(self._loader), inputs.EXTRA))
        return found

    def _value(self, name: str) -> Any:
        """An input's value; as it stands where it cannot be templated, and None for a secret: no vault is asked."""
        value = self._task_vars[name]
        if INPUTS[name].get("no_log") or "Encrypted" in type(value).__name__:
            return None
        try:
            return self._templar.template(value)
        except AnsibleError:
            return value

    def _decided(self, plan: str) -> list[str]:
        """The decisions of a plan, if one is asked for."""
        if not plan:
            return []
        if not Path(plan).exists():
            return [f"decisions: none, there is no {plan}; site.yml --tags plan makes it"]
        return [f"decisions, of {plan}:", *resolve.text(run.read_plan(plan, faulty=True)).splitlines()]
