# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the API of OCI AI Blueprints is reached: options of all Blueprints plugins."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  url:
    description: Address of the API, C(https://api.<domain>); not that of the portal.
    type: str
    required: true
  username:
    description: Who logs in, with O(password). Not needed with O(token).
    type: str
    default: ''
  password:
    description: Sent by form to the API's login, and never shown.
    type: str
    default: ''
  token:
    description: Token of an earlier login, instead of O(username) and O(password).
    type: str
    default: ''
  verify_tls:
    description: Whether the certificate of the API, and of services that it deploys, is checked.
    type: bool
    default: true
  ca_path:
    description: File with the CA that signed it; those of the system by default.
    type: path
"""
