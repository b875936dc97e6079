#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong, read out of the code: every finding with its id, every message of an error, every rule of hosts.

What a message fills in at run time is shown as an ellipsis. ``pages()`` gives the pages of the documentation's site.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("module_utils", "plugin_utils", "action", "inventory", "filter")
FILLED = "…"
FIELDS = ("id", "severity", "subject", "found", "expected", "remedy")
ERRORS = {
    "RdmaError", "InputError", "DataError", "ClusterError", "NotFound", "Forbidden", "Conflict", "Gone", "Unreachable",
    "WaitFailed", "Hopeless", "DeadlinePassed", "AnsibleParserError",
}  # fmt: skip
TITLES = {
    "preflight": "Before anything is changed",
    "plan": "The plan",
    "node": "Nodes",
    "gpu": "GPUs of a node",
    "nccl": "The NCCL test",
    "scan": "The scan",
    "perftest": "ib_write_bw",
    "oci": "OCI",
    "blueprint": "OCI AI Blueprints",
    "autoscaler": "Autoscaling",
    "vgpu": "vGPU",
    "serving": "Serving a model",
    "metrics": "Metrics",
    "pod-gpu": "Pods and their GPUs",
    "control_node": "The machine that runs Ansible",
}


FINDINGS = """\
A finding has an id: it stands in square brackets behind a problem of preflight, in `report.json`, and on the report's
page. An ellipsis stands for what is filled in at run time."""


@dataclass(frozen=True)
class Entry:
    """``ident`` is empty for an error that ends a task."""

    ident: str
    found: str
    expected: str = ""
    remedy: str = ""
    place: str = ""


@dataclass
class Emitter:
    """A function that makes a Finding out of its parameters: field -> (text before, place of the parameter)."""

    name: str
    prefix: str
    places: dict[str, int]
    names: dict[str, str]
    fixed: dict[str, str] = field(default_factory=dict)


# ---- texts of expressions ------------------------------------------------------------------------------------------


