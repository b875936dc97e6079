# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For all tests."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester", "support.skips"]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("gpuops", deadline=None)
settings.load_profile("gpuops")
