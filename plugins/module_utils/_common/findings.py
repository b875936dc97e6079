# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only constructor of findings. PRIVATE to the collection.

What all findings of an id share is defined in files/findings.yml, and for host rules in files/host_rules.yml.
"""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings_table import TABLE
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding


def finding(
    ident: str,
    subject: str,
    found: str,
    *,
    expected: str = "",
    remedy: Optional[str] = None,
    severity: str = "",
    stage: str = "",
) -> Finding:
    """A finding of the catalogue's entry ``ident``. Raises KeyError for an unknown one.

    ``remedy``, ``severity`` and ``stage`` override the entry's own where they depend on the case; a ``remedy`` of ""
    omits it.
    """
    usual_severity, usual_stage, usual_remedy = TABLE[ident]
    return Finding(
        id=ident,
        severity=severity or usual_severity,
        subject=subject,
        found=found,
        expected=expected,
        remedy=usual_remedy.replace("{subject}", subject) if remedy is None else remedy,
        stage=stage or usual_stage,
    )
