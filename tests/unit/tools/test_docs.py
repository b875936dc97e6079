# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages and links of the documentation, the catalogue of what goes wrong, and the templates for what is new."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import OWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files
from support import page_runs
from support.paths import ROOT

TOOLS = ROOT / "tools"

import addresses
import catalogue
import page_commands
import picture
import site_pages
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, specs


def tool(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"tool_{name}", str(TOOLS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


# ---- pages and links -----------------------------------------------------------------------------------------------


def test_every_page_has_its_section_and_every_link_its_end():
    assert site_pages.faults() == []


def test_a_page_without_section_and_a_section_without_page_are_named(monkeypatch):
    listed = site_pages.sections()
    listed[0]["pages"] = ["no_such_page", *listed[0]["pages"][1:], "scan"]
    monkeypatch.setattr(site_pages, "sections", lambda: listed)
    faults = "\n".join(site_pages.section_faults())
    assert "docs/quickstart.md is in no section of tools/site/sections.yml" in faults
    assert "there is no docs/no_such_page.md" in faults
    assert "scan stands there 2 times" in faults
    assert "README.md, Documentation: its pages or their order are not those of tools/site/sections.yml" in faults


def test_links_that_lead_nowhere_are_named(tmp_path):
    shutil.copy(ROOT / "docs/scan.md", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "[a](none.md) [b](scan.md#no-such) [c](scan.md#results) `[d](x.md)` [e](https://example.com/x)\n"
        "```\n[f](y.md)\n```\n[g](../beyond.md)\n",
        "utf-8",
    )
    faults = list(site_pages.link_faults(page, tmp_path))
    assert [fault.split("links to ")[1] for fault in faults] == [
        "none.md, which is not there",
        "scan.md#no-such, and scan.md has no such heading",
        "../beyond.md, which is not there",
    ]


def test_links_of_the_site_lead_to_its_pages_or_to_the_repository():
    text = "[a](scan.md#x) [b](../files/models.yml) [c](../CONTRIBUTING.md) [d](https://example.com)"
    assert site_pages.rewritten(text, "docs", "https://r") == (
        "[a](scan.md#x) [b](https://r/blob/main/files/models.yml) [c](contributing.md) [d](https://example.com)"
    )
    assert site_pages.rewritten("[a](docs/scan.md) [b](LICENSE)", "", "https://r") == (
        "[a](scan.md) [b](https://r/blob/main/LICENSE)"
    )


BAD_PAGE = """\
`make tset`, `-e rdma_shap=H100` and `tests/no/such.py`, but not `ansible-playbook gpuops.rdma.nccl_scan ...`.

```
ansible-playbook hidden.yml
```

```shell
ansible-playbook gpuops.rdma.sight -i localhost, -c local
ansible-playbook gpuops.rdma.site -i localhost, --tag\\
s nccl_tset,plan -e rdma_mode=sriof  # a comment
ansible-playbook gpuops.rdma.site --no-such-option
ansible localhost -m gpuops.rdma.node_info -a '{"expected": 8, "nodez": []}'
kubectl apply -f 'unfinished
wget https://example.com/x
tests/sandbox/sandbox upp
```

```yaml
rdma_nodess: [a]
rdma_expected_nodes: many
```
"""


def test_commands_inputs_and_files_of_pages_that_do_not_exist_are_named(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(BAD_PAGE, "utf-8")
    for path in ("Makefile", "playbooks", "plugins", "tools", "tests"):
        (tmp_path / path).symlink_to(ROOT / path)
    monkeypatch.setattr(page_commands, "ROOT", tmp_path)
    faults = list(page_commands.page_faults(page))
    for place, words in (
        (1, "the Makefile has no target tset"),
        (1, "rdma_shap is no input"),
        (8, "there is no playbook gpuops.rdma.sight"),
        (9, "gpuops.rdma.site has no tag nccl_tset"),
        (9, "rdma_mode=sriof: value of rdma_mode must be one of"),
        (11, "ansible-playbook does not take these arguments"),
        (12, "gpuops.rdma.node_info takes no nodez"),
        (13, "cannot be read as a shell command"),
        (14, "wget is none of the programs"),
        (15, "tests/sandbox/sandbox does not take upp"),
        (4, "the block's language is not given"),
        (19, "rdma_nodess is no input"),
        (19, "rdma_expected_nodes=many"),
    ):
        found = [fault for fault in faults if fault.startswith(f"page.md:{place}: ") and words in fault]
        assert len(found) == 1, (place, words, faults)
        faults.remove(found[0])
    assert faults == ["page.md: there is no tests/no/such.py"]


def test_every_command_of_the_pages_is_run_by_a_test_or_has_a_reason(monkeypatch):
    assert list(page_runs.faults()) == []
    rows = [*page_runs.TABLE["elsewhere"], {"match": "no such command", "why": "none"}]
    monkeypatch.setitem(page_runs.TABLE, "elsewhere", [row for row in rows if "rdma.awx" not in row["match"]])
    faults = "\n".join(page_runs.faults())
    assert "docs/awx.md:18: no test runs ansible-playbook gpuops.rdma.awx" in faults
    assert "page_runs.yml: no page has no such command" in faults


def test_the_picture_is_up_to_date():
    assert picture.TARGET.read_text("utf-8") == picture.drawing(), "run tools/picture.py"


def test_every_input_of_the_playbooks_is_documented():
    pages = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("inputs.md", "awx.md"))
    used = {
        name
        for path in (ROOT / "playbooks").rglob("*.yml")
        for name in re.findall(r"\brdma_[a-z0-9_]*[a-z0-9]\b", path.read_text("utf-8"))
    }
    assert len(used) > 200
    assert {name for name in used if f"`{name}`" not in pages} <= {*OWN, "rdma_awx"}, "set by the playbooks themselves"


# ---- what goes wrong -----------------------------------------------------------------------------------------------


def test_every_finding_stands_in_the_page():
    page = catalogue.page()
    assert all(f"### {ident}\n" in page for ident in catalogue.findings())


def test_every_wait_stands_in_the_page():
    assert {"nodes", "vfs", "gpu_operator"} <= set(catalogue.waits())
    assert all(f"- **{name}**" in catalogue.page() for name in catalogue.waits())


# ---- what is new ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "meta").mkdir()
    shutil.copy(ROOT / "meta/runtime.yml", tmp_path / "meta")
    shutil.copytree(ROOT / "files/topology", tmp_path / "files/topology")
    return tmp_path


def new(checkout: Path, *words: str) -> int:
    return tool("new").main([*words, "--root", str(checkout)])


def test_a_new_shape_is_tested_and_documented_by_itself(checkout, monkeypatch):
    assert new(checkout, "shape", "BM.GPU.X.8", "--like", "BM.GPU.H200.8") == 0
    generate = tool("generate.py")
    shapes = {shape.name: shape for shape in generate.load(checkout / "files/topology")}
    assert generate.playbook_name(shapes["BM.GPU.X.8"]) == "bm_gpu_x_8.yml"
    assert generate.has_playbook(shapes["BM.GPU.X.8"])
    assert "BM.GPU.X.8" in generate.document(list(shapes.values()))
    (checkout / "tests/unit/nodes").mkdir(parents=True)
    shutil.copy(ROOT / "tests/unit/nodes/test_shape_files.py", checkout / "tests/unit/nodes")
    (checkout / "tests/support").mkdir()
    shutil.copy(ROOT / "tests/support/paths.py", checkout / "tests/support")
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/unit/nodes/test_shape_files.py",
        ],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": f"{ROOT / '.cache/collections'}:{checkout / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.count("[BM.GPU.X.8]") >= 5, found.stdout[-500:] + found.stderr


def test_a_copied_shape_says_that_nobody_has_looked_at_it(checkout):
    new(checkout, "shape", "BM.GPU.X.8", "--like", "BM.GPU.H200.8")
    document = yaml.safe_load((checkout / "files/topology/BM.GPU.X.8.yml").read_text("utf-8"))
    assert set(document["sources"].values()) == {"UNVERIFIED: copied from BM.GPU.H200.8"}
    assert shape_files.parse(document).name == "BM.GPU.X.8"


def test_no_shape_is_only_copied():
    marked = [path.name for path in (ROOT / "files/topology").glob("*.yml") if "UNVERIFIED" in path.read_text("utf-8")]
    assert marked == [], "change every value and its source, or write unknown"


UNDOCUMENTED = """\
def free(): ...
def told():
    "What it returns."
def _private(): ...
class Kind:
    def method(self): ...
    def _of_its_own(self): ...
class _Private:
    def method(self): ...
"""


def test_public_functions_without_a_docstring_are_named_and_fail_the_count(monkeypatch, capsys):
    count = tool("count")
    assert count.tally("plugins/x.py", UNDOCUMENTED).bare == ["plugins/x.py:1: free", "plugins/x.py:6: method"]
    monkeypatch.setattr(sys, "argv", ["count"])
    monkeypatch.setattr(count, "contents", lambda _revision: {"plugins/action/x.py": UNDOCUMENTED})
    assert count.main() == 1
    assert capsys.readouterr().err.startswith("plugins/action/x.py:1: free has no docstring\n")
    monkeypatch.setattr(count, "contents", lambda _revision: {"plugins/action/x.py": "def told(): 'Returns it.'"})
    assert count.main() == 0


def test_a_new_role_passes_the_check_of_roles(checkout, monkeypatch):
    assert new(checkout, "role", "gpu_burn") == 0
    written = tool("options.py").role_outputs(checkout)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert set(yaml.safe_load(written[checkout / "roles/gpu_burn/defaults/main.yml"])) == {
        "gpu_burn_nodes",
        "gpu_burn_selector",
    }
    check_docs = tool("check_docs")
    monkeypatch.setattr(check_docs, "ROOT", checkout)
    assert list(check_docs.check_role("gpu_burn")) == []
    for path in checkout.rglob("*.yml"):
        yaml.safe_load(path.read_text("utf-8"))
    assert (checkout / "extensions/molecule/gpu_burn/verify.yml").is_file()


def test_a_new_module_gets_its_argument_spec_from_its_documentation(checkout):
    assert new(checkout, "module", "gpu_burn", "--package", "sharing") == 0
    listed = yaml.safe_load((checkout / "meta/runtime.yml").read_text("utf-8"))["action_groups"]
    assert "gpu_burn" in listed["cluster"] and listed["cluster"] == sorted(listed["cluster"])
    assert "gpu_burn" not in listed["oci"]
    stub = (checkout / "plugins/modules/gpu_burn.py").read_text("utf-8")
    texts = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(stub).body
        if isinstance(node, ast.Assign)
    }
    known = specs.options("gpu_burn", checkout / "plugins")
    documented = yaml.safe_load(texts["DOCUMENTATION"])
    assert argspec.spec(known, "gpu_burn")["nodes"] == {"type": "list", "elements": "str", "default": []}
    assert set(known) == {*documented["options"], *specs.fragment("auth")}
    assert any("gpuops.rdma.gpu_burn" in task for task in yaml.safe_load(texts["EXAMPLES"]))
    for path in checkout.rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["role", "Burn-In"], "small letters"),
        (["shape", "H300", "--like", "BM.GPU.H200.8"], "named like BM.GPU.H100.8"),
        (["module", "x"], "--package must be one of core, "),
        (["shape", "BM.GPU.X.8"], "--like must be one of BM.GPU.A100-v2.8"),
        (["shape", "BM.GPU.H100.8", "--like", "BM.GPU.H200.8"], "is there already"),
    ],
)
def test_what_cannot_be_new_is_refused(checkout, capsys, words, told):
    assert new(checkout, *words) == 2
    assert told in capsys.readouterr().err


