# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the service, each with the parts that its message must have; and those that must not end a run.

Wordings of OCI and their sources: tests/support/fake_oci_rules.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import answers, pool_run, session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support import fake_oci, oci_site
from support.fake_oci import FakeOci, Refused
from support.oci_direct import Direct

GPU, AD, H100 = "ocid1.compartment.oc1..gpu", oci_site.DOMAIN, oci_site.H100
MANAGED, NETWORK = "managed_compute_cluster", "cluster_network"
REQUEST, WORK = r"\(request (fake/\w+|direct)\)", r"work request ocid1\.\w*workrequest\."
POOL_OF = {MANAGED: "nodePools", NETWORK: "clusterNetworks"}
LOST = "ocid1.networksecuritygroup.oc1.eu-frankfurt-1.lost"
RESERVATION = "ocid1.capacityreservation.oc1.eu-frankfurt-1.a"


class Site:
    """A tenancy in which the pool can be made, and what a row changes in it or asks for."""

    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake, self.lines, self.config, self.folder = fake, list[str](), config, folder
        self.signed, self.minutes = False, 60
        self.retries: answers.Retries | None = None
        self.options = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        cluster = oci_site.cluster(fake)
        cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
        self.asked: dict[str, Any] = {
            "name": "rdma",
            "kind": MANAGED,
            "compartment": GPU,
            "cluster": cluster["id"],
            "shape": H100,
            "nodes": 4,
            "availability_domain": AD,
            "subnet": oci_site.SUBNET,
            "image": oci_site.image(fake)["id"],
        }
        fake.durations.update({"NODEPOOL_CREATE": 120.0, "CreateClusterNetwork": 120.0, "boot": 60.0})

    def run(self, ignore: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        own: session.Session = Direct(self.fake, self.options, self.retries)
        if self.signed:
            own = session.Session(self.options, oci.retry.NoneRetryStrategy())
        wanted = PoolSpec(**{**self.asked, **changes})
        return pool_run.PoolRun(own, wanted, self.lines.append, self.minutes, **clocks).present(False, ignore=ignore)

    def pool(self) -> dict[str, Any]:
        return next(iter(self.fake.tables[POOL_OF[self.asked["kind"]]].values()))

    def nodes(self) -> list[str]:
        return [item["id"] for item in fake_oci.alive(self.fake)]


Change = Callable[[Site], Any]


@dataclass(frozen=True)
class Row:
    """``fault``: what is wrong; ``made``: the pool runs before. The rest are patterns of the message: what was tried,
    on which object, OCI's own words, the request or work request, what to do and by which input."""

    name: str
    fault: Change
    operation: str
    object: str
    words: str
    trace: str
    remedy: str
    input: str
    kind: str = MANAGED
    asked: dict[str, Any] = field(default_factory=dict)
    made: bool = False
    ignore: tuple[str, ...] = ()


def hosts(count: int) -> Change:
    return lambda site: site.fake.capacity.update({(AD, H100): count})


def launch(error: Refused) -> Change:
    return lambda site: setattr(site.fake, "launch_error", error)


def answer(pattern: str, status: int, code: str, message: str, times: int = 1) -> Change:
    def change(site: Site) -> None:
        site.fake.fail(pattern, status, code, message, times=times)
        site.minutes = 5

    return change


def reserved(site: Site) -> None:
    site.fake.reservations[RESERVATION] = 1


def without_policies(site: Site) -> None:
    site.fake.tables["policies"].clear()


def narrow(site: Site) -> None:
    site.fake.tables["subnets"][oci_site.SUBNET]["cidrBlock"] = "10.0.10.0/29"


def dead_compute_cluster(site: Site) -> None:
    for item in site.fake.tables["computeClusters"].values():
        item["lifecycleState"] = "DELETED"


def named_compute_cluster(site: Site) -> None:
    made = {"compartmentId": GPU, "availabilityDomain": AD, "displayName": "old", "lifecycleState": "DELETED"}
    site.asked["compute_cluster"] = site.fake.add("computeClusters", made)["id"]


def lost_node(site: Site) -> None:
    error = {"code": "NodeRegistrationTimeout", "message": "1 nodes(s) register timeout.", "status": 500}
    site.pool()["nodes"][1].update({"lifecycleState": "FAILING", "nodeError": error})
    site.pool()["lifecycleState"] = "NEEDS_ATTENTION"


def session_ended(site: Site) -> None:
    site.signed = True
    (site.folder / "token").write_text("eyJ.x.y", encoding="utf-8")
    profile = {key: value for key, value in site.config.items() if key != "user"}
    config = {**profile, "security_token_file": str(site.folder / "token")}
    site.options["config_file"] = str(oci_site.config_file(config, site.folder))


def wrong_key(site: Site) -> None:
    site.signed = True
    config = {**site.config, "fingerprint": ":".join(["00"] * 16)}
    site.options["config_file"] = str(oci_site.config_file(config, site.folder))


def elsewhere(site: Site) -> None:
    site.asked["image"] = "ocid1.image.oc1.phx.a"


def tag_wanted(site: Site) -> None:
    site.fake.required_tags.append(("Operations", "CostCenter"))


CREATE = {kind: f"POST .*/{table}$" for kind, table in POOL_OF.items()}
CHANGE = {kind: f"PUT .*/{table}/" for kind, table in POOL_OF.items()}
CREATION = {MANAGED: "creation of the node pool rdma", NETWORK: "creation of the cluster network rdma"}
CREATING = {kind: f"Cannot {words.replace('creation of', 'create')} in" for kind, words in CREATION.items()}
NODE_POOL, CLUSTER_NETWORK = r"ocid1\.nodepool\.", r"ocid1\.clusternetwork\."
OBJECT = {MANAGED: NODE_POOL, NETWORK: CLUSTER_NETWORK}
PREFLIGHT = "pool rdma cannot be created"
CAPACITY = ("oci.capacity",)
ROWS = [
    *(
        Row(
            f"capacity-{kind}",
            hosts(3),
            CREATION[kind],
            OBJECT[kind],
            "Out of host capacity",
            WORK,
            "another availability domain",
            "rdma_oci_availability_domain",
            kind,
            ignore=CAPACITY,
        )
        for kind in POOL_OF
    ),
    *(
        Row(
            f"limit-{kind}",
            launch(fake_oci.NO_LIMIT),
            CREATION[kind],
            OBJECT[kind],
            "LimitExceeded.*The following service limits were exceeded: gpu-h100-count",
            WORK,
            "higher service limit",
            "rdma_oci_nodes",
            kind,
        )
        for kind in POOL_OF
    ),
    *(
        Row(
            f"addresses-{kind}",
            launch(fake_oci.NO_ADDRESS),
            CREATION[kind],
            OBJECT[kind],
            "no available private IP",
            WORK,
            "larger subnet",
            "rdma_oci_subnet",
            kind,
        )
        for kind in POOL_OF
    ),
    Row(
        "register-timeout",
        launch(fake_oci.NO_REGISTRATION),
        CREATION[MANAGED],
        NODE_POOL,
        r"nodes\(s\) register timeout",
        WORK,
        "do not join: see oci_rdma_node_pool with state=joined",
        "",
    ),
    Row(
        "reservation-used-up",
        reserved,
        CREATION[MANAGED],
        NODE_POOL,
        "Out of host capacity",
        WORK,
        f"reservation {re.escape(RESERVATION)}",
        "rdma_oci_capacity_reservation",
        asked={"capacity_reservation": RESERVATION},
    ),
    Row(
        "needs-attention",
        lost_node,
        "3 of 4 nodes running",
        NODE_POOL,
        "NodeRegistrationTimeout: 1 nodes.s. register timeout",
        r"oke-\S+",
        "do not join: see oci_rdma_node_pool with state=joined",
        "",
        made=True,
    ),
    Row(
        "principal-of-the-pool",
        without_policies,
        CREATION[MANAGED],
        NODE_POOL,
        "NotAuthorizedOrNotFound",
        WORK,
        "policies: docs/oci_policies.md",
        "rdma_oci_",
    ),
    Row(
        "missing-security-group",
        lambda site: None,
        PREFLIGHT,
        re.escape(LOST),
        "404 NotAuthorizedOrNotFound",
        REQUEST,
        "check",
        "rdma_oci_security_groups",
        asked={"security_groups": (LOST,)},
    ),
    Row(
        "compute-cluster-deleted-before",
        named_compute_cluster,
        PREFLIGHT,
        r"ocid1\.computecluster\.",
        "compute cluster is DELETED",
        "",
        "set another one",
        "rdma_oci_compute_cluster",
    ),
    Row(
        "compute-cluster-deleted-later",
        dead_compute_cluster,
        "update of the node pool rdma",
        r"compute cluster ocid1\.computecluster\.\S+ is DELETED",
        "NotAuthorizedOrNotFound",
        WORK,
        "remove the pool",
        "rdma_oci_",
        asked={"nodes": 6},
        made=True,
    ),
    Row(
        "subnet-29",
        narrow,
        PREFLIGHT,
        re.escape(oci_site.SUBNET),
        r"5 addresses left in 10\.0\.10\.0/29; expected 8",
        "",
        "larger subnet",
        "rdma_oci_subnet",
        asked={"nodes": 8},
    ),
    Row(
        "subnet-gone",
        lambda site: site.fake.tables["subnets"].pop(oci_site.SUBNET),
        PREFLIGHT,
        re.escape(oci_site.SUBNET),
        "404 NotAuthorizedOrNotFound",
        REQUEST,
        "Check the OCID",
        "rdma_oci_region",
    ),
    Row(
        "session-ended",
        session_ended,
        "Cannot list",
        "rdma",
        "401 NotAuthenticated",
        REQUEST,
        "oci session refresh --profile DEFAULT",
        "",
    ),
    Row("wrong-key", wrong_key, "Cannot list", "rdma", "401 NotAuthenticated", REQUEST, "fingerprint", "profile"),
    Row(
        "another-region",
        elsewhere,
        PREFLIGHT,
        r"ocid1\.image\.oc1\.phx\.a",
        "404 NotAuthorizedOrNotFound",
        REQUEST,
        "Check the OCID",
        r"rdma_oci_region.*eu-frankfurt-1",
    ),
    *(
        Row(
            f"nothing-there-{kind}",
            elsewhere,
            CREATING[kind],
            GPU,
            "404 NotAuthorizedOrNotFound",
            REQUEST,
            "Check the OCID",
            r"rdma_oci_region.*eu-frankfurt-1",
            kind,
            ignore=("oci.image",),
        )
        for kind in POOL_OF
    ),
    Row(
        "too-many-requests",
        answer(CREATE[MANAGED], 429, "TooManyRequests", "Too many requests for the user", 99),
        CREATING[MANAGED],
        GPU,
        "429 TooManyRequests: Too many requests for the user",
        REQUEST,
        "run again later",
        "",
    ),
    *(
        Row(
            f"limit-at-once-{kind}",
            answer(CREATE[kind], 400, fake_oci.NO_LIMIT.code, fake_oci.NO_LIMIT.message),
            CREATING[kind],
            GPU,
            "400 LimitExceeded: The following service limits were exceeded: gpu-h100-count",
            REQUEST,
            "higher service limit",
            "rdma_oci_nodes",
            kind,
        )
        for kind in POOL_OF
    ),
    *(
        Row(
            f"tag-{kind}",
            tag_wanted,
            "Cannot create the",
            GPU,
            "400 InvalidParameter: The required tag Operations.CostCenter is missing",
            REQUEST,
            "tags that the tenancy requires",
            "rdma_oci_defined_tags",
            kind,
        )
        for kind in POOL_OF
    ),
    Row(
        "tag-namespace",
        answer(CREATE[MANAGED], 400, "InvalidParameter", "Failed to validate tags: TagNamespace ops does not exists"),
        CREATING[MANAGED],
        GPU,
        "TagNamespace ops does not exists",
        REQUEST,
        "tags",
        "rdma_oci_defined_tags",
    ),
    *(
        Row(
            f"etag-{kind}",
            answer(CHANGE[kind], 412, "NoEtagMatch", "The etag does not match.", 9999),
            "Cannot change the",
            OBJECT[kind],
            "412 NoEtagMatch: The etag does not match",
            REQUEST,
            "Run again",
            "",
            kind,
            {"nodes": 6},
            made=True,
        )
        for kind in POOL_OF
    ),
    *(
        Row(
            f"incorrect-state-{kind}",
            answer(CHANGE[kind], 409, "IncorrectState", "The resource is being changed.", 9999),
            "Cannot change the",
            OBJECT[kind],
            "409 IncorrectState: The resource is being changed",
            REQUEST,
            "Run again when it has ended",
            "",
            kind,
            {"nodes": 6},
            made=True,
        )
        for kind in POOL_OF
    ),
    Row(
        "no-right",
        answer(
            CREATE[MANAGED], 404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found."
        ),
        CREATING[MANAGED],
        GPU,
        "404 NotAuthorizedOrNotFound: Authorization failed or requested resource not found",
        REQUEST,
        "policies, see docs/oci_policies.md",
        "rdma_oci_region",
    ),
    Row(
        "bad-parameter",
        answer(CREATE[MANAGED], 400, "InvalidParameter", "Invalid nodeShape"),
        CREATING[MANAGED],
        GPU,
        "400 InvalidParameter: Invalid nodeShape",
        REQUEST,
        "Correct the input",
        "rdma_oci_",
    ),
    Row(
        "oci-at-fault",
        answer(CREATE[MANAGED], 500, "InternalServerError", "Internal Server Error", 99),
        CREATING[MANAGED],
        GPU,
        "500 InternalServerError: Internal Server Error",
        REQUEST,
        "Run again. Existing resources are kept",
        "",
    ),
    Row(
        "too-slow",
        lambda site: site.fake.durations.update(boot=7200.0),
        "0 of 4 nodes running",
        NODE_POOL,
        r"and not oke-\S+.* after 60 min",
        "",
        "run again",
        "",
    ),
]


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_message_has_each_part(site: Site, row: Row) -> None:
    site.asked["kind"] = row.kind
    if row.made:
        site.run()
    row.fault(site)
    with pytest.raises(RdmaError) as told:
        site.run(row.ignore, **row.asked)
    text, parts = str(told.value), ("operation", "object", "words", "trace", "remedy", "input")
    lost = [f"{part}: {getattr(row, part)}" for part in parts if not re.search(getattr(row, part), text)]
    assert not lost, f"{text}\nlacks {lost}"


# ---- faults that end no run ------------------------------------------------------------------------------------------


def outage(pattern: str, status: int, code: str, message: str, seconds: float = 90) -> Change:
    """From now on for some seconds of the fake's clock."""

    def change(site: Site) -> None:
        site.fake.fail(pattern, status, code, message, times=9999)
        fault = site.fake.faults[-1]
        site.fake.later(seconds, lambda: setattr(fault, "times", 0))

    return change


def done_and_lost(pattern: str) -> Change:
    """The next such request is carried out, and answered by 500 all the same; the client repeats it."""

    def change(site: Site) -> None:
        site.retries = answers.Retries(sleep=site.fake.clock.advance)
        handle = site.fake.handle

        def once(request: Any) -> Any:
            found = handle(request)
            if re.search(pattern, f"{request.method} {request.path}"):
                site.fake.handle = handle  # type: ignore[method-assign]
                raise Refused(500, "InternalServerError", "Internal Server Error")
            return found

        site.fake.handle = once  # type: ignore[method-assign]

    return change


def lagging(site: Site) -> None:
    site.fake.lag = site.fake.list_lag = 45.0


@dataclass(frozen=True)
class Endured:
    """``less``: a node of the running pool is removed, else it is made. ``line``: what the user reads meanwhile."""

    name: str
    fault: Change
    kind: str = MANAGED
    less: bool = False
    line: str = ""


DOWN = "still waiting: Cannot read the work request .*503 ServiceUnavailable"
ENDURED = [
    *(Endured(f"404-just-after-create-{kind}", lagging, kind) for kind in POOL_OF),
    *(
        Endured(
            f"503-for-90-s-{kind}", outage("GET .*workRequests/", 503, "ServiceUnavailable", "down"), kind, line=DOWN
        )
        for kind in POOL_OF
    ),
    Endured("429-for-90-s", outage("GET .*workRequests/", 429, "TooManyRequests", "Too many requests for the user")),
    Endured("500-after-a-node-was-deleted", done_and_lost("DELETE .*/node/"), less=True),
    Endured("500-after-a-node-was-detached", done_and_lost("POST .*/detachInstance"), NETWORK, less=True),
    Endured("412-for-90-s", outage("DELETE .*/node/", 412, "NoEtagMatch", "The etag does not match."), less=True),
    Endured("409-for-90-s", outage("DELETE .*/node/", 409, "IncorrectState", "The node pool is UPDATING."), less=True),
]


@pytest.mark.parametrize("row", ENDURED, ids=lambda row: row.name)
def test_the_run_goes_on(site: Site, row: Endured) -> None:
    site.asked["kind"] = row.kind
    if not row.less:
        row.fault(site)
        assert site.run()["created"] and len(site.nodes()) == 4
    else:
        site.run()
        gone = site.nodes()[0]
        row.fault(site)
        site.run(nodes=3, remove_nodes=(gone,))
        assert gone not in site.nodes() and len(site.nodes()) == 3
    assert not site.run(nodes=3 if row.less else 4)["changed"], "and the next run has nothing to do"
    assert re.search(row.line, "\n".join(site.lines)), site.lines
