# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the tables of facts under files/. PRIVATE to the collection."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import laid_over
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden

LONGEST_PART = 100
MAX_TOPOLOGY = 1 << 20
"""Bytes: what a ConfigMap can hold."""
FILES = Path(__file__).resolve().parents[3] / "files"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""YAML's safe loader, the fast one where PyYAML has it."""


def load(path: Path) -> dict[str, Any]:
    """The YAML mapping in a file. Raises DataError if it cannot be read or is no mapping."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"Cannot read the collection's data file {path.name}: {str(error).splitlines()[0]}.") from None
    if not isinstance(document, dict):
        raise DataError(f"The collection's data file {path.name} is not a mapping.")
    return document


@functools.cache
def document(name: str) -> dict[str, Any]:
    """A file of files/ that is one mapping, read once in a process. Raises DataError as ``load`` does."""
    return load(FILES / name)


def profile_names() -> list[str]:
    """Names of all profiles, sorted."""
    return sorted(path.stem for path in (FILES / "profiles").glob("*.yml") if not path.stem.startswith("keys-"))


@functools.lru_cache(maxsize=8)
def profile(name: str, platform: str = "") -> dict[str, Any]:
    """The profile as a mapping; with ``platform`` openshift, its OpenShift section is merged over the rest. Raises
    InputError for an unknown name."""
    if name not in profile_names():
        raise InputError(f"Unknown version profile {name!r}. Known: {', '.join(profile_names())}.")
    found = _like(load(FILES / "profiles" / f"{name}.yml"))
    rules, released = document("profiles/keys-rules.yml"), document("operator_releases.yml")
    found["harmful"] = released["harmful"]
    for operator in ("gpu_operator", "network_operator", "volcano", "mpi_operator"):
        entry = found[operator]
        known = document(f"profiles/{entry['keys']}") if "keys" in entry else {}
        entry["rules"] = rules.get(operator, {})
        entry["releases"] = released.get(operator, {})
        entry["lines"] = released["lines"].get(operator, [])
        entry["known_keys"] = known.get("keys", [])
        entry["known_images"] = {**known.get("images", {}), **entry["rules"].get("images", {})}
        entry.setdefault("values", {})
    over = found.pop("openshift", {})
    return laid_over(found, over) if platform == "openshift" else found


def _like(document: dict[str, Any]) -> dict[str, Any]:
    """The profile, laid over the one that it names with ``like``."""
    other = document.pop("like", "")
    return laid_over(load(FILES / "profiles" / f"{other}.yml"), document) if other else document


def topology_file(path: Path) -> str:
    """The text of the user's topology file, unchanged, since NCCL's parser is strict. Raises InputError if it is
    unreadable or too large."""
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(MAX_TOPOLOGY + 1)
    except OSError as error:
        raise InputError(f"Cannot read the NCCL topology file {path}: {error.strerror}.") from None
    if len(content) > MAX_TOPOLOGY:
        raise InputError(
            f"The NCCL topology file {path} is larger than {MAX_TOPOLOGY >> 20} MiB, more than a ConfigMap can hold."
        )
    return content.decode("utf-8", "replace")


def nccl() -> dict[str, Any]:
    """files/nccl.yml: limits and thresholds of the verdict."""
    return document("nccl.yml")


def role_options(role: str) -> list[str]:
    """Names of a role's variables, of all its entry points. ``role``: its folder."""
    entries = load(Path(role) / "meta" / "argument_specs.yml")["argument_specs"].values()
    return [name for entry in entries for name in entry.get("options") or ()]


def role_names(role: str) -> list[str]:
    """Names of the roles beside this one."""
    return [path.name for path in Path(role).parent.iterdir()]


@functools.lru_cache(maxsize=1)
def version() -> str:
    """The collection's own version: from galaxy.yml in a checkout, from MANIFEST.json when installed."""
    manifest = FILES.parent / "MANIFEST.json"
    if manifest.exists():
        return str(load(manifest)["collection_info"]["version"])
    return str(load(FILES.parent / "galaxy.yml")["version"])


def short_name(name: str) -> str:
    """A node's name as part of a file's, which has at most 255 bytes: names of nodes may have 253."""
    plain, digest = name.replace("/", "_"), hashlib.sha256(name.encode()).hexdigest()
    return plain if len(plain) <= LONGEST_PART else f"{plain[:LONGEST_PART]}-{digest[:8]}"


def replace(path: Path, text: str) -> None:
    """Writes a file atomically, with the permissions of the file that it replaces; a new one with secrets is for its
    owner alone."""
    put(path, text.encode("utf-8", "replace"), 0o644 if hidden(text) == text else 0o600)


def put(
    path: Path, data: bytes, mode: int, remedy: str = "Give a place in a folder you can write.", *, made: bool = False
) -> None:
    """As ``replace``; ``mode``: of a new file. ``made``: by the collection alone, which makes the folder, too, and
    keeps no other mode. ``remedy`` ends the error."""
    name = ""
    try:
        if made:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif path.exists():
            mode = path.stat().st_mode & 0o7777
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise InputError(f"Cannot write {path}: {error.strerror}. {remedy}") from None
