# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the collection's action plugins. PRIVATE to the collection.

They run in the controller's process: a module could neither read files/ nor print while it waits.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, files, inputs, predicted, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import plain
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotYet, RdmaError, WaitFailed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import MARKED, TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import credential_server
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import inventory
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.one_run import OneRun

AUTH = specs.fragment("auth")
# A pod's log must not control the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class RdmaAction(ActionBase):  # type: ignore[misc]
    """Checks arguments, connects on first use, turns errors into one message."""

    spec: dict[str, Any]
    """Options, as the module of the same name documents them."""
    selects: tuple[str, ...] = ()
    """Options that select what to change: one that is set but blank is refused."""
    required_if: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(option, value, options that the task then sets)."""
    beside_runs = False
    """Whether it writes what no run of this collection reads or removes: it may do so while another run goes on."""
    reads: tuple[Callable[[], object], ...] = ()
    """Tables that are read when Ansible loads the action, before it forks a process for each task of the run."""
    TRANSFERS_FILES = False
    _client: Optional[Client] = None
    _plan_file: str = ""
    _journaled = 0
    changed_before_failure = False
    """Whether a task that fails has changed something before."""

    def __init_subclass__(cls) -> None:
        if cls.__name__ == "ActionModule":
            cls.spec = specs.module(cls.__module__.rpartition(".")[2])
            for read in cls.reads:
                with contextlib.suppress(RdmaError):  # reported by the task that needs it
                    read()
            # What has been loaded lives until the run ends: a collector that looks at it took 7 % of a run's CPU time,
            # and in the processes of the tasks makes the kernel copy it.
            gc.freeze()

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The task's result. ``args`` are coerced and checked by ``spec``. Raises RdmaError, whose text becomes msg."""
        raise NotImplementedError

    @property
    def client(self) -> Client:
        """The connection to the host's cluster, made on first use."""
        if self._client is None:
            client = Client.connect(self._auth)
            self._refuse_elsewhere(client.host)
            client.say = self.show
            if not self.beside_runs:
                self._guard(client)
            self._client = client
        return self._client

    @property
    def one_run(self) -> OneRun:
        """The run of this task, and what it holds."""
        asked = getattr(self, "_task_vars", {})
        take_over = asked.get("rdma_take_over_run") or ""
        return OneRun(asked, self.progress, str(self._templar.template(take_over)) if take_over else "")

    def _guard(self, client: Client) -> None:
        """Writes need the cluster's Lease, or those of nodes; the first one of a task also asks the API server."""
        one, looked = self.one_run, iter([True])
        client.guard = lambda: one.require(client, look=next(looked, False))
        client.wrote = lambda: one.wrote(client)
        client.at_end = lambda path: one.until_the_end(client, path)
        client.beside = lambda: one.beside(client)
        client.suffix = one.suffix

    def hold(self, nodes: Iterable[str]) -> dict[str, str]:
        """Takes the Leases of these nodes where the run is one for nodes; returns those of other runs, with who and
        since when. Raises Taken while another run has the cluster's. In check mode none is taken."""
        return self.one_run.hold(self.client, nodes, dry=self.check_mode)

    def _refuse_elsewhere(self, server: str) -> None:
        """With one kubeconfig for several clusters and no context per host, every host's task would change the same
        cluster. This is detected only if the inventory has the clusters' addresses."""
        known_vars = getattr(self, "_task_vars", {})
        ends = known_vars.get("oci_endpoints") or [
            known_vars.get("oci_public_endpoint"),
            known_vars.get("oci_private_endpoint"),
        ]
        known = [str(one) for one in self._templar.template(ends) if one] if any(ends) else []
        if not inventory.elsewhere(server, known):
            return
        name, cluster = known_vars.get("inventory_hostname", "this host"), str(known_vars.get("oci_cluster_id") or "")
        called = f" (OKE calls it {inventory.context(cluster)})" if cluster else ""
        raise InputError(
            f"The kubeconfig points to {server}, but by the inventory {name} is at {' or '.join(known)}: no request "
            f"was sent to that cluster. Set rdma_context of {name} to its context in the kubeconfig"
            f"{called}, or rdma_kubeconfig to its own kubeconfig. If this is another way to the same cluster, set "
            "its variable oci_endpoints to a list with that HOST:PORT."
        )

    @property
    def check_mode(self) -> bool:
        """Whether the run predicts changes without making them."""
        return bool(self._task.check_mode)

    @property
    def diff_mode(self) -> bool:
        """Whether the result should contain a diff. In check mode the report counts its changes by it."""
        return bool(self._task.diff) or self.check_mode

    def helm(self, module_args: dict[str, Any]) -> dict[str, Any]:
        """The result of kubernetes.core.helm."""
        if not self.check_mode:
            self.client.guard()
        known, program = self._task_vars, None
        if self._connection.transport == "local":
            # Ansible would discover some other Python of this machine, which need not have what the module imports.
            known = {**known, "ansible_python_interpreter": sys.executable}
            program = None if self._play_context.become else self.client.login.program
        with credential_server.kubeconfig(program) as lent:
            given = {**module_args, "kubeconfig": lent} if lent else module_args
            return dict(self._execute_module(module_name="kubernetes.core.helm", module_args=given, task_vars=known))

    def asked_for_plan(self) -> bool:
        """Whether the plan is to be printed, with the permissions that it needs: by its tag, or by -v."""
        return self.only_plan() or Display().verbosity > 0

    def only_plan(self) -> bool:
        """Whether the plan is asked for by its tag: what is no stage of the run then changes nothing."""
        return "plan" in (self._task_vars.get("ansible_run_tags") or [])

    def progress(self, line: str) -> None:
        """Prints a line at once, without secrets and control characters."""
        Display().display(_CONTROL.sub("", TASK.text(line)))

    def show(self, line: str) -> None:
        """Prints a progress line with the time of day."""
        with contextlib.suppress(OSError):  # after Ctrl-C the terminal may be closed
            self.progress(f"[{time.strftime('%H:%M:%S')}] {line}")

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        """Ansible's entry point: checks arguments, calls act(), turns errors into a message, writes the journal."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        self._learn()
        try:
            if blocker := self._blocker():
                return {**result, "changed": False, "skipped": True, "skip_reason": f"not run: {blocker}"}
            self._refuse_ignored()
            args = self.arguments()
            self._plan_file = str(args.get("plan") or "")
            self._auth = {key: args.get(key) for key in AUTH}
            result.update(self.act(args))
        except WaitFailed as error:
            result.update(failed=True, msg=str(error), late=dict(list(error.late.items())[:20]))
        except NotYet as error:
            result.update(self.predicted(error))
        except RdmaError as error:
            result.update(failed=True, msg=str(error))
        except AnsibleError as error:
            shown = TASK.text(str(error))
            if shown == str(error):
                raise
            raise AnsibleActionFail(shown) from None
        except Exception as error:
            result.update(failed=True, msg=self._internal(error))
        if not result.get("_ansible_no_log"):  # else Ansible shows none of it, and a login must reach its variable
            result = TASK.data(result)
        result.setdefault("changed", self.changed_before_failure)
        if self._client is not None:
            result["requests"] = self._client.requests
        self.journal(self._task.action.rpartition(".")[2], result)
        if not self._task.diff:
            result.pop("diff", None)
        return result

    def _blocker(self) -> str:
        """What blocks the stage that the task belongs to, "" if it is to run; its first task starts it."""
        if not self._stage:
            return ""
        run_dir = self._templar.template(self._task_vars["rdma_run_dir"])
        name, needs = str(self._stage["name"]), [str(one) for one in self._stage["needs"]]
        return base_run.enter_stage(Path(str(run_dir)), name, needs)

    @cached_property
    def _stage(self) -> dict[str, Any]:
        """Name and needs of the stage that the task belongs to; {} for none."""
        return dict(self._templar.template(self._task_vars.get("rdma_stage") or {}))

    def _prediction(self, result: dict[str, Any]) -> dict[str, Any]:
        """What the task would create, change, remove and restart. Its diff is kept in full beside the plan; the result
        keeps what a terminal can show."""
        place, found = Path(self._plan_file).parent / predicted.FILE, predicted.effects(result)
        if text := predicted.whole(result):
            base_run.append(place, text)
            result["diff"] = predicted.short(result, str(place))
        return found

    def _learn(self) -> None:
        """What the task must not show: its options and the run's inputs that are marked as secrets, and what looks like
        one in the others."""
        TASK.forget()
        TASK.learn(os.environ.get("K8S_AUTH_API_KEY") or "", whole=True)
        spec = {**AUTH, **self.spec}
        for name, value in self._task.args.items():
            TASK.learn(value, whole=bool(spec.get(name, {}).get("no_log")))
        for name in MARKED:
            if self._task_vars.get(name):
                with contextlib.suppress(AnsibleError):  # an input that cannot be read is refused where it is used
                    TASK.learn(self._templar.template(self._task_vars[name]), whole=True)

    def _refuse_ignored(self) -> None:
        """Raises InputError for variables that have the name of the task's role and are no options of it."""
        role = getattr(self._task, "_role", None)
        if role is None or not str(role).startswith("gpuops.rdma."):
            return
        name = str(role.get_name(include_role_fqcn=False))
        given = [one for one in self._task_vars if one.startswith(f"{name}_") and not one.endswith("_result")]
        strange = set(given) - set(role.get_default_vars()) - set(self._task.vars)  # what the role's own task sets
        if not strange:
            return
        options = files.role_options(role._role_path)
        others = [f"{one}_" for one in files.role_names(role._role_path) if one.startswith(f"{name}_")]
        strange = {one for one in strange - set(options) if not one.startswith(tuple(others))}
        found = inputs.ignored(name, strange, options, AUTH)
        if found:
            listed = "; ".join(f"{one}: {instead}" for one, instead in found.items())
            raise InputError(f"Nothing was done: the role {role} has no such option. {listed}")

    def predicted(self, error: NotYet) -> dict[str, Any]:
        """The result in check mode for an object that an earlier step would create: a change. Otherwise, and with
        state=absent, a failure."""
        if not self.check_mode or self._task.args.get("state") == "absent":
            return {"failed": True, "msg": str(error)}
        line = f"predicted without details, because it does not exist yet: {error}"
        self.progress(line)
        return {"changed": True, "changes": [line], "notes": [line]}

    def at_step(self, text: str) -> None:
        """Records which step of the task's stage runs: the report names it if it fails."""
        if self._stage:
            base_run.at_step(Path(self._plan_file).parent, str(self._stage["name"]), text)

    def journal(self, what: str, result: dict[str, Any]) -> None:
        """Adds a line to the run's journal: what was done, and the requests since the line before."""
        sent = self._client.requests if self._client else 0
        requests, self._journaled = sent - self._journaled, sent
        if self._plan_file and (result.get("changed") or requests):
            entry = {"task": what, "changed": bool(result.get("changed")), "requests": requests}
            entry.update({"predicted": self._prediction(result)} if self.check_mode else {})
            base_run.journal(self._plan_file, {**entry, **({"failed": True} if result.get("failed") else {})})

    def arguments(self) -> dict[str, Any]:
        """The task's arguments, coerced and checked by the plugin's spec."""
        spec = {**AUTH, **self.spec}
        argspec.refuse_blank(self.selects, self._task.args)
        self._task.args = argspec.with_lists(spec, self._task.args)
        _result, args = self.validate_argument_spec(argument_spec=spec, required_if=self.required_if)
        return {key: plain(value) for key, value in args.items()}

    def _internal(self, error: Exception) -> str:
        """The message for a defect of the collection in one sentence; the traceback is printed with -vvv."""
        Display().vvv(TASK.text("".join(traceback.format_exception(type(error), error, error.__traceback__))))
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
        return (
            f"{self._task.action} stopped on a defect of the collection: {type(error).__name__}: {error} ({place}). "
            "The cluster is as the last task left it; please report this line."
        )
