#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make fuzz: damaged input for every reader, for --seconds in all. Exit 1 when a case fails; each failure has its seed.

--target NAME          of this one only (several times for more)
--seed N               begin with this case; without it, a fresh number, which is printed
--case TARGET:SEED     one case, with its traceback
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".cache" / "collections"), str(ROOT / "tests"), str(ROOT / "tests" / "sandbox")]

from support import fuzz

SHOWN = 5
"""Different failures of a target that are printed."""


def target(name: str, first: int, seconds: float) -> int:
    """Prints a line about the target's cases; returns the number of different failures."""
    began, cases, longest = time.monotonic(), 0, (0.0, first)
    failures: dict[str, list[int]] = {}
    while time.monotonic() - began < seconds:
        seed, at = first + cases, time.monotonic()
        wrong = fuzz.run(name, seed)
        longest = max(longest, (time.monotonic() - at, seed))
        cases += 1
        if wrong:
            failures.setdefault(wrong[:60], []).append(seed)
    spent = time.monotonic() - began
    slow = f"longest {longest[0]:.2f} s ({name}:{longest[1]})"
    print(f"{name:<14} {cases:>8} cases  {cases / spent:>7.0f}/s  {len(failures)} failures  {slow}", flush=True)
    for wrong, seeds in list(failures.items())[:SHOWN]:
        print(f"    {wrong}   make fuzz CASE={name}:{seeds[0]}   ({len(seeds)} cases)", flush=True)
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", action="append", choices=sorted(fuzz.TARGETS))
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--case", default="")
    args = parser.parse_args()
    if args.case:
        name, _, seed = args.case.partition(":")
        fuzz.TARGETS[name](random.Random(f"{name}:{seed}"))
        return 0
    names = args.target or list(fuzz.TARGETS)
    print(f"fuzz: {len(names)} targets, {args.seconds:.0f} s, seeds from {args.seed}", flush=True)
    return min(1, sum(target(name, args.seed, args.seconds / len(names)) for name in names))


if __name__ == "__main__":
    sys.exit(main())
