# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads, resets and replaces the instances of a cluster's nodes. PRIVATE to the collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import instance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance import RUNNING, TAG, NodeInstance

CLIENTS = ("compute", "network", "management", "identity", "oke")


class Instances:
    """``connect`` makes the session, on first use; nodes of other regions get one of their own."""

    def __init__(self, connect: Optional[Callable[[], oci.Session]] = None) -> None:
        self._connect = connect
        self._sessions: dict[str, oci.Session] = {}
        self._lock = threading.Lock()

    def session(self, region: str = "") -> oci.Session:
        """The session of a region, by name or key; "" = the account's own. Raises InputError if there is none."""
        with self._lock:
            if "" not in self._sessions:
                if self._connect is None:
                    raise InputError("Nothing is known of a user of OCI.")
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
        """Its lifecycle state; "" where OCI does not show it."""
        return str((self.find(wanted) or {"lifecycleState": ""})["lifecycleState"])

    def created(self, wanted: NodeInstance) -> str:
        """When it was made, "" where OCI does not show it."""
        return str((self.find(wanted) or {"timeCreated": ""})["timeCreated"])

    def now(self, wanted: NodeInstance) -> str:
        """OCI's own time, which is that of ``created``."""
        answer = self.session(wanted.region).call("read OCI's time", "compute", "get_instance", wanted.ocid)
        return moment.stamp(parsedate_to_datetime(answer.headers["date"]))

    def reset(self, wanted: NodeInstance, token: str) -> bool:
        """Cycles its power, once for a token: OCI repeats the answer of the first request with it for a day. False if
        the instance does not run, as after a request whose answer was lost."""
        if self.checked(wanted)["lifecycleState"] != RUNNING:
            return False
        what, more = f"reset the instance {wanted.ocid} of {wanted.node}", {"opc_retry_token": token}
        self.session(wanted.region).call(what, "compute", "instance_action", wanted.ocid, "RESET", **more)
        return True

    # ---- replacement

    def replaceable(self, wanted: NodeInstance) -> str:
        """OCID of the pool that makes another instance. Raises RdmaError if none does, or if the tag is not there."""
        found = self.checked(wanted)
        pool = instance.pool(found)
        if not pool or wanted.ocid not in self.members(wanted, pool):
            raise RdmaError(
                f"{wanted.node} cannot be replaced: its instance {wanted.ocid} is in no node pool of OKE and in no "
                "instance pool, so that nothing makes another one."
            )
        session, (namespace, key, _value) = self.session(wanted.region), TAG
        try:
            more = {"include_subcompartments": True, "limit": oci.PAGE}
            listed = session.body("list tag namespaces", "identity", "list_tag_namespaces", session.tenancy, **more)
            place = next(one["id"] for one in listed if one["name"] == namespace and not one.get("isRetired"))
            session.body(f"read the tag {namespace}.{key}", "identity", "get_tag", place, key)
        except (StopIteration, NotFound) as error:
            why = f" ({error})" if str(error) else ""
            raise RdmaError(
                f"{wanted.node} is not replaced: the tenancy has no defined tag {namespace}.{key} that this user may "
                "see. Without it the faulty host returns to the pool. Create the tag namespace and the tag, and let "
                f"this user use them, see docs/oci_policies.md{why}."
            ) from None
        return pool

    def members(self, wanted: NodeInstance, pool: str) -> dict[str, str]:
        """Instance -> its state, in capital letters, of the pool that the node was made by."""
        session, what = self.session(wanted.region), f"read the pool {pool} of {wanted.node}"
        if instance.of_oke(pool):
            nodes = session.body(what, "oke", "get_node_pool", pool).get("nodes") or []
            return {one["id"]: str(one.get("lifecycleState")) for one in nodes}
        home = session.body(what, "management", "get_instance_pool", pool)["compartmentId"]
        more = {"limit": oci.PAGE}
        listed = session.body(what, "management", "list_instance_pool_instances", home, pool, **more)
        return {one["id"]: str(one.get("state")).upper() for one in listed}

    def leaving(self, wanted: NodeInstance, pool: str) -> bool:
        """Whether the instance ends, or has ended: that needs no second request. Raises RdmaError for one that its pool
        has, and that OCI does not show: a lack of rights looks the same as its end."""
        if (state := self.state(wanted)) in instance.ENDING:
            return True
        left = self.members(wanted, pool).get(wanted.ocid, instance.TERMINATED) in instance.ENDING
        if not left and not state:
            raise RdmaError(
                f"OCI does not show the instance {wanted.ocid} of {wanted.node}, but its pool has it: this user may "
                "not read it. Check the policies, see docs/oci_policies.md."
            )
        return left

    def tagged(self, wanted: NodeInstance) -> bool:
        """Whether it has the tag of an unhealthy host."""
        return instance.unhealthy(self.find(wanted) or {})

    def tag(self, wanted: NodeInstance) -> None:
        """Tags the instance as of an unhealthy host, beside its other tags. Raises RdmaError if that is not to be seen
        afterwards, Conflict if others write it."""
        session, read = self.session(wanted.region), (f"read the tags of {wanted.node}", "compute", "get_instance")
        answer = session.call(*read, wanted.ocid)
        if instance.unhealthy(found := oci.plain(answer.data)):
            return
        body, more = {"definedTags": instance.tagged(found)}, {"if_match": answer.headers.get("etag")}
        what = f"tag the instance {wanted.ocid} of {wanted.node} as unhealthy"
        session.call(what, "compute", "update_instance", wanted.ocid, body, **more)
        if not instance.unhealthy(session.body(*read, wanted.ocid)):
            raise RdmaError(f"OCI accepted the tag {'.'.join(TAG[:2])} of {wanted.node}, and does not show it.")

    def remove(self, wanted: NodeInstance, pool: str, token: str) -> None:
        """Ends the instance; its pool keeps its size, and so makes another one. The node is drained already. Raises
        Conflict while the pool works on another request."""
        session, what = self.session(wanted.region), f"end the instance {wanted.ocid} of {wanted.node}"
        if instance.of_oke(pool):
            more = {"override_eviction_grace_duration": "PT0M", "is_force_deletion_after_override_grace_duration": True}
            session.call(what, "oke", "delete_node", pool, wanted.ocid, is_decrement_size=False, **more)
        else:
            body = {"instanceId": wanted.ocid, "isDecrementSize": False, "isAutoTerminate": True}
            method = "detach_instance_pool_instance"
            session.call(what, "management", method, pool, body, opc_retry_token=token)