def test_a_host_that_cannot_be_reached_says_nothing_of_its_addresses():
    def line(uri: str, status: str = "broken", info: str = "") -> str:
        return json.dumps({"filename": "a.md", "lineno": 3, "status": status, "code": 0, "uri": uri, "info": info})

    away = "HTTPSConnectionPool(host='a.example.com', port=443): ... (Caused by NameResolutionError(...))"
    lines = [
        line("https://a.example.com/1", info=away),
        line("https://a.example.com/2", info=away),
        line("https://b.example.com/", "working"),
        line("https://b.example.com/gone", info="404 Client Error: Not Found"),
        line("https://b.example.com/x.", "working"),
        line("mailto:user@host", "unchecked"),
        line("#heading", "unchecked"),
        line("http://localhost:8000/", "ignored"),
    ]
    faults, answered = addresses.read("\n".join(lines))
    assert faults == [
        "a.md:3: https://b.example.com/x. is badly written",
        "a.md:3: https://b.example.com/gone: 404 Client Error: Not Found",
        "not checked: a.example.com cannot be reached from here; addresses there: 2",
    ]
    assert answered == 2
    bad = ("https://a.b/c d", "http://ab/", "https://a.b:x/", "https://a.b/[x]", "ftp://a.b/", "https://a.b/%zz")
    assert not any(map(addresses.well_formed, bad))
    assert addresses.well_formed("https://a.example.com:8443/a/b.yml?c=d#e")


