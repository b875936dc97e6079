# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the unit tests."""

from __future__ import annotations

import hypothesis

# hypothesis gives an example 200 ms by default, which a busy machine exceeds; benches time things.
hypothesis.settings.register_profile("gpuops", deadline=None)
hypothesis.settings.load_profile("gpuops")
