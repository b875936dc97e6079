# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/oci_pool.yml on the fake OCI and a sandbox: from a tenancy to an NCCL verdict, again, killed, not joining.

GPUOPS_MATRIX=all kills a run at each of its tasks and after each of its writes, for both kinds of pools; else after the
pool was made.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oci
import psutil
import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import join_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack as oci_stack
from support import matrix, oci_site, page_runs
from support.fake_join import Joiner
from support.fake_oci import Answer, FakeOci, Request
from support.fake_stacks import Stacks, World
from support.page_runs import page_commands
from support.paths import ROOT, upstream
from support.sandboxes import PLAYBOOK, Cluster, Pool

ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
GPU, NODES = "ocid1.compartment.oc1..gpu", 4
LINK = "http://127.0.0.1:1/p/s3cr3t/n/space/b/images/o/{}.oci"
SITE = {"rdma_grace": "4", "rdma_nodes_timeout": "120", "rdma_nccl_test_timeout": "120"}


@dataclass
class Played:
    code: int
    output: str

    def changed(self) -> int:
        return int(re.search(r"changed=(\d+)", self.output)[1])


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pool.lease(tmp_path_factory.mktemp("sandbox"), "--gpu-nodes", "0", "--cpu-nodes", "2") as lent:
        yield lent


class Site:
    """A tenancy whose pools boot into a sandbox."""

    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path, cluster: Cluster) -> None:
        self.fake, self.folder, self.inside, self.sandbox = fake, folder, cluster, cluster.sandbox
        self.cluster = oci_site.cluster(fake)
        fake.tables["policies"].clear()
        self.cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
        self.joiner = Joiner(fake, self.sandbox, self.cluster)
        self.cluster["certificateAuthority"] = base64.b64encode(self.joiner.ca.encode()).decode()
        fake.sources[LINK.format(oci_site.IMAGE)] = ""
        fake.durations.update({"CreateImage": 3.0, "NODEPOOL_CREATE": 2.0, "CreateClusterNetwork": 2.0, "boot": 1.0})
        self.inputs = {
            "compartment": GPU,
            "cluster": self.cluster["id"],
            "availability_domain": oci_site.DOMAIN,
            "shape": oci_site.H100,
            "nodes": NODES,
            "subnet": oci_site.SUBNET,
            "image_url": LINK.format(oci_site.IMAGE),
            "policies": "write",
            "group": "oke-gpu",
            "service_endpoint": url,
            "config_file": str(oci_site.config_file(config, folder)),
            "join_timeout": 60,
        }
        self.process: subprocess.Popen[str] | None = None

    def play(self, playbook: str = "oci_pool", site: bool = False, kill_at: int = 0, **inputs: Any) -> Played:
        values = {f"rdma_oci_{key}": value for key, value in {**self.inputs, **inputs}.items()}
        values.update({**SITE, "rdma_report_dir": str(self.folder / "report"), "rdma_site": site})
        command = [PLAYBOOK, f"playbooks/{playbook}.yml"]
        command += ["-i", "inventories/sandbox", "-e", json.dumps(values)]
        environment = {
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/integration/oci/callbacks"),
            "KILL_AT": str(kill_at),
        }
        environment.update({"ANSIBLE_CALLBACKS_ENABLED": "kill_at", "KILL_TRACE": str(self.folder / "trace")})
        (self.folder / "trace").write_text("", encoding="utf-8")
        with (self.folder / "log").open("w+", encoding="utf-8") as log:
            self.process = self.inside.start(*command, env=environment, stdout=log, stderr=log)
            code = self.process.wait(timeout=900)
            log.seek(0)
            output = log.read()
        assert "Traceback" not in output, output[-4000:]
        assert "s3cr3t" not in output
        return Played(code, output)

    def tasks(self) -> list[str]:
        return (self.folder / "trace").read_text("utf-8").splitlines()

    def kill_after(self, pattern: str) -> None:
        """The next request that matches is done, and the run is killed before it is answered."""
        answer = self.fake._answer

        def once(request: Request) -> Answer:
            found = answer(request)
            if re.search(pattern, f"{request.method} {request.path}") and self.process:
                self.fake._answer = answer  # type: ignore[method-assign]
                main = psutil.Process(self.process.pid)
                for process in (main, *main.children(recursive=True)):  # a task's process is in a session of its own
                    process.kill()
            return found

        self.fake._answer = once  # type: ignore[method-assign]

    def made(self) -> dict[str, int]:
        """How many of each there are; what is gone does not count."""
        tables = ("images", "nodePools", "clusterNetworks", "computeClusters", "instanceConfigurations", "instances")
        gone = ("DELETED", "TERMINATED")
        listed = {name: self.fake.tables[name].values() for name in (*tables, "policies")}
        return {name: sum(item.get("lifecycleState") not in gone for item in items) for name, items in listed.items()}

    def nodes(self) -> list[str]:
        states = self.sandbox.api().node_states()
        return sorted(name for name in states if not name.startswith("10.140."))

    def clear(self) -> None:
        self.joiner.stop()
        for name in self.nodes():
            self.sandbox.api().delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path, cluster: Cluster) -> Iterator[Site]:
    made = Site(fake, url, config, tmp_path, cluster)
    yield made
    made.clear()


