# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and resets the instances of a cluster's nodes. PRIVATE to the collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import instance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance import RUNNING, NodeInstance

CLIENTS = ("compute", "network")


class Instances:
    """``connect`` makes the session, on first use; nodes of other regions get one of their own."""

    def __init__(self, connect: Callable[[], oci.Session]) -> None:
        self._connect = connect
        self._sessions: dict[str, oci.Session] = {}
        self._lock = threading.Lock()

    def session(self, region: str = "") -> oci.Session:
        """The session of a region, by name or key; "" = the account's own. Raises InputError if there is none."""
        with self._lock:
            if "" not in self._sessions:
                self._sessions[""] = self._connect()
            own = self._sessions[""]
            name = own.region_name(region) if region else ""
            if name and name not in self._sessions:
                self._sessions[name] = own if name == own.region else own.elsewhere(name)
            found = self._sessions[name]
            for one in CLIENTS:  # created here so that threads do not race for them
                found.client(one)
            return found

    def find(self, wanted: NodeInstance) -> Optional[Json]:
        """The instance as OCI's own JSON, None where OCI answers 404. Raises RdmaError for another provider's node."""
        if not wanted.region:
            found = wanted.ocid or "(none)"
            raise RdmaError(f"{wanted.node} has the provider ID {found}, which is no instance of OCI.")
        read = f"read the instance {wanted.ocid} of {wanted.node}"
        return self.session(wanted.region).find(read, "compute", "get_instance", wanted.ocid)

    def checked(self, wanted: NodeInstance) -> Json:
        """The instance, which is the node's by compartment, region and address. Raises RdmaError if it is not, or if
        that cannot be read."""
        found, session = self.find(wanted), self.session(wanted.region)
        if found is None:
            raise RdmaError(
                f"OCI does not show the instance {wanted.ocid} of {wanted.node}: it does not exist, or this user may "
                "not read it. Check the policies, see docs/oci_policies.md."
            )
        home, more = found["compartmentId"], {"instance_id": wanted.ocid}
        read = f"read the addresses of {wanted.node}"
        attached = session.body(read, "compute", "list_vnic_attachments", home, **more)
        vnics = [one["vnicId"] for one in attached if one.get("lifecycleState") == "ATTACHED" and one.get("vnicId")]
        own = [session.body(read, "network", "get_vnic", key).get("privateIp") or "" for key in vnics]
        if why := instance.differs(wanted, found, own, session.region_name(found.get("region") or "")):
            raise RdmaError(f"{wanted.node} is not touched, as it may be another machine than {wanted.ocid}: {why}.")
        return found

    def state(self, wanted: NodeInstance) -> str:
        """Its lifecycle state; TERMINATED where OCI does not show it any more."""
        return str((self.find(wanted) or {"lifecycleState": instance.TERMINATED})["lifecycleState"])

    def reset(self, wanted: NodeInstance, token: str) -> bool:
        """Cycles its power, once for a token: OCI repeats the answer of the first request with it for a day. False if
        the instance does not run, as after a request whose answer was lost."""
        if self.checked(wanted)["lifecycleState"] != RUNNING:
            return False
        what, more = f"reset the instance {wanted.ocid} of {wanted.node}", {"opc_retry_token": token}
        self.session(wanted.region).call(what, "compute", "instance_action", wanted.ocid, "RESET", **more)
        return True
