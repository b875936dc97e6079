# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the API of OCI AI Blueprints is reached: options of all Blueprints plugins."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  url:
    description: Address of the API, C(https://api.<domain>), not of the portal. Required, except with
      O(state=linted) and O(state=nodes_listed).
    type: str
    default: ''
  username:
    description: User name of the login. Not needed with O(token).
    type: str
    default: ''
  password:
    description: Password of the login. It is sent to the API as a form, and never shown.
    type: str
    default: ''
  token:
    description: Token of an existing login, instead of O(username) and O(password).
    type: str
    default: ''
  verify_tls:
    description: Whether to verify the certificate of the API and of services that it deploys.
    type: bool
    default: true
  ca_path:
    description: File with the CA of the certificate. The default is the system's CAs.
    type: path
"""
