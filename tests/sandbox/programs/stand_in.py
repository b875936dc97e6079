#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in's controller as a program for ``sandbox up --real``; the links beside it are named after the operators."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gpuops_sandbox import program

if __name__ == "__main__":
    sys.exit(program.main(Path(sys.argv[0]).name))
