# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job of AWX shows and hands on: short lines, and artifacts also when the verdict fails the job."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from support.paths import ROOT

LONGEST = 1024
"""AWX shows so many bytes of an event (EVENT_STDOUT_MAX_BYTES_DISPLAY)."""
PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  vars:
    report_dir: "{folder}/{{{{ inventory_hostname }}}}"
    report_keep: artifact
  tasks:
    - gpuops.rdma.stage: {{state: begun, run_dir: "{{{{ report_dir }}}}/run"}}
    - gpuops.rdma.stage: {{state: started, name: preflight, run_dir: "{{{{ report_dir }}}}/run"}}
    - gpuops.rdma.stage:
        state: failed
        name: preflight
        run_dir: "{{{{ report_dir }}}}/run"
        error: "no\\rsuch\\u001b[2K node"
    - ansible.builtin.include_role: {{name: gpuops.rdma.report}}
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    play = folder / "play.yml"
    play.write_text(PLAY.format(folder=folder), encoding="utf-8")
    shown = {
        **os.environ,
        "ANSIBLE_SHOW_CUSTOM_STATS": "1",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    words = ["ansible-playbook", "-i", "east,west,", str(play)]
    # As bytes: in text mode Python would turn carriage returns into line ends.
    done = subprocess.run(words, env=shown, capture_output=True, timeout=900, check=False)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_statistics(output: str) -> dict[str, Any]:
    """``_run`` of the statistics: ansible-runner hands on this part alone, and AWX keeps it as artifacts."""
    found = re.search(r"RUN: (\{.*\})", output)
    assert found, output
    return dict(json.loads(found[1]))


def test_artifacts_of_a_failed_job(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode != 0
    assert "FAIL" in done.stdout
    stats = run_statistics(done.stdout)
    assert set(stats["rdma_report"]) == {"east", "west"}
    told = stats["rdma_report"]["east"]
    assert (told["verdict"], told["failed"]) == ("fail", True)
    assert told["bad_nodes"] == []
    page = gzip.decompress(base64.b64decode(stats["rdma_report_html"]["west"]))
    assert page == (tmp_path / "west" / "report.html").read_bytes()

    before_recap = done.stdout.split("PLAY RECAP")[0]
    assert "\r" not in before_recap
    lines = [line for line in before_recap.splitlines() if "ansible_stats" not in line]
    assert max(map(len, lines)) < LONGEST


def test_the_scan_of_a_workflow_leaves_out_clusters_that_did_not_fail(tmp_path: Path) -> None:
    """AWX hands artifacts on as extra variables. A cluster of which nothing is told is scanned."""
    (task,) = [
        task
        for task in yaml.safe_load((ROOT / "playbooks" / "nccl_scan.yml").read_text("utf-8"))[0]["tasks"]
        if task.get("ansible.builtin.meta") == "end_host"
    ]
    here = {"name": "Here", "ansible.builtin.debug": {"msg": "scans {{ inventory_hostname }}"}}
    play = {"hosts": "all", "gather_facts": False, "connection": "local", "tasks": [task, here]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    told = {"bad": {"verdict": "fail", "failed": True}, "well": {"verdict": "incomplete", "failed": False}}
    (tmp_path / "extra.json").write_text(json.dumps({"rdma_report": told}), encoding="utf-8")
    words = ["ansible-playbook", "-i", "bad,well,untold,", str(tmp_path / "play.yml")]
    for more, scanned in (["-e", f"@{tmp_path / 'extra.json'}"], {"bad", "untold"}), ([], {"bad", "well", "untold"}):
        done = subprocess.run([*words, *more], text=True, capture_output=True, timeout=900, check=True)
        assert set(re.findall(r"scans (\w+)", done.stdout)) == scanned
