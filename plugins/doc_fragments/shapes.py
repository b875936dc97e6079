# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's own shapes, an option of all modules that take a shape."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  shapes_dir:
    description:
      - Folder with shape files (C(*.yml)) of the site's own hardware, in the form of files/topology; see
        docs/other-hardware.md. All faults of all files are reported at once.
      - A node is of such a shape by its instance type, by the label C(gpuops.rdma/shape), or by the labels in the file.
      - Tasks that read a plan take the shapes that it was made with.
    type: path
    default: ''
"""
