# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How OCI is reached: options of all OCI plugins."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  auth_type:
    description:
    - How to authenticate. E(OCI_CLI_AUTH) is the default, else V(config).
    - V(config) uses a profile of the config file, V(security_token) its session token. V(config) also uses the session
      token if the profile has one and no user.
    - V(instance_obo_user) is for Cloud Shell. It uses the delegation token of the profile.
    - V(environment) uses the variables C(OCI_CLI_TENANCY), C(OCI_CLI_USER), C(OCI_CLI_FINGERPRINT), C(OCI_CLI_REGION)
      and C(OCI_CLI_KEY_FILE) or C(OCI_CLI_KEY_CONTENT).
    - The others use the principal of the instance, the resource or the pod.
    - E(OCI_CLI_AUTH) may also have the values of the OCI CLI. C(api_key) means V(environment) if the environment has a
      key, else V(config).
    type: str
    choices:
    - config
    - environment
    - security_token
    - instance_principal
    - instance_obo_user
    - resource_principal
    - workload_identity
  config_file:
    description: Config file of OCI. E(OCI_CLI_CONFIG_FILE) is the default, else C(~/.oci/config).
    type: path
  profile:
    description: Profile of the config file. E(OCI_CLI_PROFILE) is the default, else V(DEFAULT).
    type: str
  region:
    description: Region, instead of the profile's, such as V(eu-frankfurt-1) or V(fra).
    type: str
  service_endpoint:
    description: URL for requests to all services, instead of the region's endpoints.
    type: str
requirements:
- oci >= 2.179 on the control node
notes:
- C(module_defaults) of C(group/gpuops.rdma.oci) sets these options once for all modules.
"""
