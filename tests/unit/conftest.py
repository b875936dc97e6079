# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the unit tests."""

from __future__ import annotations

import hypothesis
import yaml

# hypothesis gives an example 200 ms by default, which a busy machine exceeds; benches time things.
hypothesis.settings.register_profile("gpuops", deadline=None)
hypothesis.settings.load_profile("gpuops")

# ``yaml.safe_load`` by libyaml, as the plugins read: the same documents in a tenth of the time.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
