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
- Adds a dashboard to OpenShift's console, or to Grafana elsewhere, and serves the metrics of a run's report.prom.
- Proves it - a Prometheus selects each ServiceMonitor, every node reports each of its GPUs, the dashboard's metrics
  are among those of the exporters, the report's gauges answer, and on OpenShift the series of all nodes have arrived.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.shapes
- gpuops.rdma.gpu_use_state
options:
  interval:
    description: Scrape interval in Prometheus's format.
    type: str
    default: 15s
  labels:
    description: Labels of the ServiceMonitors, by which Prometheus selects them, such as C(release=stack).
    type: dict
    default: {}
  dashboard:
    description: Whether to add the dashboard.
    type: bool
    default: true
  dashboard_namespace:
    description: Namespace that Grafana's sidecar reads. Without it no dashboard is added, except on OpenShift, which
      does not need it.
    type: str
    default: ""
  dashboard_labels:
    description: Labels of the dashboard, instead of the default one.
    type: dict
  report:
    description: A run's report.prom, whose metrics are also added to Prometheus.
    type: path
  report_namespace:
    description: Namespace of the pod that serves the metrics of O(report).
    type: str
    default: gpuops-metrics
  prometheus_url:
    description:
    - URL of Prometheus for pods. The proof also queries it for the series of all GPU nodes.
    - The default on OpenShift is its own Prometheus, queried with the token of a ServiceAccount that may read metrics.
      A token is sent only to HTTPS Services of OpenShift. On other platforms no Prometheus is queried by default.
    type: str
    default: ""
  state:
    description: V(absent) removes all of this and restores the earlier values of the ClusterPolicy.
  prove:
    description: When to query the exporters.
  image:
    description: Image with Python 3.8 or newer. The default is the image of the VF configuration.
    type: str
    default: ""
  image_pull_secrets:
    description: Pull secrets of this image, in the operator's namespace and in O(report_namespace).
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for the objects, and again for the proof.
    type: int
    default: 600
  grace:
    description: Seconds that a pod may be unschedulable or unable to pull its image.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Set up GPU metrics and the last run's results
  gpuops.rdma.gpu_metrics:
    report: "{{ rdma_report_dir }}/report.prom"
"""

RETURN = r"""
changes:
  description: The changes.
  returned: always
  type: list
  elements: str
notes:
  description: What was left out and why.
  returned: always
  type: list
  elements: str
proof:
  description:
  - C(scraped_by), the Prometheus of each ServiceMonitor, C(nodes), C(metrics), and C(arrived_at), the Prometheus that
    has the series.
  returned: always
  type: dict
"""
