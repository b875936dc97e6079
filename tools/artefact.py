# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the collection's artefact and installs it with its dependency, for tests that use what users get."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import yaml

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuops-rdma"
DEPENDENCY = "kubernetes.core"
# Set by make for work in the checkout; what is tested here is not the checkout.
FOREIGN = ("ANSIBLE_CONFIG", "ANSIBLE_COLLECTIONS_PATH", "PYTHONPATH", "KUBECONFIG", "K8S_AUTH_KUBECONFIG")


class Failed(Exception):
    """A command that should have worked; str() is its last words."""


def environment(**values: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    path = f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return {**kept, "PATH": path, "ANSIBLE_NOCOLOR": "1", "PYTHONPYCACHEPREFIX": str(BIN.parent / "bytecode"), **values}


def run(
    command: Sequence[Any],
    *,
    cwd: Optional[Path] = None,
    env: Optional[Mapping[str, str]] = None,
    seconds: int = 600,
    told: int = 4000,
) -> str:
    """Its output, both streams. Failed, with the last ``told`` characters, when it does not end with 0."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=dict(env or environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words)[:200]} did not end within {error.timeout:.0f} s") from None
    if done.returncode:
        raise Failed(f"{' '.join(words)[:200]} ended with {done.returncode}:\n{done.stdout.strip()[-told:]}")
    return done.stdout


def build(folder: Path) -> Path:
    """The artefact, made as a release is."""
    folder.mkdir(parents=True, exist_ok=True)
    run([BIN / "ansible-galaxy", "collection", "build", ROOT, "--output-path", folder, "--force"])
    return next(folder.glob("gpuops-rdma-*.tar.gz"))


def install(artefact: Path, collections: Path) -> Path:
    """The folder of the installed collection. Its dependency must be in ``collections`` already."""
    where = environment(ANSIBLE_COLLECTIONS_PATH=str(collections))
    command = [BIN / "ansible-galaxy", "collection", "install", artefact, "-p", collections, "--offline", "--force"]
    run(command, env=where, cwd=collections)
    return collections / "ansible_collections" / "gpuops" / "rdma"


def bring_dependency(collections: Path) -> str:
    """Version of kubernetes.core, which is copied from the package ``ansible`` of this environment."""
    import ansible_collections

    source = next(
        place
        for place in (Path(part) / "kubernetes" / "core" for part in ansible_collections.__path__)
        if (place / "MANIFEST.json").is_file()
    )
    shutil.copytree(source, collections / "ansible_collections" / "kubernetes" / "core", dirs_exist_ok=True)
    return version(source)


def version(collection: Path) -> str:
    manifest = json.loads((collection / "MANIFEST.json").read_text(encoding="utf-8"))
    return str(manifest["collection_info"]["version"])


def contents(collection: Path) -> set[str]:
    """Files of an installed collection, without the two that the build makes."""
    listed = json.loads((collection / "FILES.json").read_text(encoding="utf-8"))["files"]
    return {item["name"] for item in listed if item["ftype"] == "file"}


def published() -> tuple[set[str], set[str]]:
    """(files of git's list that belong into the artefact, those that do not), by galaxy.yml's build_ignore."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT).splitlines()
    tree = {name for name in listed if (ROOT / name).is_file()}
    ignored = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["build_ignore"]
    out = {name for name in tree if any(name == part or name.startswith(f"{part}/") for part in ignored)}
    return tree - out - {"galaxy.yml"}, out


def say(line: str) -> None:
    print(line, flush=True)
