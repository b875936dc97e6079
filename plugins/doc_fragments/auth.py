# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How to reach the cluster, told once."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig. Several paths joined by V(:) are merged.
      - Without it E(K8S_AUTH_KUBECONFIG), then E(KUBECONFIG), then C(~/.kube/config), then the pod's service account.
    type: path
  context:
    description: Context of the kubeconfig. Without it E(K8S_AUTH_CONTEXT), then the current context.
    type: str
  host:
    description: URL of the API server; used instead of a kubeconfig. Also E(K8S_AUTH_HOST).
    type: str
  api_key:
    description: Bearer token to use with O(host). Also E(K8S_AUTH_API_KEY).
    type: str
  ca_cert:
    description: File with the CA certificate of O(host). Also E(K8S_AUTH_SSL_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  validate_certs:
    description: Whether the API server's certificate is checked. Also E(K8S_AUTH_VERIFY_SSL). On by default.
    type: bool
    aliases: [verify_ssl]
"""
