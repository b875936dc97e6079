# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides whether nvidia_peermem has to be loaded on a host, and loads it persistently. PRIVATE to the collection.

The file is self-contained (standard library, Python 3.8): the DaemonSet gpuops-peermem runs it next to the host probe,
and the role ``peermem`` calls ``decide`` on the control node. With a driver from the node's image nothing loads
nvidia_peermem (in the GPU Operator only the driver DaemonSet does); DMA-BUF needs no module and NCCL prefers it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict  # noqa: UP035 (at run time, for Python 3.8)

Json = Dict[str, Any]  # noqa: UP006

MODULE = "nvidia-peermem"
PERSISTENT = "etc/modules-load.d/gpuops-nvidia-peermem.conf"
CONTENT = f"# gpuops.rdma: GPUDirect RDMA where DMA-BUF is not possible\n{MODULE}\n"
FIRST_DRIVER = 470
"""R470 brought nvidia-peermem."""


def decide(document: Json) -> Json:
    """``{"action", "reason", "remedy"}`` for a host document (docs/host_document.md).

    ``action``: ``none`` (nothing to do), ``load`` (the module, now or only at boot) or ``refuse`` (it would not help or
    cannot work, see ``reason``). A fact that could not be read leads to a refusal.
    """
    reason, remedy = _refusal(document)
    if reason:
        return {"action": "refuse", "reason": reason, "remedy": remedy}
    peermem = document["gpudirect"]["peermem"]
    works = peermem["loaded"] and peermem["registered"]
    if works and peermem["persistent"]:
        return {"action": "none", "reason": "nvidia_peermem is loaded, registered and persistent", "remedy": ""}
    reason = "loaded and registered, but not loaded at the next boot" if works else _missing(peermem)
    return {"action": "load", "reason": f"nvidia_peermem is {reason}", "remedy": ""}


def _missing(peermem: Json) -> str:
    return "loaded and not registered" if peermem["loaded"] else "not loaded"


def _refusal(document: Json) -> tuple[str, str]:
    """(reason, remedy) of a refusal; ("", "") if the module may be loaded."""
    direct, driver = document.get("gpudirect") or {}, document.get("driver") or {}
    stack, peermem = document.get("nic_stack") or {}, direct.get("peermem") or {}
    if direct.get("path") == "dmabuf":
        return "DMA-BUF is possible, and NCCL uses it without a module", "leave it as it is"
    if driver.get("origin") == "none":
        return "no NVIDIA driver is loaded", "install the driver first"
    if driver.get("origin") == "operator":
        return (
            "the GPU Operator installs the driver and loads nvidia_peermem itself",
            "set driver.rdma.enabled=true in the GPU Operator's values",
        )
    if stack.get("kind") in ("none", "inbox"):
        what = "no mlx5_core is loaded" if stack["kind"] == "none" else "the kernel's own ib_core has no peer memory"
        return what, "install DOCA-OFED, or use the open kernel modules of the driver and DMA-BUF"
    unknown = [
        name
        for name, value in (
            ("gpudirect.path", direct.get("path")),
            ("driver.origin", driver.get("origin")),
            ("nic_stack.kind", stack.get("kind")),
            *((f"gpudirect.peermem.{key}", peermem.get(key)) for key in ("loaded", "registered", "persistent")),
        )
        if value is None or value == ""
    ]
    if unknown:
        return f"not known: {', '.join(unknown)}", "run the host checks as root; they report why they cannot read it"
    return _cannot(document, driver, peermem)


def _cannot(document: Json, driver: Json, peermem: Json) -> tuple[str, str]:
    version = str(driver.get("version") or "")
    major = version.partition(".")[0]  # not by core/versions.py: this file ships to hosts as a script
    if major.isdigit() and int(major) < FIRST_DRIVER:
        return f"driver {version} has no nvidia_peermem", f"install a driver of R{FIRST_DRIVER} or newer"
    if document["gpudirect"].get("nv_peer_mem"):
        return "the legacy nv_peer_mem is loaded, and both register the same memory", "remove the package nv_peer_mem"
    if peermem["loaded"] and peermem.get("matches_ib_core") is False:
        return "nvidia_peermem is built for another ib_core", "reinstall the NVIDIA driver, after OFED"
    if not peermem["loaded"] and peermem.get("installed") is False:
        return (
            "the driver has no nvidia-peermem.ko for the running kernel",
            "reinstall the NVIDIA driver, after OFED",
        )
    return "", ""


def commands(document: Json) -> list[list[str]]:
    """The commands to run on the host, in order; [] if only the next boot is affected."""
    peermem = document["gpudirect"]["peermem"]
    if peermem["loaded"] and peermem["registered"]:
        return []
    unload = [["modprobe", "-r", MODULE]] if peermem["loaded"] else []
    return [*unload, ["modprobe", MODULE]]


def load(
    document: Json,
    root: str,
    look: Callable[[], Json],
    run: Callable[[list[str]], tuple[int, str]],
    write: Callable[[str, str], None],
) -> Json:
    """Carries out the decision of ``decide`` on the host whose root is at ``root``, and checks the result.

    Returns ``{"v", "boot_id", "action", "changed", "failed", "reason", "remedy"}``. ``look()`` returns a new host
    document; ``run`` (in the host's root) and ``write`` access the host.
    """
    found = decide(document)
    result = {"v": 1, "boot_id": document.get("boot_id") or "", "changed": False, "failed": False, **found}
    if found["action"] != "load":
        return result
    try:
        if not document["gpudirect"]["peermem"]["persistent"]:
            write(f"{root.rstrip('/')}/{PERSISTENT}", CONTENT)
        for argv in commands(document):
            code, output = run(argv)
            if code:
                return {
                    **result,
                    "changed": True,
                    "failed": True,
                    "reason": f"`{' '.join(argv)}` failed: {output[-300:]}",
                }
    except OSError as error:
        return {**result, "failed": True, "reason": str(error)}
    after = (look().get("gpudirect") or {}).get("peermem") or {}
    if not (after.get("loaded") and after.get("registered")):
        what = _missing({"loaded": bool(after.get("loaded"))})
        remedy = "see the kernel log; reinstall the NVIDIA driver, after OFED"
        return {**result, "changed": True, "failed": True, "reason": f"still {what} after modprobe", "remedy": remedy}
    return {**result, "changed": True, "reason": f"{found['reason']}; now loaded and registered"}
