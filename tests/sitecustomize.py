# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python imports this by itself where the folder is on PYTHONPATH, as the Makefile puts it."""

from __future__ import annotations

import gc
import os
import sys

# pytest and Ansible make a million objects that live until they end: the collector looks at them less often.
gc.set_threshold(100_000, 50, 100)

if os.path.basename(sys.argv[0]).startswith("ansible"):  # noqa: PTH119 (pathlib takes longer to import)
    import support.ansible_bytecode  # noqa: F401
