# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only constructor of findings. PRIVATE to the collection.

files/findings.yml defines what all findings of an id share; for rules, files/host_rules.yml and workload_rules.yml do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import document
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json

_SEVERITIES = {"fail": "error", "unknown": "unknown", "warn": "warning"}


@dataclass(frozen=True)
class FindingKind:
    """What the findings of an id have in common."""

    what: str
    severity: str
    stage: str
    remedy: str = ""
    docs: str = ""


def kinds() -> dict[str, FindingKind]:
    """Id -> FindingKind, of all findings."""
    return dict(sorted({**_of_hosts(), **_of_workloads(), **_of_catalogue()}.items()))


@functools.cache
def _of_catalogue() -> dict[str, FindingKind]:
    read = document("findings.yml")
    return {
        ident: FindingKind(**{"severity": "error", "stage": read["domains"][ident.split(".")[0]]["stage"], **entry})
        for ident, entry in read["findings"].items()
    }


@functools.cache
def _of_workloads() -> dict[str, FindingKind]:
    return {
        one["id"]: FindingKind(
            one["what"], one.get("severity", "error"), "workload_lint", one["remedy"], "workload_lint.md"
        )
        for one in document("workload_rules.yml")["rules"]
    }


@functools.cache
def _of_hosts() -> dict[str, FindingKind]:
    rules = document("host_rules.yml")["rules"]
    if odd := [str(rule["id"]) for rule in rules if _severity(rule) not in _SEVERITIES or "remedy" not in rule]:
        known = "severity is fail, warn or unknown, and there is a remedy"
        raise DataError(f"files/host_rules.yml: {', '.join(odd)}: {known}.")
    return {
        rule["id"]: FindingKind(
            rule["what"], _SEVERITIES[_severity(rule)], "host_checks", rule["remedy"], "host_rules.md"
        )
        for rule in rules
    }


def _severity(rule: Json) -> str:
    return str(rule.get("severity", "fail"))


def _kind(ident: str) -> FindingKind:
    """From the first file that has the id: the rules are read only if one of them does not hold, the largest file
    last. Raises KeyError for an unknown id."""
    for read in (_of_catalogue, _of_workloads):
        if ident in read():
            return read()[ident]
    return _of_hosts()[ident]


def finding(
    ident: str,
    subject: str,
    found: str,
    *,
    expected: str = "",
    remedy: Optional[str] = None,
    severity: str = "",
    stage: str = "",
) -> Finding:
    """A finding of the catalogue's entry ``ident``. Raises KeyError for an unknown one.

    ``remedy``, ``severity`` and ``stage`` override the entry's own where they depend on the case; a ``remedy`` of ""
    omits it.
    """
    kind = _kind(ident)
    return Finding(
        id=ident,
        severity=severity or kind.severity,
        subject=subject,
        found=found,
        expected=expected,
        remedy=kind.remedy.strip().replace("{subject}", subject) if remedy is None else remedy,
        stage=stage or kind.stage,
    )
