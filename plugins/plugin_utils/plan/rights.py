# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm's permissions, of a plan's charts; manifests of accounts with a plan's rights. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import INPUT, Permission, Plan, Release, input_fault
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import once, texts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import missing, ungranted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_rights, helm, installed, render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_rights import Kinds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

_KUBE_VERSION = re.compile(r"chart requires kubeVersion: (.+?) which is incompatible")
"""Helm's words."""
UNKNOWN = "plan.chart"
"""Id of the finding about a chart whose rights are not known."""


def denied(client: Client, plan: Plan, read_only: bool = False, keeps: bool = True) -> list[str]:
    """Lines about the permissions that this user lacks. ``read_only``: only those of a run that changes nothing;
    ``keeps``: but for storing its report."""
    if read_only:
        return texts(missing(client, permissions.reading(plan, keeps, KINDS)))
    return [*texts(missing(client, plan.permissions)), *ungranted(client, plan.grants)]


@dataclass(frozen=True)
class ChartObjects:
    """Objects of a release in its namespace: as they are to be and as they are installed."""

    namespace: str
    wanted: Sequence[Json] = ()
    present: Sequence[Json] = ()


class Rights:
    """Rights of one plan. ``survey``: its view of the cluster."""

    def __init__(self, plan: Plan, client: Client, survey: Survey) -> None:
        self.client, self.survey = client, survey
        self.charts: dict[str, ChartObjects] = {}
        self.kinds: Kinds = KINDS
        self.unknown: list[Finding] = []
        """Why the rights of a chart are not known."""
        self.plan = self._complete(plan)

    def _complete(self, plan: Plan) -> Plan:
        """The plan with the rights that Helm needs for the releases that change; a chart that cannot be rendered is a
        finding, unless the plan rejects it already. Without a change no chart is rendered and no request is made."""
        changed = {key: release for key, release in plan.releases.items() if release.installs}
        rejected = [item for item in plan.findings if item.id == INPUT]
        charts = {f"rdma_charts.{release.operator}" for release in changed.values()}
        by_helm = any(not release.manifest for release in changed.values())
        absent = helm.findings() if by_helm else []  # preflight reports these itself
        self.unknown = [*rejected, *absent]
        if not changed or absent or any(item.subject in charts for item in rejected):
            return plan
        findings: list[Finding] = []
        versions = self._api_versions()
        for key, release in changed.items():
            try:
                wanted = render.objects(release, plan.server_version, versions)
                self.charts[key] = ChartObjects(release.namespace, wanted, self._present(release))
            except (InputError, DataError) as error:
                findings.append(_unrendered(release, error, plan.server_version))
        every = [item for chart in self.charts.values() for item in (*chart.wanted, *chart.present)]
        self.kinds = installed.kinds(self.client, every)
        for key, chart in self.charts.items():
            for version, kind in chart_rights.unknown([*chart.wanted, *chart.present], self.kinds):
                text = f"neither the API server nor a chart of this run defines its kind {kind} in {version}"
                findings.append(_unknown(plan.releases[key], text))
        self.unknown += findings
        if findings:
            return replace(plan, findings=(*plan.findings, *findings))
        needed: list[Permission] = []
        grants: list[Json] = []
        for chart in self.charts.values():
            needed += chart_rights.change(chart.wanted, chart.namespace, self.kinds, chart.present)
            grants += chart_rights.grants(chart.wanted, chart.namespace)
        return replace(plan, permissions=tuple(permissions.rules(plan, KINDS, needed)), grants=tuple(grants))

    def _api_versions(self) -> list[str]:
        groups = self.client.get("/apis").get("groups", [])
        return ["v1", *(version["groupVersion"] for group in groups for version in group.get("versions", []))]

    def _present(self, release: Release) -> list[Json]:
        """Objects of the installed revision, with its hooks."""
        place = (release.name, release.namespace)
        found = [one for one in self.survey.releases if (one.name, one.namespace) == place]
        return installed.objects(self.client, found[0]) if found else []

    # ---- manifests -------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> list[Path]:
        """Writes a manifest per playbook, of an account with exactly the rights that it needs; returns their paths.
        Raises InputError where a chart's rights are not known."""
        spaces = vars(self.plan.namespaces).values()
        return [accounts.write(folder, name, *rights, spaces) for name, rights in self._accounts().items()]

    def _accounts(self) -> dict[str, tuple[list[Permission], list[Json]]]:
        plan, tried = self.plan, permissions.tried(self.plan)
        with_hosts = permissions.tried(replace(plan, host_checks=True))
        removed: list[Permission] = permissions.teardown(plan, KINDS)
        grants: list[Json] = []
        for chart in (self.charts.get(key) or self._installed(key) for key in plan.releases):
            objects = [*chart.wanted, *chart.present]
            removed += chart_rights.removal(objects, chart.namespace, self.kinds)
            grants += chart_rights.grants(objects, chart.namespace, frozenset(chart_rights.REMOVAL))
        return {
            "verify": ([*permissions.reading(plan, True, KINDS), *(one for one in tried if one.verb == "list")], []),
            "site": (once([*plan.permissions, *tried]), list(plan.grants)),
            "teardown": (removed, grants),
            "gate": (once([*permissions.gate(plan, KINDS), *with_hosts]), []),
            "repair": (once([*permissions.repair(plan, KINDS), *with_hosts]), []),
            "health": (once([*permissions.health(plan, KINDS), *with_hosts]), []),
            "propose": (permissions.propose(plan, KINDS), []),
            "bundle": (permissions.bundle(plan, KINDS), []),
        }

    def _installed(self, key: str) -> ChartObjects:
        """A release that does not change, as it is installed."""
        release = self.plan.releases[key]
        chart = ChartObjects(release.namespace, present=self._present(release))
        self.kinds = {**self.kinds, **installed.kinds(self.client, chart.present)}
        return chart


def _unrendered(release: Release, error: RdmaError, server_version: str) -> Finding:
    """A chart for other versions of Kubernetes is a wrong input, any other one of which the rights are not known."""
    needed = _KUBE_VERSION.search(str(error))
    if needed is None:
        return _unknown(release, str(error))
    text = f"{release.chart} {release.version} is for Kubernetes {needed[1]}, and the API server is {server_version}"
    return input_fault(f"rdma_charts.{release.operator}", f"{text}. Choose another release, or another rdma_profile")


def _unknown(release: Release, found: str) -> Finding:
    return finding(UNKNOWN, f"release {release.namespace}/{release.name}", found)
