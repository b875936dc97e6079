# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of the site: which there are, in which section, and what their links become. Also checks links in the
repository, without Sphinx."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ROOT / "tools/site/sections.yml"
BROUGHT = {"contributing": "CONTRIBUTING.md"}
"""Pages that stand elsewhere in the repository."""
MADE = {"reference/index"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEAD = """\
# gpuops.rdma

Takes the GPU nodes of a Kubernetes cluster from "booted" to "proven": operators installed, a virtual function on every
RDMA port, GPUDirect RDMA, and an NCCL test whose verdict names the bad node.

![The report of a run with faults: verdict first, the all-reduce curve, nodes worst first](report.png)

"""


def sections() -> list[dict[str, Any]]:
    return list(yaml.safe_load(SECTIONS.read_text("utf-8")))


def documents() -> list[Path]:
    """All Markdown files that users read."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md")]
    return sorted([*found, ROOT / "tests/sandbox/README.md", ROOT / "tests/consumer/README.md"])


def faults() -> list[str]:
    return [*section_faults(), *(fault for path in documents() for fault in link_faults(path))]


def section_faults() -> Iterator[str]:
    listed = Counter(page for section in sections() for page in section["pages"])
    there = {path.stem for path in (ROOT / "docs").glob("*.md")}
    where = SECTIONS.relative_to(ROOT)
    yield from (f"docs/{page}.md is in no section of {where}" for page in sorted(there - set(listed)))
    yield from (f"{where}: there is no docs/{page}.md" for page in sorted(set(listed) - there - set(BROUGHT) - MADE))
    yield from (f"there is no {name}" for name in BROUGHT.values() if not (ROOT / name).is_file())
    yield from (f"{where}: {page} stands there {count} times" for page, count in listed.items() if count > 1)
    reached = reachable()
    yield from (f"docs/{page}.md is reached by no link from README.md" for page in sorted(there - reached))
    index = (ROOT / "README.md").read_text("utf-8").partition("\n## Documentation\n")[2]
    order = re.findall(r"\]\(docs/([\w-]+)\.md\)", index)
    if order != [page for page in listed if page in there]:
        yield f"README.md, Documentation: its pages or their order are not those of {where}"


def reachable() -> set[str]:
    """The pages of docs/ that a reader finds by links, from README.md on."""
    found: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path not in found and path.suffix == ".md" and path.is_file():
            found.add(path)
            left += [(path.parent / target.partition("#")[0]).resolve() for target in links(path.read_text("utf-8"))]
    return {path.stem for path in found if path.parent == ROOT / "docs"}


# ---- links ---------------------------------------------------------------------------------------------------------


def link_faults(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Links to files and headings of the repository that are not there."""
    place = path.relative_to(root)
    for target in links(path.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _mark, heading = target.partition("#")
        other = (path.parent / name).resolve() if name else path
        if not other.is_relative_to(root) or not other.exists():
            yield f"{place}: links to {target}, which is not there"
        elif heading and other.suffix == ".md" and heading not in anchors(other.read_text("utf-8")):
            yield f"{place}: links to {target}, and {other.name} has no such heading"


def links(text: str) -> list[str]:
    return [found[1] for found in LINK.findall(FENCE.sub("", text))]


def anchors(text: str) -> set[str]:
    """As GitHub and MyST make them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rewritten(text: str, folder: str, repository: str) -> str:
    """The text of a page of ``folder`` ("docs" or ""), with links that fit the site: to its pages, else to the
    repository."""

    def one(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        name, mark, heading = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return found.group()
        parts: list[str] = []
        for part in f"{folder}/{name}".strip("/").split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        place = "/".join(parts)
        if place in BROUGHT.values():
            return f"{before}{next(k for k, v in BROUGHT.items() if v == place)}.md{mark}{heading}{after}"
        if place.startswith("docs/"):
            return f"{before}{place[5:]}{mark}{heading}{after}"
        return f"{before}{repository}/blob/main/{place}{mark}{heading}{after}"

    return LINK.sub(one, text)


# ---- pages ---------------------------------------------------------------------------------------------------------


def write(target: Path) -> None:
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text("utf-8"))["repository"]
    for path in (ROOT / "docs").iterdir():
        if path.suffix == ".md":
            (target / path.name).write_text(rewritten(path.read_text("utf-8"), "docs", repository), "utf-8")
        elif path.is_file():
            shutil.copy(path, target)
    for page, name in BROUGHT.items():
        (target / f"{page}.md").write_text(rewritten((ROOT / name).read_text("utf-8"), "", repository), "utf-8")
    (target / "index.md").write_text(HEAD + "\n".join(tree(one) for one in sections()), "utf-8")


def tree(section: Mapping[str, Any]) -> str:
    pages = "\n".join(section["pages"])
    return f"```{{toctree}}\n:caption: {section['title']}\n:maxdepth: 1\n\n{pages}\n```\n"


if __name__ == "__main__":
    found = faults()
    print("\n".join(found) or "documentation: every page has its section, every internal link its end")
    sys.exit(1 if found else 0)
