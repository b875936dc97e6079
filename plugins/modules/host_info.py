#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Read the facts of a GPU host that RDMA and GPUDirect depend on
version_added: 0.1.0
author:
  - gpuops.rdma contributors (@gpuops)
description:
  - Reads driver, NIC stack, PCI, VFs, GPUDirect, limits and counters of a host and returns them as one document, whose
    keys, types, units and files are in C(docs/host_document.md).
  - Starts no process and changes nothing on the host.
  - Unreadable values are C(null), with the reason in C(host.unread). The module fails only if O(host_root) is not a
    host.
  - Root can read more than other users, for example PCI configuration space beyond 64 bytes (ACS, relaxed ordering).
options:
  host_root:
    description:
      - Root of the host. Set it to read a mounted host or a tree that O(collect) has saved.
      - It must have C(proc) and C(sys). Links are resolved inside it.
    type: path
    default: /
  interval:
    description: Seconds, at most 3600, between two readings of the counters. V(0) reads them once, without C(delta).
    type: float
    default: 0
  collect:
    description:
      - Path of a tar file to write on the managed node. It contains only the files that were read, so that the host can
        be checked elsewhere.
      - Configuration files, logs and the kernel's command line are reduced to the relevant lines. The host's name and
        MAC addresses are included.
      - Not written in check mode.
    type: path
  pci:
    description:
      - Add the section C(pci) with the bridges above GPUs and NICs. P(gpuops.rdma.nccl_topology#module) needs it.
      - A tree that O(collect) saves always has these files.
    type: bool
    default: false
requirements:
  - Python 3.8 on the managed node. Where there is none, use the role P(gpuops.rdma.host_checks_daemonset#role).
attributes:
  check_mode:
    description: Can run in check mode and return a prediction without changing the target.
    support: full
  diff_mode:
    description: Returns details of what changes when run in diff mode.
    support: none
  platform:
    description: Target operating systems.
    support: full
    platforms: linux
"""

EXAMPLES = r"""
- name: Read the host
  gpuops.rdma.host_info:
  become: true
  register: read

- name: Stop if NCCL would use host memory
  ansible.builtin.assert:
    that: read.host.gpudirect.path in ['dmabuf', 'peermem']
    fail_msg: "{{ read.host.gpudirect.why }}"

- name: Read the counters twice, ten seconds apart
  gpuops.rdma.host_info:
    interval: 10
  become: true

- name: Save the files that were read
  gpuops.rdma.host_info:
    collect: /var/tmp/host.tar
  become: true

- name: Read a saved tree
  gpuops.rdma.host_info:
    host_root: /var/tmp/host
  delegate_to: localhost
"""

RETURN = r"""
host:
  description: The host document, see C(docs/host_document.md).
  returned: success
  type: dict
  sample:
    v: 1
    host: gpu-0
    os: {id: ubuntu, version: "22.04", kernel: 6.8.0-1035-oracle, flavour: oracle, cgroup: 2}
    driver: {version: 570.172.08, module: open, origin: host, fabric_manager: running, xids: []}
    gpudirect: {path: dmabuf, why: "open module, kernel >= 5.12, driver >= 515, Turing or later"}
    unread: {runtime.version: containerd writes it to no file; the Node object has it}
collected:
  description: Path of the tar file that was written, or an empty string.
  returned: success
  type: str
  sample: /var/tmp/host.tar
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.rdma.plugins.module_utils.host_probe import NotATree, collect, probe

# As documented above: the nodes have no PyYAML to read it with. tests/unit/tools/test_options.py compares them.
SPEC = {
    "host_root": {"type": "path", "default": "/"},
    "interval": {"type": "float", "default": 0.0},
    "collect": {"type": "path"},
    "pci": {"type": "bool", "default": False},
}


def main() -> None:
    """Returns the host document as the result of the module; fails if the host cannot be read."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    root, interval = module.params["host_root"], module.params["interval"]
    target, pci = module.params["collect"], module.params["pci"]
    if not 0 <= interval <= 3600:
        module.fail_json(msg=f"interval is {interval} s; it must be between 0 and 3600 s.")
    if target and not os.path.isdir(os.path.dirname(os.path.abspath(target))):
        module.fail_json(msg=f"Cannot write what was read to {target}: its directory does not exist.")
    try:
        if not target or module.check_mode:
            module.exit_json(changed=False, host=probe(root, interval, pci), collected="")
        # The tar is our own output and not the host's state, hence not "changed".
        with tempfile.NamedTemporaryFile(dir=module.tmpdir, delete=False) as file:
            document = collect(root, file.name, interval, pci)
        module.atomic_move(file.name, os.path.abspath(target))
    except NotATree as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"Cannot write what was read to {target}: {error}. Give a path in a directory that exists."
        )
    module.exit_json(changed=False, host=document, collected=target)


if __name__ == "__main__":
    main()
