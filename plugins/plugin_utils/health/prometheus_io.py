# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instant queries of Prometheus. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import metrics
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.metrics import MetricSample, MetricTable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import http

TIMEOUT = 30


@dataclass(frozen=True)
class Prometheus:
    """``url``: of the server, without ``/api/v1``; ``token_file``: a bearer token, "" = none; ``ca_file``: "" = the
    machine's."""

    url: str
    token_file: str = ""
    ca_file: str = ""

    def query(self, text: str) -> list[MetricSample]:
        """The samples of an instant query. InputError if Prometheus cannot be asked or answers something else."""
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise InputError("rdma_health_prometheus has a user or password: use rdma_health_prometheus_token_file.")
        headers = {"Accept": "application/json"}
        if self.token_file:
            headers["Authorization"] = f"Bearer {self._token()}"
        asked = f"{self.url.rstrip('/')}/api/v1/query?{urlencode({'query': text})}"
        try:
            answer = http.ask(asked, headers, TIMEOUT, ca_path=self.ca_file)
            if answer.status == 200:
                return metrics.samples(json.loads(answer.body))
            why = f"it answers {answer.status} {answer.reason}"
        except (DataError, Unreachable, ValueError) as error:
            why = str(error)
        raise InputError(
            f"Cannot query Prometheus at {self.url} ({text}): {why}. Check rdma_health_prometheus, its token and CA."
        )

    def _token(self) -> str:
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot read rdma_health_prometheus_token_file {self.token_file}: {error}.") from None
        TASK.learn([token], whole=True)
        return token

    def findings(self, table: MetricTable, gpus: Mapping[str, int]) -> list[Finding]:
        """What all queries of the table tell of the nodes in ``gpus``, node -> number of its GPUs."""
        found = {fault.query: self.query(fault.query) for fault in table.faults}
        return list(metrics.judged(table, gpus, self.query(table.present), found))
