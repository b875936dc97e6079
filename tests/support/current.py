# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases of the profile current, for tests that hold for whichever it has."""

from __future__ import annotations

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files

GPU = str(files.profile("current")["gpu_operator"]["version"])
NETWORK = str(files.profile("current")["network_operator"]["version"])
CHART = NETWORK.removeprefix("v")
"""Its chart's version has no v."""