def stack(site: Site) -> dict[str, Any]:
    """Inputs of a cluster that Terraform makes: it is there when its stack has been applied."""
    key = site.inputs["cluster"]
    del site.fake.tables["clusters"][key]
    stacks = Stacks(site.fake)
    stacks.seconds.update({"PLAN": 1.0, "APPLY": 2.0, "ACCEPTED": 0.0})
    outputs = {"cluster_id": key, "cluster_name": "train", "worker_subnet_id": oci_site.SUBNET}
    stacks.world = World(resources={"module.oke.cluster": "oci_containerengine_cluster"}, outputs=outputs)
    stacks.on_apply = lambda _stack: site.fake.tables["clusters"].setdefault(key, site.cluster)
    with zipfile.ZipFile(site.folder / "stack.zip", "w") as archive:
        archive.writestr("variables.tf", 'variable "cluster_name" { default = "x" }\n')
    del site.inputs["cluster"], site.inputs["subnet"]
    return {"stack_zip": str(site.folder / "stack.zip"), "stack_variables": {"cluster_name": "train"}}


def test_from_a_tenancy_to_a_verdict_and_again(site: Site) -> None:
    late = re.compile(r"oci_join +instances 4/4  joined [0-3]/4 \| late: ")
    site.joiner.gate = lambda: bool(late.search((site.folder / "log").read_text("utf-8")))
    site.inputs.update(stack(site))
    done = site.play(site=True)
    assert done.code == 0, done.output[-6000:]
    assert "Creation complete" in done.output, "the log of Terraform is shown"
    assert re.search(r"import of .*: IN_PROGRESS, \d+ %", done.output), "the import's progress is shown"
    assert late.search(done.output), "k of n nodes"
    assert "joined 4/4" in done.output
    report = json.loads((site.folder / "report" / "report.json").read_text("utf-8"))
    assert report["verdict"] == "pass" and [node["name"] for node in report["nodes"]] == site.nodes()
    made = site.made()
    assert (made["images"], made["nodePools"], made["computeClusters"], made["instances"]) == (1, 1, 1, NODES)
    assert made["policies"] == 1
    before = site.fake.calls.copy()
    again = site.play(site=matrix.ALL)
    assert (again.code, again.changed()) == (0, 1 if matrix.ALL else 0), "only the test job" + again.output[-4000:]
    written = {call: count - before[call] for call, count in site.fake.calls.items() if count != before[call]}
    asks = ("computeCapacityReports", "kubeconfig/content")
    assert all(call.startswith("GET") or call.endswith(asks) for call in written), written
    assert site.made() == made


PAGES = ("docs/oci.md", "docs/howto_oke.md")


@matrix.only("every command of the pages")
def test_the_commands_of_the_pages_run_as_they_are(site: Site, tmp_path: Path) -> None:
    """docs/oci.md's own pool.yml, with Oracle's own index. The second page has the same commands, which run once."""
    ran, others = [
        [one for one in page_commands.commands(ROOT / page) if "gpuops.rdma.oci_" in one.text] for page in PAGES
    ]
    assert [one.text for one in ran] == [one.text for one in others] != []
    index = upstream("oci", "worker-node-images.json").read_text("utf-8")
    index = re.sub(r"https://[^/]+/", "http://127.0.0.1:1/", index)
    site.fake.sources.update({item["url"]: "" for item in json.loads(index)["images"]})
    (tmp_path / "worker-node-images.json").write_text(index)
    blocks = [text for _line, _language, text in page_commands.blocks(ROOT / PAGES[0])]
    asked = next(text for text in blocks if text.startswith("# pool.yml"))
    (tmp_path / "pool.yml").write_text(asked)
    subnet = yaml.safe_load(asked)["rdma_oci_subnet"]
    site.fake.add("subnets", {**site.fake.tables["subnets"][oci_site.SUBNET], "id": subnet})
    place = {"region": site.fake.region, "compartment": GPU}
    train = oci_stack.inventory({"cluster_id": site.cluster["id"], "cluster_name": "train"}, place)
    endpoint = {"rdma_oci_service_endpoint": site.inputs["service_endpoint"]}
    train["all"]["vars"] = {**SITE, **page_runs.charts(), **endpoint, "rdma_oci_join_timeout": 60}
    (tmp_path / "train.yml").write_text(yaml.safe_dump(train))
    env = {
        "OCI_CLI_CONFIG_FILE": site.inputs["config_file"],
        "PATH": f"{Path(ANSIBLE).parent}:{site.inside.environment()['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"),
    }
    done = site.inside.done("bash", "-c", f"cd {tmp_path}\n{page_runs.script(ran)}", env=env)
    faults = [fault for page in (ran, others) for fault in page_runs.failed(page, done.stdout)]
    assert not faults, "\n\n".join(faults)
    left = {"images": 1, "policies": 1}
    assert site.made() == {**dict.fromkeys(site.made(), 0), **left}


