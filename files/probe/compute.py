# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes on the first GPU that this process sees, and prints the times by the GPU's clock.

Any image with Python 3.8 works: the driver's library, from the container runtime, compiles the kernel. Usage:
``compute.py SECONDS``. Each line is JSON: ``{"gpu": UUID, "from": ns, "to": ns, "gap": ns, "free": MiB}``, of which
``gap`` is the longest time for which the kernel did not run between its begin and end, and ``free`` the GPU memory that
this process could have at its start; or ``{"error": text}``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

ROUND = 200_000_000
"""Nanoseconds of one kernel."""
KERNEL = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 span)
{
  .reg .pred %p<4>;
  .reg .f32 %f<4>;
  .reg .u32 %r<4>;
  .reg .u64 %d<12>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [span];
  cvta.to.global.u64 %d1, %d1;
  mov.f32 %f1, 0f3F800000;
  mov.u64 %d5, 0;
  mov.u64 %d3, %globaltimer;
  mov.u64 %d4, %d3;
turn:
  mov.u32 %r1, 0;
work:
  fma.rn.f32 %f1, %f1, 0f3F7FFFEF, 0f38D1B717;
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 64;
  @%p1 bra work;
  mov.u64 %d6, %globaltimer;
  sub.u64 %d7, %d6, %d4;
  max.u64 %d5, %d5, %d7;
  mov.u64 %d4, %d6;
  sub.u64 %d9, %d6, %d3;
  setp.lt.u64 %p2, %d9, %d2;
  @%p2 bra turn;
  mov.u32 %r2, %tid.x;
  setp.ne.u32 %p3, %r2, 0;
  @%p3 bra end;
  st.global.u64 [%d1], %d3;
  st.global.u64 [%d1+8], %d4;
  st.global.u64 [%d1+16], %d5;
  st.global.f32 [%d1+24], %f1;
end:
  ret;
}
"""


class Failed(Exception):
    pass


def tell(**fields: object) -> None:
    """Prints the fields as one line of JSON."""
    print(json.dumps(fields), flush=True)


class Gpu:
    """The few functions of the driver API that are needed. ``Failed`` if the GPU cannot be used."""

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Failed(f"the container has no GPU driver: {error}") from None
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", ctypes.byref(name), device)
        self.uuid = bytes(name).hex()
        self.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, device)
        module, self.kernel, self.memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"spin")
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.free = free.value >> 20
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(32))

    def call(self, name: str, *args: object) -> None:
        """Calls a function of the driver API. ``Failed`` with its CUresult if it returns an error."""
        code = getattr(self.lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'').decode() or code}")

    def compute(self, span: int) -> list[int]:
        """Runs the kernel for ``span`` nanoseconds. Returns its start, its end and its longest gap, in nanoseconds
        of the GPU's clock; ``Failed`` for an error of the driver."""
        values = [self.memory, ctypes.c_uint64(span)]
        params = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in values))
        self.call("cuLaunchKernel", self.kernel, 1, 1, 1, 32, 1, 1, 0, None, params, None)
        found = (ctypes.c_uint64 * 4)()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(found), self.memory, ctypes.c_size_t(32))
        return list(found)[:3]


def main(seconds: float) -> int:
    """Runs kernels for ``seconds`` and returns the exit status: 1 if the GPU cannot be used, else 0."""
    try:
        gpu = Gpu()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start, stop, gap = gpu.compute(ROUND)
            tell(gpu=gpu.uuid, **{"from": start, "to": stop, "gap": gap, "free": gpu.free})
    except Failed as error:
        tell(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