# ---- releases ------------------------------------------------------------------------------------------------------


def test_a_release_is_held_up_by_what_is_in_its_way(monkeypatch):
    release = tool("release")
    monkeypatch.setattr(release, "current", lambda: "0.2.0")
    monkeypatch.setattr(release, "recorded", lambda: {"0.2.0"})
    monkeypatch.setattr(release, "added", lambda: {"0.2.0": ["modules/old.py"], "0.10.0": ["modules/new.py"]})
    assert list(release.written("0.10.0", ["a.yml"])) == []
    assert next(release.written("0.2", ["a.yml"])) == "0.2 is no version; write it as 0.2.0"
    assert next(release.written("0.2.0", ["a.yml"])) == "0.2.0 is released already"
    assert "older than 0.2.0" in next(release.written("0.1.9", ["a.yml"]))
    assert list(release.written("0.10.0", [])) == ["changelogs/fragments is empty: nothing to release"]
    (early,) = release.written("0.3.0", ["a.yml"])
    assert early == "version_added: 0.10.0 is no release, and 0.3.0 is to be one: modules/new.py"
    assert list(release.built("0.2.0", [])) == []
    assert list(release.built("0.2.0", ["a.yml"])) == ["fragments that are in no release: a.yml"]
    assert len(list(release.built("0.3.0", []))) == 2


def test_every_plugin_names_a_release_or_the_next_one():
    release = tool("release")
    assert set(release.added()) <= {release.current(), *release.recorded()}


def test_newer_versions_are_told_and_nothing_is_asked_twice(monkeypatch):
    updates = tool("updates")
    asked: list[str] = []
    monkeypatch.setattr(updates, "latest", lambda name: asked.append(name) or ("9.9" if name == "ruff" else ""))
    told = list(updates.packages())
    assert any(re.fullmatch(r"requirements-dev\.txt: ruff \S+ -> 9\.9", line) for line in told)
    assert any("has no answer" in line for line in told)
    assert len(asked) == len(set(asked))
    go_mod = (ROOT / "tests/sandbox/controlplane/go.mod").read_text("utf-8")
    assert {"k8s.io/kubernetes", "helm.sh/helm/v3", "sigs.k8s.io/kwok"} <= set(updates.of_tools(go_mod))
