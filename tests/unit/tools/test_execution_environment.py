# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lists of requirements agree: for users, for execution environments, for AWX projects and for Galaxy."""

from __future__ import annotations

import re
from typing import Any

import yaml
from support.paths import ROOT

DOCS = ROOT / "docs"


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def lines(name: str) -> set[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return {line.partition("#")[0].strip() for line in text.splitlines()} - {""}


def test_the_image_has_what_users_install_and_more() -> None:
    own = load("meta/execution-environment.yml")["dependencies"]
    assert lines("requirements.txt") < lines(own["python"])
    assert (ROOT / own["system"]).is_file()


def test_oci_is_bounded_as_its_modules_say() -> None:
    documented = (ROOT / "plugins/doc_fragments/oci.py").read_text(encoding="utf-8")
    bound = re.findall(r"^- oci >= ([\d.]+) ", documented, re.MULTILINE)
    assert [f"oci>={bound[0]}"] == [line for line in lines("meta/ee-requirements.txt") if line.startswith("oci>")]


def test_the_kubernetes_package_is_bounded_alike_everywhere() -> None:
    """oci-cli pins a PyYAML with which a resolver takes 36.0.0, which drops every bearer token, where it may."""
    names = [
        "requirements.txt",
        "meta/ee-requirements.txt",
        "README.md",
        *(f"docs/{p.name}" for p in DOCS.glob("*.md")),
    ]
    found = {name: set(re.findall(r"\bkubernetes([<>=!][^\s'`]*)", (ROOT / name).read_text("utf-8"))) for name in names}
    assert {bound.removeprefix(">=31.0,") for bounds in found.values() for bound in bounds} == {"<37,!=36.0.0"}
    assert {"requirements.txt", "meta/ee-requirements.txt", "README.md", "docs/quickstart.md", "docs/howto_oke.md"} <= {
        name for name, bounds in found.items() if bounds
    }


def test_collections_are_bounded_alike_everywhere() -> None:
    galaxy = load("galaxy.yml")
    wanted = {item["name"]: item["version"] for item in load("requirements.yml")["collections"]}
    image = load("execution-environment.yml")["dependencies"]["galaxy"]["collections"]
    assert wanted == galaxy["dependencies"]
    own = {f"{galaxy['repository']}.git": "main"}
    assert {item["name"]: item["version"] for item in image} == {**wanted, **own}


def test_the_image_checks_itself_and_pins_the_runner() -> None:
    image = load("execution-environment.yml")
    assert image["dependencies"]["ansible_runner"]["package_pip"] == "ansible-runner>=2.4.2"
    last = image["additional_build_steps"]["append_final"][-1]
    assert last.startswith("RUN ansible localhost -m gpuops.rdma.control_node ")
    assert "install=true" in last
    assert "cluster=false" in last


def test_ansible_core_of_the_image_is_supported() -> None:
    least = re.findall(r">=(2\.\d+)", load("meta/runtime.yml")["requires_ansible"])[0]
    core = re.findall(r">=(2\.\d+)", load("execution-environment.yml")["dependencies"]["ansible_core"]["package_pip"])[
        0
    ]
    assert [int(part) for part in core.split(".")] >= [int(part) for part in least.split(".")]
    assert f"ansible-core>={least}" in lines("requirements.txt")
