# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""workload_lint, from its options to its result. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import document
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import cluster, documents, lint
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

WORSE = {"never": (), "error": ("error", "unknown"), "warning": ("error", "unknown", "warning")}


@functools.lru_cache(maxsize=1)
def table() -> lint.WorkloadRules:
    """files/workload_rules.yml, parsed."""
    return lint.table(document("workload_rules.yml"))


def result(connect: Callable[[], Client], args: Mapping[str, Any]) -> dict[str, Any]:
    """The result of gpuops.rdma.workload_lint, whose options ``args`` are; ``failed`` by ``fail_when``."""
    asked = args["cluster"]
    if args["kind"] and not asked:
        raise InputError("A live object is in the cluster: rdma_lint_kind cannot be used with rdma_lint_cluster=false.")
    if args["name"] and not args["kind"]:
        raise InputError(f"The kind of {args['name']} is missing. Also set rdma_lint_kind, for example to MPIJob.")
    given = [*args["definitions"], *(one for path in args["src"] for one in documents.read(Path(path)))]
    given = documents.in_namespace(given, args["namespace"])
    if args["kind"]:
        namespace = args["namespace"] or "default"
        given += documents.live(connect(), args["kind"], namespace, args["name"], args["api_version"])
    if not given:
        raise InputError(
            "Nothing to lint: set rdma_lint to manifests, or rdma_lint_kind, rdma_lint_name and rdma_lint_namespace."
        )
    plan = run.read_proven(args["plan"]) if args["plan"] else None
    around = cluster.around(connect() if asked else None, given, args, plan)
    judged = lint.lint(given, table(), around)
    counts = {kind: sum(one.severity == kind for one in judged.findings) for kind in ("error", "unknown", "warning")}
    found: dict[str, Any] = {
        "clean": judged.clean,
        "findings": to_dict(judged.findings[:SHOWN]),
        "counts": counts,
        "jobs": list(judged.jobs[:SHOWN]),
        "ignored": list(judged.ignored[:SHOWN]),
        "unchecked": {name: list(facts) for name, facts in judged.unchecked.items()},
        "shape": around.shape.name if around.shape else "",
        "mode": str(around.mode),
        "resource": around.vf_resource,
    }
    bad = [one for one in judged.findings if one.severity in WORSE[args["fail_when"]]]
    if bad:
        lines = "\n".join(f"- {one.severity}: {one.line()}" for one in bad[:SHOWN])
        more = f"\nand {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        found.update(
            failed=True, msg=f"{_number(len(bad), 'fault')} in {_number(len(judged.jobs), 'job')}:\n{lines}{more}"
        )
    return found


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def line(result: Mapping[str, Any]) -> str:
    """The result in a line: what was judged, for what, and how much was found."""
    jobs, counts = result["jobs"], result["counts"]
    what = jobs[0] if len(jobs) == 1 else f"{len(jobs)}{' or more' if len(jobs) == SHOWN else ''} jobs"
    found = [f"{n} unknown" if kind == "unknown" else _number(n, kind) for kind, n in counts.items() if n]
    return f"{what}, for {result['shape'] or 'no known shape'} in mode {result['mode']}: {', '.join(found) or 'clean'}"
