# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tenancy on the fake OCI, and the configuration that the real SDK reaches it with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.fake_oci import FakeOci, launch

DOMAIN = "AbCd:EU-FRANKFURT-1-AD-1"
USER = "ocid1.user.oc1..operator"
H100 = "BM.GPU.H100.8"
SUBNET = "ocid1.subnet.oc1.eu-frankfurt-1.nodes"
IMAGE = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-GPU-595-OPEN-CUDA-13.2-2026.07.13-0"


NODE_POOLS = (
    "Allow any-user to manage all-resources in tenancy where request.principal.type = 'nodepool'",
    "Allow service oke, blockstorage to manage all-resources in tenancy",
)


def tenancy(page: int = 100) -> FakeOci:
    """Compartments, one availability domain, a VCN with a subnet for nodes, shapes of files/topology, limits, and the
    policies that node pools need: tests of policies take them away."""
    fake = FakeOci(page=page)
    fake.add("compartments", {"id": fake.tenancy, "name": "acme", "compartmentId": None, "lifecycleState": "ACTIVE"})
    gpu = {"id": "ocid1.compartment.oc1..gpu", "name": "GPU", "compartmentId": fake.tenancy, "lifecycleState": "ACTIVE"}
    fake.add("compartments", gpu)
    for number in (1, 2, 3):
        name = f"AbCd:EU-FRANKFURT-1-AD-{number}"
        fake.add("availabilityDomains", {"id": name, "name": name, "compartmentId": fake.tenancy})
    fake.add("vcns", {"id": "vcn", "compartmentId": gpu["id"], "displayName": "oke", "lifecycleState": "AVAILABLE"})
    place = {"compartmentId": gpu["id"], "vcnId": "vcn", "cidrBlock": "10.0.10.0/24", "securityListIds": ["list"]}
    fake.add("subnets", {"id": "nodes", "displayName": "nodes", **place})
    fake.add("subnets", {"id": SUBNET, "displayName": "workers", **place})
    within = {"protocol": "all", "source": "10.0.10.0/24", "sourceType": "CIDR_BLOCK"}
    out = {"protocol": "all", "destination": "0.0.0.0/0", "destinationType": "CIDR_BLOCK"}
    fake.add("securityLists", {"id": "list", "ingressSecurityRules": [within], "egressSecurityRules": [out]})
    for shape in shape_table.shapes().values():
        if shape.status == "supported":
            fake.shapes[shape.name] = {
                "shape": shape.name,
                "gpus": shape.gpu_count,
                "gpuDescription": shape.gpu_model,
                "rdmaPorts": len(shape.pfs),
                "quotaNames": [f"{shape.name.split('.')[2].lower()}-count"],
            }
    fake.shapes["VM.Standard.E5.Flex"] = {"shape": "VM.Standard.E5.Flex", "gpus": 0, "rdmaPorts": 0, "quotaNames": []}
    fake.limits["h100-count"] = {"scopeType": "AD", "used": 0, "available": 64}
    fake.add("policies", {"name": "node-pools", "statements": list(NODE_POOLS), "compartmentId": fake.tenancy})
    return fake


def cluster(fake: FakeOci, name: str = "train") -> dict[str, Any]:
    compartment = "ocid1.compartment.oc1..gpu"
    endpoints = {"privateEndpoint": "10.0.0.10:6443", "publicEndpoint": "203.0.113.10:6443"}
    more = {"lifecycleState": "ACTIVE", "kubernetesVersion": "v1.34.1", "type": "ENHANCED_CLUSTER", "vcnId": "vcn"}
    return fake.add("clusters", {"name": name, "compartmentId": compartment, "endpoints": endpoints, **more})


def host_tag(fake: FakeOci) -> dict[str, Any]:
    """The tag namespace by which unhealthy hosts are reported."""
    told = {"name": "ComputeInstanceHostActions", "tags": ["CustomerReportedHostStatus"], "isRetired": False}
    return fake.add("tagNamespaces", {**told, "compartmentId": fake.tenancy, "lifecycleState": "ACTIVE"})


def image(fake: FakeOci, name: str = IMAGE, **more: Any) -> dict[str, Any]:
    told = {"displayName": name, "lifecycleState": "AVAILABLE", "operatingSystem": "Canonical Ubuntu", **more}
    return fake.add("images", {"compartmentId": "ocid1.compartment.oc1..gpu", **told})


def nodes(fake: FakeOci, cluster_id: str, count: int, shape: str = H100, **more: Any) -> list[dict[str, Any]]:
    """Instances as a node pool of OKE leaves them: tagged by the service with their cluster and pool."""
    compartment, pool = "ocid1.compartment.oc1..gpu", fake.ocid("nodepool")
    told = {"id": pool, "name": f"{shape}-pool", "clusterId": cluster_id, "compartmentId": compartment, "nodes": []}
    fake.add("nodePools", {**told, "nodeShape": shape, "lifecycleState": "ACTIVE"})
    found = []
    for index in range(count):
        metadata = {"oke-cluster-id": cluster_id, "oke-pool-id": pool, "oke-pool-label": f"{shape}-pool"}
        made = launch(fake, compartment, shape, DOMAIN, "nodes", metadata=metadata, **more)
        address = next(reversed(fake.tables["privateIps"].values()))["ipAddress"]
        node = {"id": made["id"], "name": made["displayName"], "privateIp": address, "lifecycleState": "ACTIVE"}
        node.update({"availabilityDomain": DOMAIN, "faultDomain": made["faultDomain"], "nodePoolId": pool})
        fake.tables["nodePools"][pool]["nodes"].append(node)
        block = index // 8
        host = {"instanceId": made["id"], "shape": shape, "availabilityDomain": DOMAIN, "health": "HEALTHY"}
        host.update({"compartmentId": fake.tenancy, "lifecycleState": "OCCUPIED", "faultDomain": made["faultDomain"]})
        host.update(
            {
                "hpcIslandId": "ocid1.hpcisland.oc1..islandaaaaa",
                "networkBlockId": f"ocid1.networkblock.oc1..{block:011d}",
            }
        )
        host["localBlockId"] = f"ocid1.localblock.oc1..{block:011d}"
        if shape.startswith("BM.GPU"):
            fake.add("computeHosts", host)
        found.append(made)
    return found


_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def credentials(fake: FakeOci, folder: Path) -> dict[str, str]:
    """A config of the SDK whose key the fake trusts."""
    pem = _KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = _KEY.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der).hexdigest()
    fingerprint = ":".join(digest[index : index + 2] for index in range(0, 32, 2))
    key_file = folder / "key.pem"
    key_file.write_bytes(pem)
    key_file.chmod(0o600)
    numbers = public.public_numbers()
    fake.trust(f"{fake.tenancy}/{USER}/{fingerprint}", numbers.n, numbers.e)
    return {
        "tenancy": fake.tenancy,
        "user": USER,
        "fingerprint": fingerprint,
        "key_file": str(key_file),
        "region": fake.region,
    }


def config_file(config: dict[str, str], folder: Path, profile: str = "DEFAULT") -> Path:
    path = folder / "config"
    path.write_text(f"[{profile}]\n" + "".join(f"{key}={value}\n" for key, value in config.items()), encoding="utf-8")
    path.chmod(0o600)
    return path
