# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inputs of the stack of OCI AI Blueprints from the cluster, and the wait for its certificate. PRIVATE."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import stack

POLL, SHOW_EVERY, CONNECT = 15.0, 60.0, 10.0


def table() -> Json:
    """files/oci/blueprints_stack.yml: tools, variables and outputs of the stack."""
    return dict(files.document("oci/blueprints_stack.yml"))


def place(session: oci.Session, cluster: str, given: Json) -> dict[str, str]:
    """The stack's variables for the place of the cluster. ``given``: node_subnet, load_balancer_subnet, "" = read from
    the cluster. InputError if the cluster does not have them."""
    names = table()["place"]
    key = oci.of_kind(cluster, "cluster", "cluster")
    found = session.call(f"read the cluster {key}", "oke", "get_cluster", key).data
    if found.lifecycle_state not in ("ACTIVE", "UPDATING"):
        raise InputError(f"The cluster {found.name} ({key}) is {found.lifecycle_state}, not ACTIVE.")
    network = session.call("read the cluster's VCN", "network", "get_vcn", found.vcn_id).data
    balancers = (found.options.service_lb_subnet_ids or []) if found.options else []
    endpoint = found.endpoint_config.subnet_id if found.endpoint_config else ""
    values = {
        "cluster": key,
        "vcn": found.vcn_id,
        "vcn_compartment": network.compartment_id,
        "endpoint_subnet": endpoint or "",
        "node_subnet": given["node_subnet"] or _node_subnet(session, found.compartment_id, key),
        "load_balancer_subnet": given["load_balancer_subnet"] or (balancers[0] if balancers else ""),
    }
    lacking = [name for name, value in values.items() if not value]
    if lacking:
        raise InputError(
            f"Cannot read from the cluster {found.name}: {', '.join(lacking).replace('_', ' ')}. Set it as an option, "
            f"or as {', '.join(names[name] for name in lacking)} in variables."
        )
    return {names[name]: value for name, value in values.items()}


def _node_subnet(session: oci.Session, compartment: str, cluster: str) -> str:
    listed = session.all("list node pools", "oke", "list_node_pools", compartment, cluster_id=cluster)
    for pool in listed:
        for config in (pool.node_config_details.placement_configs or []) if pool.node_config_details else []:
            if config.subnet_id:
                return str(config.subnet_id)
    return ""


def certificate(name: str, port: int, ca_path: str = "") -> str:
    """Why the TLS certificate of a host is not valid; "" if it is valid."""
    try:
        context = ssl.create_default_context(cafile=ca_path or None)
        with (
            socket.create_connection((name, port), CONNECT) as plain,
            context.wrap_socket(plain, server_hostname=name),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not valid: {error.verify_message}"
    except socket.gaierror:
        return "its name cannot be resolved (some networks and VPNs block nip.io)"
    except (OSError, ValueError) as error:
        return f"it does not answer: {getattr(error, 'strerror', None) or error}"


def wait_for_certificate(
    url: str,
    minutes: int,
    ca_path: str,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    check: Callable[[str, int, str], str] = certificate,
) -> None:
    """Waits until the API has a trusted certificate, which cert-manager requests after the stack is applied. Raises
    DeadlinePassed."""
    name, port = stack.host(url)
    started, shown = clock(), -SHOW_EVERY
    while True:
        why, passed = check(name, port, ca_path), clock() - started
        if not why:
            progress(f"{name}: certificate valid after {passed / 60:.0f} min")
            return
        if passed >= minutes * 60:
            raise DeadlinePassed(
                f"{name} after {minutes} min: {why}. See `kubectl get certificates,challenges -A`: "
                "cert-manager needs port 80 of the load balancer open to the internet. Run again, with "
                "rdma_blueprint_ca_path for your own CA, or certificate_timeout=0 to continue without it."
            )
        if passed - shown >= SHOW_EVERY:
            progress(f"{name}: {why} ({passed / 60:.0f} of {minutes} min)")
            shown = passed
        sleep(max(min(POLL, minutes * 60 - passed), 0.1))


def named(outputs: Json) -> dict[str, Any]:
    """Outputs of the stack as {api, portal, username, password}; "" for a missing one."""
    return {name: outputs.get(output, "") for name, output in table()["outputs"].items()}