@pytest.mark.parametrize("kind", ["managed_compute_cluster", *(["cluster_network"] if matrix.ALL else [])])
def test_killed_after_its_writes_and_taken_down(site: Site, kind: str) -> None:
    """The worst moment: OCI has done it, and the run has not heard of it."""
    writes = ["POST .*/(nodePools|clusterNetworks)$"]
    if matrix.ALL:
        writes = ["POST .*/images$", "POST .*/(computeClusters|instanceConfigurations)$", *writes]
    for written in writes:
        site.kill_after(written)
        killed = site.play(kind=kind)
        assert killed.code == -signal.SIGKILL, written + killed.output[-3000:]
    converges(site, kind)
    assert "Say -e rdma_oci_teardown=rdma" in site.play("oci_teardown", kind=kind).output
    assert site.made()["instances"] == NODES
    gone = site.play("oci_teardown", kind=kind, teardown="rdma")
    assert (gone.code, gone.changed()) == (0, 1), gone.output[-4000:]
    left = site.made()
    assert (left["nodePools"], left["clusterNetworks"], left["computeClusters"], left["instances"]) == (0, 0, 0, 0)
    assert (left["images"], left["instanceConfigurations"]) == (1, 0), "images stay"
    if matrix.ALL:
        unchanged(site.play("oci_teardown", kind=kind, teardown="rdma"))


@matrix.only("a kill at each task")
@pytest.mark.parametrize("kind", ["managed_compute_cluster", "cluster_network"])
@pytest.mark.parametrize("task", range(1, 17))
def test_killed_at_a_task(site: Site, task: int, kind: str) -> None:
    killed = site.play(kill_at=task, kind=kind)
    assert killed.code == -signal.SIGKILL and len(site.tasks()) == task
    print(f"killed at {site.tasks()[-1]}")
    converges(site, kind)


def converges(site: Site, kind: str) -> None:
    done = site.play(kind=kind)
    assert done.code == 0, done.output[-4000:]
    made, managed = site.made(), kind == "managed_compute_cluster"
    assert (made["nodePools"], made["clusterNetworks"]) == ((1, 0) if managed else (0, 1))
    assert (made["computeClusters"], made["instanceConfigurations"]) == ((1, 0) if managed else (0, 1))
    assert (made["images"], made["instances"], len(site.nodes())) == (1, NODES, NODES)
    if matrix.ALL:
        unchanged(site.play(kind=kind))


def unchanged(played: Played) -> None:
    assert (played.code, played.changed()) == (0, 0), played.output[-4000:]


# ---- instances that do not join --------------------------------------------------------------------------------------


class Stuck:
    """Two self-managed instances, looked at as the action does, without waiting."""

    def __init__(self, site: Site, **metadata: Any) -> None:
        self.site, fake = site, site.fake
        ca = site.cluster["certificateAuthority"]
        given = {"apiserver_host": "10.0.0.10", "cluster_ca_cert": ca, "user_data": "b2tlIGJvb3RzdHJhcAo=", **metadata}
        pool = fake.add("instancePools", {"compartmentId": GPU, "size": 2})
        self.network = fake.add(
            "clusterNetworks", {"compartmentId": GPU, "displayName": "rdma", "instancePools": [pool]}
        )
        self.image = oci_site.image(fake)
        more = {"poolId": pool["id"], "poolKind": "cluster_network", "poolName": "rdma", "imageId": self.image["id"]}
        self.more = {**more, "metadata": given}

    def launch(self) -> None:
        for _index in range(2):
            oci_site.launch(self.site.fake, GPU, oci_site.H100, oci_site.DOMAIN, oci_site.SUBNET, **self.more)
        deadline = time.monotonic() + 900
        while len(self.site.joiner.consoles) < 2:
            assert time.monotonic() < deadline, self.site.joiner.consoles
            time.sleep(0.05)

    def policy(self) -> None:
        rule = f"ANY {{instance.compartment.id = '{GPU}'}}"
        fake = self.site.fake
        fake.add("dynamicGroups", {"name": "oke-gpu", "matchingRule": rule, "compartmentId": fake.tenancy})
        text = f"Allow dynamic-group oke-gpu to {{CLUSTER_JOIN}} in compartment id {GPU}"
        fake.add("policies", {"name": "join", "statements": [text], "compartmentId": GPU})

    @contextlib.contextmanager
    def looked(self, patience: int = 0) -> Iterator[tuple[join_read.Joining, Watcher]]:
        site = self.site
        options = {"compartment": GPU, "cluster": site.cluster["id"], "pool": self.network["id"], "nodes": 0}
        options.update({"group": "oke-gpu", "patience": patience, "join_timeout": 1})
        auth = {key: site.inputs[key] for key in ("service_endpoint", "config_file")}
        session = oci_session.Session(auth, oci.retry.NoneRetryStrategy())
        with Watcher(Client.connect({"kubeconfig": str(site.sandbox.kubeconfig)})) as watcher:
            self.joining = join_read.Joining(session, watcher, options)
            yield self.joining, watcher

    def told(self) -> dict[str, Any]:
        """Name -> status, after a look that has no patience."""
        with self.looked() as (joining, _watcher):
            return joining.read()


