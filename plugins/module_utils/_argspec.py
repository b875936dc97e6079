# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that every plugin shares. PRIVATE to the collection. Names are those of kubernetes.core."""

from __future__ import annotations

from typing import Any

AUTH: dict[str, Any] = {
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "host": {"type": "str"},
    "api_key": {"type": "str", "no_log": True},
    "ca_cert": {"type": "path", "aliases": ["ssl_ca_cert"]},
    "validate_certs": {"type": "bool", "aliases": ["verify_ssl"]},
}


def with_auth(spec: dict[str, Any]) -> dict[str, Any]:
    return {**AUTH, **spec}
