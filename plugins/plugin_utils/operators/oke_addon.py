# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads, enables and configures the add-ons of an OKE cluster, and waits until they run. PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    InputError,
    NotFound,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import addon

PATIENCE = 300.0
"""Seconds that NEEDS_ATTENTION may last; an add-on shows it while its pods start."""
Looked = Mapping[str, tuple[bool, str, bool]]


class Addons:
    """``oke``: the plan's, with the cluster and the options for OCI. ``clocks``: clock and sleep, for tests."""

    def __init__(
        self,
        oke: Json,
        progress: Callable[[str], None],
        session: Optional[oci.Session] = None,
        **clocks: Any,
    ) -> None:
        if not oke.get("cluster"):
            raise InputError("rdma_install=oke_addon needs the OCID of the cluster: set rdma_oci_cluster.")
        self.cluster = oci.of_kind(oke["cluster"], "cluster", "rdma_oci_cluster")
        self.session = session or oci.Session({key: oke.get(key) for key in oci.OPTIONS})
        self.progress, self.waits = progress, Waits(progress, **clocks)

    def present(self, names: Iterable[str]) -> dict[str, Json]:
        """Add-ons among ``names`` that the cluster has, with their configuration."""
        listed = self.session.all(f"list add-ons of {self.cluster}", "oke", "list_addons", self.cluster)
        there = {item.name for item in listed if item.lifecycle_state not in addon.GONE}
        found = {name: self.one(name) for name in names if name in there}
        return {name: item for name, item in found.items() if item}

    def one(self, name: str) -> Optional[Json]:
        """An add-on's state, versions, configuration and error text; None if it is absent. Raises ClusterError."""
        what = f"read the add-on {name} of {self.cluster}"
        try:
            item = self.session.call(what, "oke", "get_addon", self.cluster, name).data
        except NotFound:
            return None
        error = item.addon_error
        return {
            "name": item.name,
            "state": item.lifecycle_state,
            "version": item.version or "",
            "installed": item.current_installed_version or "",
            "configuration": {pair.key: pair.value for pair in item.configurations or []},
            "error": f"{error.code} {error.message}".strip() if error else "",
        }

    def offer(self, names: Iterable[str]) -> addon.Offer:
        """What the cluster has of these add-ons, and what OKE offers."""
        return addon.Offer(self.present(names), self.options())

    def options(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Add-on -> version -> keys, as OKE offers them for the cluster's Kubernetes version; {} if they cannot be
        read."""
        try:
            version = self.session.call("read the cluster", "oke", "get_cluster", self.cluster).data.kubernetes_version
            listed = self.session.all("list options of add-ons", "oke", "list_addon_options", version)
        except ClusterError as error:
            self.progress(f"the options of OKE's add-ons are unknown: {error}")
            return {}
        return {
            item.name: {
                one.version_number: tuple(key.key for key in one.configurations or []) for one in item.versions or []
            }
            for item in listed
        }

    def act(self, name: str, decision: addon.AddonDecision) -> None:
        """Enables or configures the add-on; existing objects are not overridden."""
        models = self.session.oci.container_engine.models
        pairs = [models.AddonConfiguration(key=key, value=value) for key, value in decision.configuration.items()]
        self.progress(f"add-on {name}: {decision.action} {decision.version} ({decision.why})")
        version = decision.version or None
        if decision.action == "enable":
            details = models.InstallAddonDetails(
                addon_name=name, version=version, configurations=pairs, is_override_existing=False
            )
            self.session.call(f"enable the add-on {name}", "oke", "install_addon", self.cluster, details)
        else:
            changed = models.UpdateAddonDetails(version=version, configurations=pairs)
            self.session.call(f"configure the add-on {name}", "oke", "update_addon", self.cluster, name, changed)

    def wait(self, names: Iterable[str], seconds: float) -> None:
        """Waits until all are ACTIVE, at most ``seconds``. Raises WaitFailed."""
        asked, attention, started = list(names), dict[str, float](), self.waits.clock()

        def rest(looked: Looked) -> dict[str, str]:
            return {name: text for name, (ready, text, _final) in looked.items() if not ready}

        def done(looked: Looked) -> bool:
            self._unrecoverable(looked, rest(looked), attention, self.waits.clock() - started)
            return not rest(looked)

        def late(looked: Looked) -> str:
            last.update(rest(looked))
            return f"The add-ons of {self.cluster} are not ready ({'; '.join(last.values())})"

        def show(looked: Looked) -> str:
            return f"add-ons: {'; '.join(rest(looked).values())}"

        last: dict[str, str] = {}
        try:
            self.waits.until(
                lambda: {name: addon.judge(name, self.one(name)) for name in asked}, done, seconds, late, show
            )
        except DeadlinePassed as error:
            raise DeadlinePassed(str(error), last) from None

    def _unrecoverable(
        self,
        looked: Looked,
        late: Mapping[str, str],
        attention: dict[str, float],
        passed: float,
    ) -> None:
        for name, text in late.items():
            if "NEEDS_ATTENTION" in text:
                attention.setdefault(name, passed)
            else:
                attention.pop(name, None)
            tired = passed - attention.get(name, passed) >= PATIENCE
            if looked[name][2] or tired:
                raise Unrecoverable(
                    f"The add-on {text}. See `oci ce cluster-addon get --addon-name {name} --cluster-id "
                    f"{self.cluster}` and its pods; correct its configuration and run again.",
                    dict(late),
                )
