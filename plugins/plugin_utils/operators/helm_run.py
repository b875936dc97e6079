# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Helm by kubernetes.core.helm on the control node. PRIVATE to the collection."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts_io, helm, helm_records, releases

Module = Callable[[Json], Json]
"""Runs kubernetes.core.helm with these arguments; returns its result."""


class Helm:
    """``args``: the task's options, of which timeout, helm_binary and the connection are used."""

    def __init__(self, module: Module, args: Json) -> None:
        self.module = module
        self.common = {
            "binary_path": helm.path(args.get("helm_binary")),
            "timeout": f"{args['timeout']}s",
            **_connection(args),
        }

    def install(self, want: Release, decision: releases.ReleaseDecision) -> Json:
        """Installs or upgrades without waiting for the pods. Returns the result of kubernetes.core.helm, also of a
        failure."""
        ref, remote = charts_io.source(want)
        names = {"repo": "chart_repo_url", "version": "chart_version"}
        return self.module(
            {
                **self.common,
                "release_name": decision.name,
                "release_namespace": decision.namespace,
                "release_values": helm_records.noted(want.chart, decision.values),
                "chart_ref": ref,
                "create_namespace": True,
                "wait": False,
                **{names[key]: value for key, value in remote.items()},
            }
        )

    def uninstall(self, release: helm_records.HelmRelease) -> None:
        """Uninstalls a release and waits until its objects are gone. Raises RdmaError."""
        answer = self.module(
            {
                **self.common,
                "release_name": release.name,
                "release_namespace": release.namespace,
                "release_state": "absent",
                "wait": True,
            }
        )
        if answer.get("failed"):
            raise RdmaError(f"Helm could not uninstall {release.place}: {text_of(answer)[:400]}")


def text_of(answer: Json) -> str:
    """What a failed Helm printed; msg has its stdout and stderr."""
    return str(hidden(f"{answer.get('msg', '')}\n{answer.get('module_stderr', '')}".strip()))


def _connection(args: Json) -> Json:
    """The connection options for kubernetes.core.helm; it accepts one kubeconfig, ours may be several. Raises
    InputError for more than one."""
    given = {key: args[key] for key in specs.fragment("auth") if args.get(key) is not None}
    config = str(given.get("kubeconfig") or os.environ.get("K8S_AUTH_KUBECONFIG") or "")
    if os.pathsep in config:
        present = [part for part in config.split(os.pathsep) if Path(part).expanduser().is_file()]
        if len(present) != 1:
            raise InputError(
                f"Helm accepts one kubeconfig, not {config}. Merge them (kubectl config view --flatten), or set "
                "KUBECONFIG instead of the option."
            )
        given["kubeconfig"] = present[0]
    return given
