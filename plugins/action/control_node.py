# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that the control node has what the collection needs; installs Helm on request."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import platform
import shutil
import tarfile
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import control_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm as operators_helm
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

MAX_ARCHIVE = 200 << 20
ROOT = files.FILES.parent


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Findings, Helm's path and version; failed on an error. InputError if Helm cannot be downloaded or written."""
        table = files.document("control_node.yml")
        packages = control_node.requirements((ROOT / "requirements.txt").read_text(encoding="utf-8"))
        wanted = {
            item["name"]: item["version"].lstrip(">= ") for item in files.load(ROOT / "requirements.yml")["collections"]
        }
        own = Path(args["bin_dir"]).expanduser() / "helm"
        machine = self._machine(args, packages, list(wanted), own)
        result: dict[str, Any] = {}
        if args["install"] and not control_node.helm_fits(machine, table["helm"]):
            result.update(self._install(args, table["helm"]["install"], own))
            if not self.check_mode:
                machine = self._machine(args, packages, list(wanted), own)
        findings = control_node.check(machine, table, packages, wanted)
        if self.check_mode and result.get("changed"):
            findings = [item for item in findings if item.subject != "Helm"]
        result.update(findings=to_dict(findings), helm={"path": machine.helm_path, "version": machine.helm})
        if args["tolerate_helm"] and not args["install"] and run.selected(self._task_vars, "preflight"):
            findings = [item for item in findings if item.subject != "Helm"]
        if any(item.severity == "error" for item in findings):
            result.update(failed=True, msg=control_node.message(findings))
        return result

    def _machine(
        self, args: dict[str, Any], packages: dict[str, str], collections: list[str], own: Path
    ) -> control_node.Machine:
        path = shutil.which("helm") or ""
        helm, helm_error = operators_helm.helm_version(path) if path else ("", "")
        server, server_error = self._server() if args["cluster"] else ("", "")
        return control_node.Machine(
            python=platform.python_version(),
            packages={name: _package(name) for name in packages},
            collections={name: operators_helm.collection(name) for name in collections},
            helm_path=path,
            helm=helm,
            helm_error=helm_error,
            helm_installed=str(own) if own.is_file() else "",
            server=server,
            server_error=server_error,
            cluster=args["cluster"],
        )

    def _server(self) -> tuple[str, str]:
        """(version of the API server, error); a faulty kubeconfig is an error, too."""
        try:
            return str(self.client.get("/version").get("gitVersion", "")), ""
        except RdmaError as error:
            return "", str(error)

    def _install(self, args: dict[str, Any], table: Json, target: Path) -> dict[str, Any]:
        place = control_node.platform(platform.system(), platform.machine())
        url, digest = control_node.download(table, place, args["helm_url"] or "", args["helm_checksum"] or "")
        before = _sha256(target.read_bytes()) if target.is_file() else ""
        if self.check_mode:
            self.progress(f"control_node: would install {url} (sha256 {digest}) as {target}")
            return {"changed": True}
        program = _unpacked(_fetched(url, digest), url)
        if _sha256(program) == before:
            return {"changed": False}
        _write(target, program)
        self.progress(f"control_node: {target} installed from {url}")
        return {"changed": True}


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fetched(url: str, digest: str) -> bytes:
    from ansible.module_utils.urls import open_url  # .07 CPU seconds, which few runs need

    try:
        archive = open_url(url, timeout=60).read(MAX_ARCHIVE + 1)
    except OSError as error:
        raise InputError(
            f"Cannot download Helm from {url}: {error}. For a mirror, give helm_url and helm_checksum. Or install "
            "Helm yourself."
        ) from None
    found = _sha256(archive)
    if found != digest:
        raise InputError(f"{url} has SHA-256 {found}, expected {digest}. Nothing was installed.")
    return bytes(archive)


def _unpacked(archive: bytes, url: str) -> bytes:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
            member = next((item for item in members if item.isfile() and Path(item.name).name == "helm"), None)
            content = members.extractfile(member) if member else None
            if content is not None:
                return content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{url} is not a gzipped tar archive: {error}. Nothing was installed.") from None
    raise InputError(f"{url} contains no file named helm. Nothing was installed.")


def _write(target: Path, program: bytes) -> None:
    """Writes the program atomically. Raises InputError."""
    files.put(target, program, 0o755, "Set rdma_control_node_bin_dir to a folder you can write.", made=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
