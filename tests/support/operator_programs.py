# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder PROGRAMS of ``make test-operators``: what is missing in it, and the options of ``sandbox up`` for it.

operator_programs.py FOLDER     prints what is missing, and then ends with status 2
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from gpuops_sandbox import real

PROFILES = Path(__file__).resolve().parents[2] / "files" / "profiles"
HOW = """\
Each is an executable file in PROGRAMS: the program that the operator's image starts, or a script that executes it. A
file whose name has no version is for all releases. NAME.files beside it is a tree of the files that it finds in its
root, such as NAME.files/opt/gpu-operator. tests/sandbox/README.md describes how they run."""


def releases() -> Iterator[tuple[str, str, str]]:
    """(program, version, profile) of the profiles that the tests install."""
    for profile in ("current", "previous", "guide-2024"):
        of = _profile(profile)
        for key in ("gpu_operator", "network_operator"):
            yield key.replace("_", "-"), str(of[key]["version"]).removeprefix("v"), profile
        if of["network_operator"]["values"].get("sriovNetworkOperator", {}).get("enabled"):
            yield "sriov-network-operator", str(of["network_operator"]["version"]).removeprefix("v"), profile


def _profile(name: str) -> dict[str, Any]:
    own: dict[str, Any] = yaml.safe_load((PROFILES / f"{name}.yml").read_text(encoding="utf-8"))
    if "like" not in own:
        return own
    like = _profile(own["like"])
    return {**like, **{key: {**like[key], **own[key]} for key in ("gpu_operator", "network_operator") if key in own}}


def missing(folder: Path | None) -> list[str]:
    """A line for each program that is not there."""
    return [
        f"{f'{name}-{version}':<30} or {name}, for profile {profile}"
        for name, version, profile in releases()
        if folder is None or real.program(folder / name, f":v{version}") is None
    ]


def options(folder: Path) -> list[str]:
    """For ``sandbox up``: all programs of the folder, hooks too."""
    there = [name for name in real.PROGRAMS if not real.problem(folder / name)]
    return [word for name in there for word in ("--real", f"{name}={folder / name}")]


def main(given: str) -> int:
    folder = Path(given).absolute() if given else None
    if not (lacking := missing(folder)):
        return 0
    where = "PROGRAMS is not set" if folder is None else f"PROGRAMS={given} is not a folder"
    if folder is not None and folder.is_dir():
        where = f"PROGRAMS={given} lacks programs, or they are not executable"
    lines = "\n  ".join([f"test-operators: {where}. It runs the operators' own programs:", *lacking])
    print(f"{lines}\n{HOW}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
