# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How to reach the cluster; author and attributes of a plugin that does."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
author:
- gpuops maintainers (@gpuops)
attributes:
  check_mode:
    description: Can run in check mode and return a prediction without changing the target.
    support: full
  diff_mode:
    description: Returns details of what changes when run in diff mode.
    support: full
  action:
    description: Runs on the control node.
    support: full
  action_group:
    description: Use C(group/gpuops.rdma.cluster) in C(module_defaults) to set connection options once.
    support: full
    membership:
      - gpuops.rdma.cluster
options:
  kubeconfig:
    description:
      - Path of a kubeconfig. Several paths joined by V(:) are merged.
      - The default is E(K8S_AUTH_KUBECONFIG), then E(KUBECONFIG), then C(~/.kube/config), then the pod's service
        account.
    type: path
  context:
    description: Context of the kubeconfig. The default is E(K8S_AUTH_CONTEXT), then the current context.
    type: str
  host:
    description: URL of the API server, instead of a kubeconfig. Also E(K8S_AUTH_HOST).
    type: str
  api_key:
    description: Bearer token to use with O(host). Also E(K8S_AUTH_API_KEY).
    type: str
  ca_cert:
    description: File with the CA certificate of O(host). Also E(K8S_AUTH_SSL_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  validate_certs:
    description: Whether to verify the API server's certificate. The default is V(true). Also E(K8S_AUTH_VERIFY_SSL).
    type: bool
    aliases: [verify_ssl]
"""
