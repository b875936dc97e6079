# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives a container the GPUs of its node before runc makes it, as NVIDIA's runtime does: device nodes, driver files.

    python3 inject.py GPUS BUNDLE

It runs inside a node, with the standard library only. GPUS is what gpus.py wrote; a container gets them if its
environment has NVIDIA_VISIBLE_DEVICES with anything but void or none. ``env`` and ``shared`` (place in the container ->
folder of the node) in GPUS are what a device plugin adds for MPS.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
KIND = "io.kubernetes.cri.container-type"
NVLS_OFF = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Of every container: on a host that others share NVLink multicast can put all its GPUs out of service."""


def injected(config: Json, gpus: Json) -> Json:
    """The OCI runtime configuration of a container with the GPUs that it asks for, and NVLink multicast off."""
    if config.get("annotations", {}).get(KIND) != "container":
        return config
    process, linux = config["process"], config["linux"]
    env = dict(word.partition("=")[::2] for word in process.get("env") or ())
    env.update(NVLS_OFF)
    gets = env.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("", "void", "none")
    if gets:
        env.update(gpus.get("env", {}))
    process["env"] = [f"{name}={value}" for name, value in env.items()]
    if not gets:
        return config
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    there = {entry["path"] for entry in linux.get("devices") or ()}
    for name, (major, minor) in gpus["devices"].items():
        allowed.append({"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"})
        if f"/dev/{name}" not in there:
            entry = {"path": f"/dev/{name}", "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
            linux.setdefault("devices", []).append({**entry, "uid": 0, "gid": 0})
    for target, source in gpus["files"].items():
        options = ["bind", "ro", "nosuid", "nodev"]
        config["mounts"].append({"destination": target, "source": source, "type": "bind", "options": options})
    for target, source in gpus.get("shared", {}).items():
        config["mounts"].append({"destination": target, "source": source, "type": "bind", "options": ["bind", "rw"]})
    return config


def main() -> int:
    gpus, path = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]) / "config.json"
    for folder in gpus.get("shared", {}).values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(injected(json.loads(path.read_text()), gpus)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
