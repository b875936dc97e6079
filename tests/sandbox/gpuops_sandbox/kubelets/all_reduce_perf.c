// Copyright: gpuops.rdma contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// A stand-in for nccl-tests' all_reduce_perf on machines without GPUs: real MPI ranks and sums, numbers of a model.
// It prints what the real one prints, and NCCL's INFO lines where NCCL_DEBUG asks for them. Of a pod it reads what NCCL
// reads: the environment, /etc/nccl.conf and the topology file.
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *host(void) {
  static char name[256];
  gethostname(name, sizeof name - 1);
  name[strcspn(name, ".")] = 0;  // as NCCL cuts it
  return name;
}

static void read_conf(void) {
  char line[1024];
  FILE *conf = fopen("/etc/nccl.conf", "r");
  while (conf && fgets(line, sizeof line, conf)) {
    char *value = strchr(line, '=');
    line[strcspn(line, "\n")] = 0;
    if (line[0] == '#' || !value) continue;
    *value++ = 0;
    setenv(line, value, 0);
  }
  if (conf) fclose(conf);
}

static long size_of(const char *text) {
  char *end;
  double number = strtod(text, &end);
  return (long)(number * (*end == 'G' ? 1L << 30 : *end == 'M' ? 1L << 20 : *end == 'K' ? 1L << 10 : 1));
}

static void info(int rank, int ranks, int device, int devices, int hcas) {
  const char *debug = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE"), *topology = getenv("NCCL_TOPO_FILE");
  FILE *out = file && strcmp(file, "/dev/stderr") ? fopen(file, "w") : stderr;
  if (!debug || strcmp(debug, "INFO") || !out) return;
  char lead[300];
  snprintf(lead, sizeof lead, "%s:%d:%d [%d] NCCL INFO ", host(), getpid(), getpid(), device);
  fprintf(out, "%sBootstrap: Using eth0:10.244.0.1<0>\n", lead);
  fprintf(out, "%sNET/IB : Using", lead);
  for (int i = 0; i < hcas; i++) fprintf(out, " [%d]mlx5_%d:1/RoCE", i, hcas + 2 + i);
  fprintf(out, " [RO]; OOB eth0:10.244.0.1<0>\n%sUsing network IB\n", lead);
  if (topology) {
    fprintf(out, "%sNCCL_TOPO_FILE set by environment to %s\n", lead, topology);
    if (access(topology, R_OK) == 0) fprintf(out, "%sLoading topology file %s\n", lead, topology);
  }
  int share = hcas / devices > 0 ? hcas / devices : 1, before = (rank - devices + ranks) % ranks, after = (rank + devices) % ranks;
  for (int i = 0; i < share && ranks > devices; i++) {
    int hca = device * share + i;
    fprintf(out, "%sChannel %02d/0 : %d[%d] -> %d[%d] [receive] via NET/IB/%d/GDRDMA\n", lead, i, before, device, rank, device, hca);
    fprintf(out, "%sChannel %02d/0 : %d[%d] -> %d[%d] [send] via NET/IB/%d/GDRDMA\n", lead, i, rank, device, after, device, hca);
  }
  fprintf(out, "%sConnected all rings\n", lead);
  fflush(out);
}

static void eat(int rank) {  // STANDIN_EAT=RANK:MIB: memory that this rank takes and uses
  const char *wish = getenv("STANDIN_EAT"), *amount = wish ? strchr(wish, ':') : NULL;
  if (!amount || atoi(wish) != rank) return;
  for (long mib = atol(amount + 1); mib > 0; mib--) {
    volatile char *taken = malloc(1 << 20);
    for (int i = 0; taken && i < 1 << 20; i += 4096) taken[i] = 1;
  }
}

static void half(long size, double busbw, double factor, int wrong) {
  double algbw = busbw / factor, time = size ? size / algbw / 1e3 : 20.0;
  char text[32];
  snprintf(text, sizeof text, time < 10000 ? "%7.2f" : time < 100000 ? "%7.1f" : "%7.0f", time);
  printf("  %7s  %6.2f  %6.2f  %6d", text, algbw, busbw, wrong);
}

int main(int count, char **words) {
  long low = 32 << 20, high = 32 << 20;
  double pause = 0, line = 472, average = 0;  // GB/s of busbw for large sizes, of 8 rails of 400 Gb/s
  int rank, ranks, device, devices, wrong_all = 0, rows = 0;
  for (int i = 1; i + 1 < count; i++) {
    if (!strcmp(words[i], "-b")) low = size_of(words[i + 1]);
    if (!strcmp(words[i], "-e")) high = size_of(words[i + 1]);
  }
  if (getenv("STANDIN_PAUSE")) pause = atof(getenv("STANDIN_PAUSE"));
  if (getenv("STANDIN_LINE")) line = atof(getenv("STANDIN_LINE"));
  MPI_Init(&count, &words);
  read_conf();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &device);
  MPI_Comm_size(node, &devices);
  char mine[320], *all = malloc((size_t)ranks * sizeof mine);
  snprintf(mine, sizeof mine, "#  Rank %2d Group  0 Pid %6d on %10s device %2d [0000:%02x:00] NVIDIA H100 80GB HBM3", rank, getpid(), host(), device, 15 + 30 * device);
  MPI_Gather(mine, sizeof mine, MPI_CHAR, all, sizeof mine, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("# STAND-IN: no GPU ran, the bandwidth is that of a model\n");
    printf("# nccl-tests version 2.19.6 nccl-headers=23203 nccl-library=23203\n# Collective test starting: all_reduce_perf\n");
    printf("# nThread 1 nGpus 1 minBytes %ld maxBytes %ld step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n", low, high);
    for (int i = 0; i < ranks; i++) printf("%s\n", all + (size_t)i * sizeof mine);
    fflush(stdout);
  }
  info(rank, ranks, device, devices, devices * 2);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    printf("NCCL version 2.32.3+cuda13.4\n#\n");
    printf("#                                                              out-of-place                       in-place          \n");
    printf("#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n");
    printf("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n");
  }
  double factor = ranks > 1 ? 2.0 * (ranks - 1) / ranks : 1.0;
  for (long size = low; size <= high && size > 0; size *= 2, rows++) {
    float given = rank + 1, sum = 0;
    MPI_Allreduce(&given, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    int wrong = sum != ranks * (ranks + 1) / 2.0f, any = 0;
    MPI_Reduce(&wrong, &any, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    double busbw = line * size / (size + 16e6);
    average += busbw;
    wrong_all += any;
    if (rank == 0) {
      printf("%12ld  %12ld  %8s  %6s  %6d", size, size / 4, "float", "sum", -1);
      half(size, busbw, factor, any);
      half(size, busbw, factor, any);
      printf("\n");
      fflush(stdout);
    }
    if (rows == 0) eat(rank);
    if (pause > 0) usleep((useconds_t)(pause * 1e6));
  }
  if (rank == 0) {
    printf("# Out of bounds values : %d %s\n# Avg bus bandwidth    : %g \n#\n", wrong_all, wrong_all ? "FAILED" : "OK", rows ? average / rows : 0);
    printf("# Collective test concluded: all_reduce_perf\n#\n\n");
  }
  MPI_Finalize();
  return wrong_all != 0;
}