@pytest.fixture
def stuck(site: Site) -> Stuck:
    site.joiner.delay = 0.0
    return Stuck(site)


def test_those_that_join_are_nodes(stuck: Stuck) -> None:
    stuck.policy()
    stuck.launch()
    found = stuck.told()
    assert {status.state for status in found.values()} == {"ready"} and found["instances"].progress == "2/2"
    assert len(stuck.joining.joined()) == 2 and stuck.joining.session.requests == 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("policy", r"no CLUSTER_JOIN policy \(.*(missing: Allow dynamic-group oke-gpu|401 Unauthorized)"),
        ("image", r"image without bootstrap \(console: gpuops-join: no bootstrap"),
        ("user_data", r"image without bootstrap \(the instance has no user_data"),
        ("console", r"security rules of the node's network \(console: .*10\.0\.0\.10:6443: i/o timeout"),
        ("rules", r"security rules of the node's network \(no rule allows the cluster's endpoint 10\.0\.0\.10:6443"),
        ("ca", r"wrong cluster CA or endpoint \(console: .*x509: certificate signed by unknown authority"),
        ("ca without console", r"wrong cluster CA or endpoint \(the certificate in the instance's metadata is not"),
        ("endpoint without console", r"has 10\.0\.0\.99, but the cluster's endpoints are 10\.0\.0\.10"),
    ],
)
def test_why_one_does_not_join(stuck: Stuck, case: str, words: str) -> None:
    given, joiner = stuck.more["metadata"], stuck.site.joiner
    if case != "policy":
        stuck.policy()
    if case == "image":
        stuck.image["bootstrap"] = False
    if case == "user_data":
        given["user_data"] = ""
    if case in ("console", "rules"):
        joiner.open_ports = False
    if case == "rules":
        stuck.site.fake.tables["securityLists"]["list"]["egressSecurityRules"].clear()
    if case.startswith("ca"):
        given["cluster_ca_cert"] = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nother\n").decode()
    if case.startswith("endpoint"):
        given["apiserver_host"] = "10.0.0.99"
    joiner.readable = case not in ("rules", "ca without console", "endpoint without console")
    stuck.launch()
    found = stuck.told()
    texts = [status.why for key, status in found.items() if key.startswith("joined/")]
    assert [found[key].state for key in found] == ["ready", "broken", "broken"]
    assert re.search(words, texts[0]), texts[0]
    assert texts[1].startswith("same as inst-") and "Excluded: " in texts[0]
    assert ("Could not be read: console: " in texts[0]) == (not joiner.readable)
    assert not joiner._histories, "what was captured is removed again"


def test_nothing_is_claimed_without_evidence(stuck: Stuck) -> None:
    stuck.policy()
    stuck.site.joiner.hindered = "a disk that is full"
    stuck.launch()
    assert {status.state for key, status in stuck.told().items() if key != "instances"} == {"waiting"}
    text, _other = stuck.joining.texts.values()
    assert (
        text.startswith("neither OCI nor the console")
        and "Excluded: no CLUSTER_JOIN policy (the text of a statement" in text
    )
    assert "console-history capture --instance-id ocid1.instance" in text


@pytest.mark.parametrize(
    ("patience", "kind", "head"),
    [(0, Unrecoverable, "can no longer become ready"), (900, DeadlinePassed, "not ready after")],
)
def test_the_message_of_a_wait_that_ends(stuck: Stuck, patience: int, kind: type[Exception], head: str) -> None:
    """One message: how far it came, the cause once, what to do."""
    stuck.policy()
    stuck.site.joiner.open_ports = False
    stuck.launch()
    with stuck.looked(patience=patience) as (joining, _watcher), pytest.raises(kind) as error:
        joining.await_nodes(print)
    text = str(error.value)
    assert f"oci_join: {head}" in text and "instances 2/2  joined 0/2" in text
    assert text.count("i/o timeout") == 1 and "nothing is removed" in text
