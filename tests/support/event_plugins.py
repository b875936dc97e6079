# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugins of extensions/eda as ansible-rulebook loads them, and bodies of events (tests/fixtures/events.yml)."""

from __future__ import annotations

import copy
import json
import runpy
from typing import Any

import yaml

from support.paths import ROOT

EDA = ROOT / "extensions/eda"
FILTER: dict[str, Any] = runpy.run_path(str(EDA / "plugins/event_filter/node_event.py"))
SOURCE: dict[str, Any] = runpy.run_path(str(EDA / "plugins/event_source/node_conditions.py"))
SAMPLES: dict[str, dict[str, Any]] = {
    one["name"]: {**one, "body": json.loads(one["body"])}
    for one in yaml.safe_load((ROOT / "tests/fixtures/events.yml").read_text("utf-8"))
}
RULEBOOKS = sorted((EDA / "rulebooks").glob("*.yml"))


def body(name: str, node: str = "", now: str = "") -> Any:
    """A sender's body, about ``node``; ``now``: when NVSentinel has seen the fault."""
    sample = SAMPLES[name]
    made = json.loads(json.dumps(sample["body"]).replace(sample["node"], node or sample["node"]))
    if now and name == "nvsentinel":
        made["data"]["healthEvent"]["generatedTimestamp"] = now
    return copy.deepcopy(made)
