# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploys blueprints with OCI AI Blueprints, idempotently, proves that they use RDMA, and undeploys them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api, lint, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import nodes as blueprint_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.client import Api
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.deploy import BlueprintServer, ConfigMapRecord
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.nodes_io import PoolNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.proof_io import DeploymentProof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Deploys and proves, undeploys, lists, reads logs, or only checks; returns the deployments, the proof and the
        number of requests, or the findings, or the nodes."""
        state = args["state"]
        if state == "nodes_listed":
            return PoolNodes(self, args).result()
        documents = _documents(args)
        if state == "linted":
            return _linted(documents, _known(args))
        proves = state == "present" and args["prove"]
        if state == "present" and not documents and not proves:
            return {"changed": False, "deployments": [], "posts": 0}  # the list may be empty on a second run
        if not args["name"] and (proves or (state in ("absent", "logged") and not documents)):
            what = f"{state} with prove" if proves else state
            raise InputError(f"state={what} needs name: the deployment's name.")
        connection = Api(args)
        site = BlueprintServer(
            connection,
            lambda line: self.progress(connection.secrets.text(line)),
            known={**(self._around(documents) if args["record"] else {}), **_known(args)},
            timeout=args["timeout"],
            recreate=args["recreate"],
            again=args["again"],
            record=ConfigMapRecord(self.client, args["record"]) if args["record"] else None,
            check_mode=self.check_mode,
        )
        found = self._done(site, state, documents, args["name"])
        result: Json = {"changed": any(one.get("changed") for one in found), "deployments": found}
        if proves and not (self.check_mode and documents):  # in check mode it may not be deployed yet
            result.update(DeploymentProof(self, connection, args).result())
        return {**result, "posts": site.posts, "api_requests": connection.requests}

    def _around(self, documents: list[Json]) -> Json:
        """Facts of the cluster for the lint: its nodes, and the number of nodes of each shared pool."""
        rdma = any(one.get(lint.RDMA) is True for one in documents)
        nodes = self.client.projected("/api/v1/nodes", blueprint_nodes.node)
        return {"nodes": [item.name for item in nodes], "pools": blueprint_nodes.pools(nodes, rdma)}

    def _done(self, site: BlueprintServer, state: str, documents: list[Json], name: str) -> list[Json]:
        if state == "present":
            return site.present(documents)
        if state == "listed":
            return site.listed()
        names = [name] if name else [str(one.get("deployment_name")) for one in documents]
        return [site.absent(one) if state == "absent" else site.log(one) for one in names]


def _documents(args: dict[str, Any]) -> list[Json]:
    found: list[Json] = [dict(one) for one in args["blueprints"]]
    for path in args["src"]:
        document = rules.read(Path(path))
        found += document if isinstance(document, list) else [document]
    if args["fields"]:
        found.append(api.typed(dict(args["fields"]), rules.facts()["fields"]))
    return found


def _known(args: dict[str, Any]) -> Json:
    return {key: value for key, value in args["known"].items() if value is not None}


def _linted(documents: list[Json], known: Json) -> Json:
    """Findings on all documents; failed if one is an error."""
    if not documents:
        raise InputError("Nothing to lint: set blueprints, src or fields.")
    found = rules.lint(documents, known)
    errors = [item for item in found if item.severity == "error"]
    result: Json = {
        "changed": False,
        "documents": len(documents),
        "accepted": lint.accepted(found),
        "findings": [to_dict(item) for item in found[:SHOWN]],
    }
    if errors:
        lines = "\n".join(f"- {item.line()}" for item in errors[:SHOWN])
        result.update(failed=True, msg=f"{len(errors)} faults in {len(documents)} blueprints:\n{lines}")
    return result
