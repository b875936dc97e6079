# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sphinx's settings; tools/docs_site puts this file beside the pages."""

from __future__ import annotations

project = "gpuops.rdma"
author = copyright = "gpuops.rdma contributors"
title = html_title = html_short_title = "gpuops.rdma"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
pygments_style = "ansible"
highlight_language = "text"
html_theme = "sphinx_ansible_theme"
html_theme_options = {"navigation_depth": 3, "vcs_pageview_mode": "blob"}
html_show_sphinx = False
html_copy_source = False
html_use_smartypants = True
nitpicky = False
# Only `make linkcheck` asks the network. A single request at a time per host; what needs a login cannot be checked.
linkcheck_timeout = 15
linkcheck_retries = 2
linkcheck_workers = 2
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|api\.198-51-100-7\.nip\.io)"]
