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
    - V(config) uses a profile of the config file, V(security_token) the session token of one; V(config) does that
      too where the profile has a session token and no user.
    - V(instance_obo_user) is the way of Cloud Shell, with the delegation token that the profile names.
    - V(environment) uses the variables C(OCI_CLI_TENANCY), C(OCI_CLI_USER), C(OCI_CLI_FINGERPRINT), C(OCI_CLI_REGION)
      and C(OCI_CLI_KEY_FILE) or C(OCI_CLI_KEY_CONTENT).
    - The others use what the instance, the resource or the pod is given by OCI.
    - E(OCI_CLI_AUTH) may have the values of the OCI CLI too, of which C(api_key) is
      V(environment) where the environment has a key, else V(config).
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
    description: Region, instead of that of the profile, as V(eu-frankfurt-1) or V(fra).
    type: str
  service_endpoint:
    description: URL that all services are asked at, instead of those of the region.
    type: str
requirements:
- oci >= 2.179 on the control node
notes:
- C(module_defaults) of C(group/gpuops.rdma.oci) sets these options once for all modules.
"""
