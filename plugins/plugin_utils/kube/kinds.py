# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of the kinds that we use, so that none of them is looked up. PRIVATE to the collection."""

from __future__ import annotations

KINDS: dict[tuple[str, str], tuple[str, bool]] = {
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "Event"): ("events", True),
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Node"): ("nodes", False),
    ("v1", "Pod"): ("pods", True),
    ("v1", "Secret"): ("secrets", True),
    ("v1", "Service"): ("services", True),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): ("customresourcedefinitions", False),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("batch/v1", "Job"): ("jobs", True),
    ("coordination.k8s.io/v1", "Lease"): ("leases", True),
    ("batch.volcano.sh/v1alpha1", "Job"): ("jobs", True),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): ("podgroups", True),
    ("kubeflow.org/v2beta1", "MPIJob"): ("mpijobs", True),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): ("localqueues", True),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): ("resourceflavors", False),
    ("kueue.x-k8s.io/v1beta2", "Topology"): ("topologies", False),
    ("topology.volcano.sh/v1alpha1", "HyperNode"): ("hypernodes", False),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"): ("network-attachment-definitions", True),
    ("janitor.dgxc.nvidia.com/v1alpha1", "RebootNode"): ("rebootnodes", False),
    ("maintenance.nvidia.com/v1alpha1", "MaintenanceOperatorConfig"): ("maintenanceoperatorconfigs", True),
    ("maintenance.nvidia.com/v1alpha1", "NodeMaintenance"): ("nodemaintenances", True),
    ("mellanox.com/v1alpha1", "NicClusterPolicy"): ("nicclusterpolicies", False),
    ("mellanox.com/v1alpha1", "NicNodePolicy"): ("nicnodepolicies", False),
    ("nvidia.com/v1", "ClusterPolicy"): ("clusterpolicies", False),
    ("nvidia.com/v1alpha1", "GPUCluster"): ("gpuclusters", False),
    ("nv-ipam.nvidia.com/v1alpha1", "IPPool"): ("ippools", True),
    ("nfd.k8s-sigs.io/v1alpha1", "NodeFeature"): ("nodefeatures", True),
    ("nvsentinel.dgxc.nvidia.com/v1", "ExternalRemediationRequest"): ("externalremediationrequests", False),
    ("oci.oraclecloud.com/v1beta1", "NodeOperationRule"): ("nodeoperationrules", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): ("clusterroles", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("clusterrolebindings", False),
    ("rbac.authorization.k8s.io/v1", "Role"): ("roles", True),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("rolebindings", True),
    ("scheduling.k8s.io/v1", "PriorityClass"): ("priorityclasses", False),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): ("selfsubjectaccessreviews", False),
    ("sriovnetwork.openshift.io/v1", "SriovNetworkNodeState"): ("sriovnetworknodestates", True),
}
"""(apiVersion, kind) -> (resource, whether it is in a namespace)."""
