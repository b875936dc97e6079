#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_metrics
short_description: Set up GPU metrics and a dashboard in the cluster's Prometheus
version_added: 0.1.0
description:
- Makes the GPU Operator create the ServiceMonitor of its DCGM exporter in a namespace that the platform's Prometheus
  reads.
- Adds a dashboard to OpenShift's console, or to Grafana elsewhere, and serves the gauges of a run's report.prom.
- Proves it - a Prometheus selects each ServiceMonitor, every node reports each of its GPUs, the dashboard's metrics
  are among those of the exporters, the report's gauges answer, and on OpenShift the series of all nodes have arrived.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.shapes
- gpuops.rdma.gpu_use_state
options:
  interval:
    description: How often Prometheus asks, in its own writing.
    type: str
    default: 15s
  labels:
    description: Labels of the ServiceMonitors by which a Prometheus selects them, such as C(release=stack).
    type: dict
    default: {}
  dashboard:
    description: Whether to add the dashboard.
    type: bool
    default: true
  dashboard_namespace:
    description: Namespace that Grafana's sidecar reads; not needed on OpenShift. Without it there is no dashboard.
    type: str
    default: ""
  dashboard_labels:
    description: Labels of the dashboard instead of the usual one.
    type: dict
  report:
    description: A run's report.prom, whose gauges are to be in Prometheus too.
    type: path
  report_namespace:
    description: Namespace of the pod that serves them.
    type: str
    default: gpuops-metrics
  prometheus_url:
    description:
    - Prometheus as pods reach it; the proof asks it for the series of all GPU nodes as well.
    - By default OpenShift's own, which is asked with the token of a ServiceAccount that may read metrics. Other than
      HTTPS Services of OpenShift are asked without a token, and elsewhere no Prometheus is asked by default.
    type: str
    default: ""
  state:
    description: With V(absent) all this is removed, and the ClusterPolicy gets its earlier values again.
  prove:
    description: When to ask the exporters.
  image:
    description: Image with Python 3.8 or newer; by default that of the VF configuration.
    type: str
    default: ""
  image_pull_secrets:
    description: Secrets for this image, in the operator's namespace and in O(report_namespace).
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds for the objects, and again for the proof.
    type: int
    default: 600
  grace:
    description: Seconds that a pod may be unschedulable or without image.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: GPU metrics and the last run's gauges
  gpuops.rdma.gpu_metrics:
    report: "{{ rdma_report_dir }}/report.prom"
"""

RETURN = r"""
changes:
  description: What was written.
  returned: always
  type: list
  elements: str
notes:
  description: What was left out, and why.
  returned: always
  type: list
  elements: str
proof:
  description:
  - C(scraped_by), the Prometheus of each ServiceMonitor, C(nodes), C(metrics), and C(arrived_at), who has the series.
  returned: always
  type: dict
"""
