# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import one_run

# ``yaml.safe_load`` by libyaml, as the plugins read: the same documents in a tenth of the time.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """After a test that takes Leases or a folder's lock: the processes that keep them look for their end ten times a
    second, which were 26 CPU seconds in a run of all tests."""
    yield
    one_run.end()