class Texts:
    """Turns expressions of one module into text. Names are looked up among the function's and module's assignments."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = _assigned(tree.body)
        self.local: dict[str, list[ast.expr]] = {}

    def within(self, function: ast.AST) -> None:
        self.local = defaultdict(list)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for name, value in _pairs(node):
                    self.local[name].append(value)

    def of(self, node: ast.expr | None, depth: int = 0) -> str:
        if node is None or depth > 6:
            return FILLED if node is not None else ""
        if isinstance(node, ast.Constant):
            return str(node.value) if isinstance(node.value, (str, int)) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self.of(part, depth + 1) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            inner = self.of(node.value, depth + 1) if isinstance(node.value, ast.Name) else FILLED
            return inner if " / " not in inner else FILLED
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.of(node.left, depth + 1) + self.of(node.right, depth + 1)
        if isinstance(node, ast.IfExp):
            return _either(self.of(node.body, depth + 1), self.of(node.orelse, depth + 1))
        if isinstance(node, ast.BoolOp):
            return _either(*(self.of(value, depth + 1) for value in node.values))
        if isinstance(node, ast.Name):
            return self._named(node.id, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            return re.sub(r"\{[^{}]*\}", FILLED, self.of(node.func.value, depth + 1))
        return FILLED

    def _named(self, name: str, depth: int) -> str:
        values = self.local.get(name) or ([self.module[name]] if name in self.module else [])
        texts = [self.of(value, depth + 1) for value in values]
        return _either(*texts) if texts else FILLED


def _either(*texts: str) -> str:
    return " / ".join(dict.fromkeys(text for text in texts if text)) or ""


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from ((t.id, v) for t, v in zip(target.elts, node.value.elts) if isinstance(t, ast.Name))


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    return {name: value for node in body if isinstance(node, ast.Assign) for name, value in _pairs(node)}


def _tidy(text: str) -> str:
    text = re.sub(rf"{FILLED}(\s*{FILLED})+", FILLED, " ".join(text.split()))
    return "" if text == FILLED else text


# ---- findings ------------------------------------------------------------------------------------------------------


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _fields(node: ast.Call) -> dict[str, ast.expr]:
    return {**dict(zip(FIELDS, node.args)), **{one.arg: one.value for one in node.keywords if one.arg}}


def _emitters(tree: ast.Module) -> dict[str, Emitter]:
    """Also those that only hand their parameters on to another emitter (two steps are enough here)."""
    found: dict[str, Emitter] = {}
    for _step in range(2):
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name not in found:
                emitter = _emitter(function, found)
                if emitter:
                    found[function.name] = emitter
    return found


def _emitter(function: ast.FunctionDef | ast.AsyncFunctionDef, known: dict[str, Emitter]) -> Emitter | None:
    parameters = [arg.arg for arg in function.args.args if arg.arg != "self"]
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        if name == "Finding":
            values, prefix = _fields(node), ""
        elif name in known:
            values, prefix = _handed(node, known[name]), known[name].prefix
        else:
            continue
        ident = values.get("id")
        own = _parameter(ident, parameters)
        empty = isinstance(ident, ast.Constant) and ident.value == ""
        found = _parameter(values.get("found"), parameters)
        if found is None or (own is None and not empty):
            continue
        lead = _lead(ident) if own is not None else ""
        places = {key: p for key, value in values.items() if (p := _parameter(value, parameters)) is not None}
        texts = {key: value.value for key, value in values.items()
                 if isinstance(value, ast.Constant) and isinstance(value.value, str)}  # fmt: skip
        if own is None:
            texts["id"] = ""
        return Emitter(function.name, prefix + lead, places, {k: parameters[p] for k, p in places.items()}, texts)
    return None


def _parameter(node: ast.expr | None, parameters: list[str]) -> int | None:
    if isinstance(node, ast.JoinedStr):
        inner = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        node = inner[0] if len(inner) == 1 else None
    if isinstance(node, ast.BoolOp):
        node = node.values[0]
    return parameters.index(node.id) if isinstance(node, ast.Name) and node.id in parameters else None


def _lead(node: ast.expr | None) -> str:
    if not isinstance(node, ast.JoinedStr):
        return ""
    first = node.values[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _handed(node: ast.Call, emitter: Emitter) -> dict[str, ast.expr]:
    words = {one.arg: one.value for one in node.keywords if one.arg}
    found: dict[str, ast.expr] = {key: ast.Constant(text) for key, text in emitter.fixed.items()}
    for key, place in emitter.places.items():
        if place < len(node.args):
            found[key] = node.args[place]
        elif emitter.names[key] in words:
            found[key] = words[emitter.names[key]]
    return found


def _checks(tree: ast.Module) -> dict[str, str]:
    """Function -> name of the check, of a module with a table CHECKS."""
    for node in ast.walk(tree):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == "CHECKS" and isinstance(value, ast.Dict):
            return {
                v.id: str(k.value)
                for k, v in zip(value.keys, value.values)
                if isinstance(k, ast.Constant) and isinstance(v, ast.Name)
            }
    return {}


def findings(tree: ast.Module, place: str) -> Iterator[Entry]:
    emitters, texts, checks = _emitters(tree), Texts(tree), _checks(tree)
    stem = Path(place).stem.lstrip("_")
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        texts.within(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = _called(node)
            if name == "Finding" and function.name not in emitters:
                values, prefix = _fields(node), ""
            elif name in emitters and name != function.name and function.name not in emitters:
                values, prefix = _handed(node, emitters[name]), emitters[name].prefix
            else:
                continue
            told = texts.of(values.get("id"))
            if not told and function.name in checks:
                told = f"{stem}.{checks[function.name]}"
            for ident in (prefix + one for one in told.split(" / ") if one):
                if FILLED not in ident:
                    yield Entry(ident, *(_tidy(texts.of(values.get(k))) for k in FIELDS[3:]), place)


def errors(tree: ast.Module, place: str) -> Iterator[Entry]:
    texts = Texts(tree)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            texts.within(function)
            for node in ast.walk(function):
                call = node.exc if isinstance(node, ast.Raise) else None
                if isinstance(call, ast.Call) and _called(call) in ERRORS and call.args:
                    text = _tidy(texts.of(call.args[0]))
                    if len(re.sub(rf"[{FILLED}\W]", "", text)) > 12:
                        yield Entry("", text, place=place)


# ---- everything ----------------------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[ast.Module, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / "plugins" / folder).glob("*.py")):
            yield ast.parse(path.read_text("utf-8")), path.relative_to(ROOT).as_posix()


def all_findings() -> list[Entry]:
    found = {entry for tree, place in sources() for entry in findings(tree, place)}
    return sorted(found, key=lambda entry: (entry.ident, entry.found, entry.expected, entry.remedy))


def all_errors() -> list[Entry]:
    found = {entry.found: entry for tree, place in sources() for entry in errors(tree, place)}
    return [found[text] for text in sorted(found, key=lambda text: text.strip(FILLED + " \"'`").lower())]


def host_rules() -> list[dict[str, str]]:
    return list(yaml.safe_load((ROOT / "files/host_rules.yml").read_text("utf-8"))["rules"])


def waits() -> dict[str, tuple[str, str]]:
    """What is waited for -> (what is expected, what to do)."""
    tree = ast.parse((ROOT / "plugins/action/wait.py").read_text("utf-8"))
    tables = {name: value for name, value in _assigned(tree.body).items() if name in ("REMEDY", "EXPECTED")}
    read = {name: ast.literal_eval(value) for name, value in tables.items()}
    return {key: (read["EXPECTED"].get(key, ""), text) for key, text in read["REMEDY"].items() if text}


def _code(text: str) -> str:
    return f"`{text}`" if text and "`" not in text else text


def _sentence(text: str) -> str:
    text = re.sub(r"<([^>]*)>", r"`<\1>`", text) if "`" not in text else text
    return (text[0].upper() + text[1:]).rstrip(".") + "." if text else ""


def _anchor(ident: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", ident.lower()).strip("-")


def _finding_page() -> str:
    groups: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in all_findings():
        head = re.split(r"[.-]", entry.ident)[0] if not entry.ident.startswith("pod-gpu") else "pod-gpu"
        groups[TITLES.get(head, "Shapes, labels and NICs of nodes")][entry.ident].append(entry)
    lines = ["# Findings", "", FINDINGS, ""]
    for title, entries in groups.items():
        lines += [f"## {title}", ""]
        for ident, ones in entries.items():
            lines += [f"({_anchor(ident)})=", f"### {ident}", ""]
            for one in ones:
                words = [_code(one.found) or "What is found is told with the finding."]
                words += [f"Expected: {_code(one.expected)}."] if one.expected else []
                words += [f"*{_sentence(one.remedy)}*"] if one.remedy else []
                lines += ["- " + " ".join(words)]
            lines += [""]
    lines += ["## Waits", "", "A wait that ends names the late nodes or objects, each with what it waits for.", ""]
    for key, (expected, remedy) in waits().items():
        about = f"Expected: {expected}. " if expected else ""
        lines += [f"- **{key}**: {about}*{re.sub('[{](.*?)[}]', FILLED, remedy)}*"]
    lines += ["", "## Hosts", "", "| rule | must hold | when it does not |", "|---|---|---|"]
    lines += [
        f"| `{rule['id']}` | {rule['what']} | {rule['remedy']} |".replace("\n", " ").replace("<", "&lt;")
        for rule in host_rules()
    ]
    return "\n".join(lines) + "\n"


def _message_page() -> str:
    lines = ["# Messages", "", "What ends a task, in the order of the alphabet, with the file that says it.", ""]
    letter = ""
    for entry in all_errors():
        first = next((c for c in entry.found.upper() if c.isalnum()), "#")
        if first != letter:
            letter = first
            lines += [f"## {letter}", ""]
        lines += [f"- {_code(entry.found)} ({Path(entry.place).stem.lstrip('_')})"]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"findings.md": _finding_page(), "messages.md": _message_page()}


if __name__ == "__main__":
    for text in pages().values():
        print(text)
