# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Author and attributes of a plugin that shows no diff; ``.diff`` and ``.read_only`` stand before it for one that does,
or that has none to show. List them before gpuops.rdma.auth: of attributes those of the fragment listed first count."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
author:
- gpuops maintainers (@gpuops)
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return a prediction without changing the target.
    support: full
  diff_mode:
    description: Returns details of what changes when run in diff mode.
    support: none
  action:
    description: Runs on the control node.
    support: full
"""

    DIFF = r"""
options: {}
attributes:
  diff_mode:
    support: full
"""

    READ_ONLY = r"""
options: {}
attributes:
  diff_mode:
    details: Nothing is changed.
"""
