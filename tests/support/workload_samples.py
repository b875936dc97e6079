# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs that playbooks/workloads.yml sets up, and the objects that they need."""

from __future__ import annotations

import base64
import json

CANARY = "CANARY-4711-token"
SERVERS = {"service_instance_configuration": {"node_url_list": [{"url": "dls.example.com"}]}}
TOKEN = f"head.{base64.urlsafe_b64encode(json.dumps(SERVERS).encode()).decode()}.{CANARY}"
VFS = "nvidia.com/sriov_rdma_vf"
GPU = "nvidia.com/gpu"
VM = "10.140.200.2"
OBJECTS = """
apiVersion: v1
kind: Secret
metadata: {name: ngc-secret, namespace: gpu-operator}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {}}'}
---
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: stack, namespace: default}
spec: {serviceMonitorSelector: {matchLabels: {release: stack}}, serviceMonitorNamespaceSelector: {}}
---
apiVersion: v1
kind: Namespace
metadata: {name: gpuops-serving}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models, namespace: gpuops-serving}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: models, resources: {requests: {storage: 1Ti}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: models}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Ti}
  claimRef: {name: models, namespace: gpuops-serving}
  storageClassName: ""
  nfs: {server: 192.0.2.1, path: /models}
"""
VGPU = {
    "rdma_vgpu_nodes": VM,
    "rdma_vgpu_repository": "registry.example.com/vgpu",
    "rdma_vgpu_image": "vgpu-guest-driver-5",
    "rdma_vgpu_version": "550.163.01",
    "rdma_vgpu_host_version": "550.163.02",
    "rdma_vgpu_pull_secrets": "ngc-secret",
    "rdma_vgpu_token": TOKEN,
}
SERVING = {
    "rdma_serving_model": "llama-3.1-405b",
    "rdma_serving_image": "registry.example.com/vllm:1",
    "rdma_serving_claim": "models",
    "rdma_serving_path": "llama-3.1-405b",
    "rdma_serving_nodes": "2",
}
