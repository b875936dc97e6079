# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's own shapes, an option of all modules that take a shape."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  shapes_dir:
    description:
      - Folder with shape files (C(*.yml)) of the site's own hardware, in the format of files/topology. See
        docs/other-hardware.md. All errors of all files are reported at once.
      - Nodes are matched by instance type, by the label C(gpuops.rdma/shape), or by the labels in the file.
      - Tasks that read a plan use the plan's shapes.
    type: path
    default: ''
"""
