# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a stack's cluster: its outputs, also without a stack, its inventory and its kubeconfig. PRIVATE."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack


def adopted(session: oci.Session, args: Json) -> Json:
    """The result for an existing cluster, with the keys of the stack's outputs. ``args``: options of oci_stack."""
    if args["state"] != "present" or args["stack"] or args["zip"]:
        raise InputError("cluster adopts an existing cluster: leave out stack and zip, and use state=present.")
    key = oci.of_kind(args["cluster"], "cluster", "cluster")
    found = session.call(f"read the cluster {key}", "oke", "get_cluster", key).data
    if found.lifecycle_state not in ("ACTIVE", "UPDATING"):
        raise InputError(f"The cluster {found.name} ({key}) is {found.lifecycle_state}, not ACTIVE.")
    ends = found.endpoints
    outputs = {
        "cluster_id": found.id,
        "cluster_name": found.name,
        "cluster_public_endpoint": (ends.public_endpoint or "") if ends else "",
        "cluster_private_endpoint": (ends.private_endpoint or "") if ends else "",
        "vcn_id": found.vcn_id or "",
        "kubernetes_version": found.kubernetes_version or "",
    }
    result = {"stack_id": "", "name": found.name, "state": found.lifecycle_state, "job": "", "plan": {}}
    return {
        **result,
        "changed": False,
        "did": [],
        "outputs": outputs,
        "secret_outputs": [],
        "variables_changed": [],
    }


class ClusterFiles:
    """Writes what the outputs are good for. ``dry``: only says whether it would change."""

    def __init__(self, session: oci.Session, args: Json, dry: bool) -> None:
        self.session, self.args, self.dry = session, args, dry

    def written(self, outputs: Json) -> bool:
        """Writes inventory and kubeconfig, as far as they are asked for; whether one changed. Raises InputError."""
        session, args = self.session, self.args
        changed = False
        if args["inventory"]:
            place = {"region": session.region, "compartment": args["compartment"]}
            document = stack.inventory(outputs, place, args["ssh_key"] or "", args["jump"])
            text = "# Written by gpuops.rdma.oci_stack\n" + yaml.safe_dump(document, sort_keys=False, width=200)
            changed = self._write(Path(args["inventory"]), text, 0o644)
        if args["kubeconfig_dest"]:
            changed = self._kubeconfig(outputs["cluster_id"]) or changed
        return changed

    def _kubeconfig(self, cluster: str) -> bool:
        session, args = self.session, self.args
        models = session.oci.container_engine.models
        details = models.CreateClusterKubeconfigContentDetails(
            token_version="2.0.0", endpoint=args["kubeconfig_endpoint"]
        )
        what = f"create a kubeconfig for {cluster}"
        more = {"create_cluster_kubeconfig_content_details": details}
        answer = session.call(what, "oke", "create_kubeconfig", cluster, **more)
        return self._write(Path(args["kubeconfig_dest"]), answer.data.content.decode("utf-8"), 0o600)

    def _write(self, path: Path, text: str, mode: int) -> bool:
        """Writes the file unless it has this text already; whether it changed."""
        try:
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                return False
            if not self.dry:
                part = path.with_name(f".{path.name}.part")
                with os.fdopen(
                    os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8"
                ) as out:
                    out.write(text)
                part.replace(path)
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}.") from None
        return True
