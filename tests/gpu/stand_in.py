#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine with two GPUs in name, for the rehearsal ``tests/gpu/run --no-gpu``: ``stand_in.py FOLDER``.

FOLDER/root has device nodes that are /dev/null's, a driver library in which kernels run by the clock (2.4 ms of pause
where processes take turns, 192 ns with an MPS daemon, as on an H200), and programs of MPS that keep what they are told;
FOLDER/images the images of ``make test-nodes``, as tests/gpu/image.py would make them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sandbox"))
from gpuops_sandbox.kubelets import images
from gpuops_sandbox.kubelets.inject import NVLS_OFF

GPUS = 2
LIBRARY = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t times[3];
static const size_t all = (size_t)141000 << 20;

static const char *at(const char *name) {
  static char path[400];
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nowhere", name);
  return path;
}
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
int cuInit(unsigned flags) { return open("/dev/nvidia0", O_RDWR) < 0 && open("/dev/nvidia1", O_RDWR) < 0 ? 100 : 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, 7, 16); return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return 0; }
int cuModuleLoadData(void **module, const void *image) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *total) {
  FILE *file = fopen(at("limit"), "r");
  long mib = 0;
  if (file && fscanf(file, "%ldM", &mib) != 1) mib = 0;
  *total = all;
  *left = mib ? (size_t)mib << 20 : all;
  return 0;
}
int cuMemAlloc_v2(uint64_t *place, size_t bytes) { return 0; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s,
                   void **params, void **extra) {
  uint64_t span = *(uint64_t *)params[1];
  struct timespec t = {span / 1000000000ull, span % 1000000000ull};
  FILE *daemon = fopen(at("control"), "r");
  times[0] = now();
  nanosleep(&t, 0);
  times[1] = now();
  times[2] = daemon ? 192 : 2400000;
  if (daemon) fclose(daemon);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, times, sizeof times); return 0; }
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
"""
CONTROL = """\
#!/bin/bash
place=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
if [ "${1:-}" = -d ]; then mkdir -p "$place" && touch "$place/control"; exit; fi
[ -e "$place/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
while read -r word device value; do
  case $word in set_default_device_pinned_mem_limit) echo "$value" >"$place/limit" ;; quit) rm "$place/control" ;; esac
done
"""
SMI = """\
#!/bin/bash
case "$*" in
  *memory.total*) for one in /dev/nvidia[0-9]*; do echo 141000; done ;;
  *name*) for one in /dev/nvidia[0-9]*; do echo "NVIDIA stand-in"; done ;;
  *) for one in /dev/nvidia[0-9]*; do echo "GPU ${one#/dev/nvidia}: NVIDIA stand-in"; done ;;
esac
"""


def build(target: Path) -> None:
    root = target / "root"
    shutil.rmtree(target, ignore_errors=True)
    libraries, programs = root / f"usr/lib/{os.uname().machine}-linux-gnu", root / "usr/bin"
    for place in (root / "dev", libraries, programs, target / "images"):
        place.mkdir(parents=True)
    for name in (*(f"nvidia{number}" for number in range(GPUS)), "nvidiactl"):
        os.mknod(root / "dev" / name, 0o20666, os.makedev(1, 3))
    source = target / "cuda.c"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(libraries / "libcuda.so.1"), str(source)], check=True)
    for name, text in (("nvidia-smi", SMI), ("nvidia-cuda-mps-control", CONTROL), ("nvidia-cuda-mps-server", CONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    made = images.ensure(print)
    (target / "images" / "pause").symlink_to(made / "pause")
    manifest = json.loads((made / "nccl/manifest.json").read_text())
    layers = [made / "nccl/blobs/sha256" / layer["digest"].partition(":")[2] for layer in manifest["layers"]]
    env = {**NVLS_OFF, "NVIDIA_VISIBLE_DEVICES": "all"}
    images._image(target / "images" / "machine", layers, ["/bin/bash"], env)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
