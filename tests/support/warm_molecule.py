# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""molecule, whose playbooks are processes of support.warm: ``python -m support.warm_molecule test ...``.

molecule is imported where it runs: the server of support.warm imports this file, and has no use for molecule.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import warm


def _run(
    self: Any, cmd: Sequence[str], env: dict[str, str] | None = None, cwd: Path | None = None, **_: Any
) -> subprocess.CompletedProcess[str]:
    """What ``molecule.app.App.run_command`` returns; its output is printed too."""
    run = warm.done(cmd, {**self.runtime.environ, **(env or {})}, folder=Path(cwd or "."))
    sys.stdout.write(run.stdout)
    sys.stdout.write(run.stderr)
    sys.stdout.flush()
    return run


def main() -> None:
    """Raises what molecule raises."""
    from molecule import app, shell

    app.App.run_command = _run
    shell.main()


if __name__ == "__main__":
    main()
