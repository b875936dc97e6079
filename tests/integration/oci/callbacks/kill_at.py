# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the names of a run's tasks into KILL_TRACE, and ends the run's process group when task KILL_AT begins."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: kill_at
type: aggregate
short_description: Ends a run at a task
description: For tests of what a killed run leaves.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "kill_at"

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self.count += 1
        with Path(os.environ["KILL_TRACE"]).open("a", encoding="utf-8") as trace:
            trace.write(f"{task.get_name()}\n")
        if self.count == int(os.environ.get("KILL_AT", "0")):
            os.killpg(0, signal.SIGKILL)
