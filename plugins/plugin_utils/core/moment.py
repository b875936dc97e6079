# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Times as Kubernetes and the documents of this collection write them: RFC 3339, in UTC. PRIVATE to the collection."""

from __future__ import annotations

import datetime
from typing import Any, Optional


def stamp(moment: datetime.datetime) -> str:
    """``2026-01-31T12:00:00Z``. ``moment`` is in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """The present, by this machine's clock."""
    return stamp(datetime.datetime.now(datetime.timezone.utc))


def parsed(value: Any) -> Optional[datetime.datetime]:
    """The time that a text gives; None for any other, and for one without a time zone."""
    try:
        found = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None
