# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which action a fault of a node asks for: files/repair.yml. PRIVATE to the collection. Pure.

::

    table(document) -> RepairTable
    table.of(kind, name, text) -> RepairRule     of a condition, label, finding or proof, by the Xids of its text first
    table.strongest(rules) -> RepairRule
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

CONDITION, LABEL, FINDING, PROOF = "condition", "label", "finding", "proof"
REBOOT, REPLACE = "reboot", "replace"
ASK = "ask"
_XID = re.compile(r"\bXids?\b(?: errors?| codes?)?[\s:=#]*((?:\d{1,3}(?:,\s*|\s+and\s+)?)+)", re.IGNORECASE)


@dataclass(frozen=True)
class RepairAction:
    """``does``: reboot or replace, "" for what only a person does: ``person``, in which {node} is the node's name."""

    name: str
    does: str = ""
    person: str = ""


@dataclass(frozen=True)
class RepairRule:
    """``action``: name of a RepairAction. ``source``, ``contradicts``: of this choice."""

    action: str = ASK
    source: str = ""
    contradicts: str = ""


@dataclass(frozen=True)
class RepairTable:
    """``actions`` from the weakest to the strongest; ``rules``: kind -> name -> rule; ``xids``: number -> rule."""

    actions: tuple[RepairAction, ...]
    rules: dict[str, dict[str, RepairRule]]
    xids: dict[int, RepairRule]

    def action(self, name: str) -> RepairAction:
        """The action of that name."""
        return next(one for one in self.actions if one.name == name)

    def does(self, name: str) -> str:
        """What is done for the action of that name, "" also for one that the table does not have any more."""
        return next((one.does for one in self.actions if one.name == name), "")

    def strongest(self, rules: Iterable[RepairRule]) -> RepairRule:
        """The rule whose action stands last in the table."""
        order = [one.name for one in self.actions]
        return max(rules, key=lambda rule: order.index(rule.action))

    def of(self, kind: str, name: str, text: str = "") -> RepairRule:
        """The rule for a fault: of the Xids that its text names, else of its name; "ask" for an unknown one."""
        numbers = xids(text)
        if numbers:
            return self.strongest(self.xids.get(number, RepairRule()) for number in numbers)
        known = self.rules.get(kind, {})
        fitting = (rule for key, rule in known.items() if key.endswith(".") and name.startswith(key))
        return known.get(name) or next(fitting, RepairRule())


def table(document: Json) -> RepairTable:
    """The table of the document of files/repair.yml."""
    kinds = {CONDITION: "conditions", LABEL: "labels", FINDING: "findings", PROOF: "proofs"}
    rules = {
        kind: {name: _rule(one) for one in document[part] for name in one["names"]} for kind, part in kinds.items()
    }
    numbers = {number: _rule(one) for one in document["xids"] for number in one["xids"]}
    return RepairTable(tuple(RepairAction(**one) for one in document["actions"]), rules, numbers)


def _rule(one: Json) -> RepairRule:
    return RepairRule(one["action"], one.get("source", ""), one.get("contradicts", ""))


def xids(text: str) -> list[int]:
    """The Xids that a text names: ``Xid 79``, ``XID: 79``, ``Xid (PCI:0000:0f:00): 79``, ``Xids 31, 79``."""
    plain = re.sub(r"\([^()]*\)", "", text)
    return [int(number) for found in _XID.findall(plain) for number in re.findall(r"\d+", found)]
