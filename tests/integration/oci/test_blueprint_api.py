# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deployments against the fake API of OCI AI Blueprints: made once, waited for, refused, lost answers, no secrets."""

from __future__ import annotations

import datetime
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    Forbidden,
    InputError,
    NotFound,
    Unreachable,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import client, deploy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.client import Api
from support.fake_blueprints import PAGE, FakeBlueprints

PASSWORD, LINK = "pa55-c4nary", "https://acme.objectstorage.test/p/l1nk-c4nary/n/acme/b/models/o/"
POOL = {
    "deployment_name": "h100-rdma",
    "recipe_mode": "shared_node_pool",
    "shared_node_pool_size": 2,
    "shared_node_pool_shape": "BM.GPU.H100.8",
    "shared_node_pool_boot_volume_size_in_gbs": 1000,
    "recipe_availability_domain": "AbCd:EU-FRANKFURT-1-AD-1",
    "recipe_node_image_ocid": "ocid1.image.oc1.eu-frankfurt-1.aaaa",
    "multinode_rdma_enabled_in_shared_pool": True,
}
SERVICE = {
    "recipe_id": "x",
    "recipe_mode": "service",
    "deployment_name": "chat",
    "recipe_node_shape": "BM.GPU.H100.8",
    "input_object_storage": [{"par": LINK, "mount_location": "/models", "volume_size_in_gbs": 500}],
    "recipe_container_env": [{"key": "HF_TOKEN", "value": "hf-c4nary"}],
}


class Kept:
    """A record in memory."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def read(self, uuid: str) -> str:
        return self.found.get(uuid, "")

    def write(self, uuid: str, name: str, digest: str) -> None:
        self.found[uuid] = digest

    def forget(self, uuid: str) -> None:
        self.found.pop(uuid, None)


@pytest.fixture
def server() -> Iterator[FakeBlueprints]:
    made = FakeBlueprints()
    made.pace = 0.02
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "FIRST_POLL", 0.02)


class Here:
    def __init__(self, server: FakeBlueprints, **options: Any) -> None:
        self.server, self.said = server, []
        self.api = Api({"url": server.url, "username": "admin", "password": PASSWORD, **options})

    def site(self, **more: Any) -> deploy.BlueprintServer:
        return deploy.BlueprintServer(self.api, self.said.append, **{"timeout": 60.0, **more})

    def present(self, *blueprints: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        return self.site(**more).present(blueprints or (POOL,))

    def at_pauses(self, *actions: Callable[[], object]) -> list[float]:
        """Does these one by one at the pauses of the wait, which has then seen what was before; the pauses."""
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) <= len(actions):
                actions[len(pauses) - 1]()
            else:
                time.sleep(seconds)

        self.api.sleep = sleep
        return pauses

    def go_on(self) -> None:
        """Deployments leave the state in which they stay."""
        for item in self.server.deployments.values():
            item.stuck = ""

    def deployed(self) -> list[str]:
        return [item.name for item in self.server.deployments.values() if item.directive == "commission"]


@pytest.fixture
def here(server: FakeBlueprints) -> Here:
    return Here(server)


def test_a_pool_is_made_once(here: Here) -> None:
    here.server.stuck["h100-rdma"] = "creating"
    here.at_pauses(here.go_on)
    first = here.present()[0]
    assert first["changed"] and first["ready"] and first["status"] in ("active", "monitoring")
    assert first["created"] == "2025-03-28T11:12:00Z"
    assert any("creating" in line for line in here.said), "statuses are shown as they change"
    again = here.present()[0]
    assert not again["changed"] and again["uuid"] == first["uuid"] and again["content"] == "unknown"
    assert len(here.server.posted) == 1
    assert here.server.calls["POST /login/"] == 1
    assert all(call.endswith("/") for call in here.server.calls)


@pytest.mark.parametrize("knows", ["server", "record"])
def test_other_content_is_not_passed_over(here: Here, knows: str) -> None:
    record = Kept()
    here.server.tells = knows == "server"
    here.present(record=record)
    assert here.present(record=record)[0]["content"] == knows
    bigger = {**POOL, "shared_node_pool_size": 4}
    what = "shared_node_pool_size" if knows == "server" else "its content"
    with pytest.raises(InputError, match=f"other values of {what}.*rdma_blueprint_recreate=true"):
        here.present(bigger, record=record)
    assert len(here.server.posted) == 1, "nothing is undeployed unasked"
    predicted = here.present(bigger, record=record, recreate=True, check_mode=True)[0]
    assert predicted["changed"] and here.server.posted[-1] == POOL
    done = here.present(bigger, record=record, recreate=True)[0]
    assert done["changed"] and here.server.posted[-1] == bigger and here.deployed() == ["h100-rdma"]
    assert not here.present(bigger, record=record, recreate=True)[0]["changed"]


def test_what_the_lint_refuses_is_not_sent(here: Here) -> None:
    silent = {key: value for key, value in POOL.items() if "rdma" not in key}
    with pytest.raises(InputError, match=r"Nothing was sent.*multinode_rdma_enabled_in_shared_pool is missing"):
        here.present(POOL, silent)
    with pytest.raises(InputError, match=r"one by one"):
        here.present({"deployment_group": {"name": "g", "deployments": []}})
    assert not here.server.posted


def test_undeploy(here: Here) -> None:
    assert not here.site().absent("h100-rdma")["changed"]
    here.present()
    assert here.site(check_mode=True).absent("h100-rdma")["changed"] and here.deployed() == ["h100-rdma"]
    assert here.site().absent("h100-rdma")["changed"] and here.deployed() == []
    assert here.site().listed() == []
    uuid = here.present()[0]["uuid"]
    here.server.fail("POST /undeploy/", 404, '{"detail": "gone"}')
    item = next(one for one in here.api.deployments() if one.uuid == uuid)
    assert here.api.undeploy(item) is False, "404 means that it is gone already"


def test_an_unknown_state_ends_with_the_log(here: Here) -> None:
    here.server.stuck["h100-rdma"] = "reticulating"
    with pytest.raises(DeadlinePassed) as late:
        here.present(timeout=0.3)
    said = str(late.value)
    assert "reticulating" in said and "run again" in said
    assert said.splitlines()[-1].split() == ["Command", "initializing"], "the log's end is attached"


def test_a_state_that_speaks_of_failure_ends_the_wait(here: Here) -> None:
    here.server.stuck["h100-rdma"] = "FAILED"
    with pytest.raises(Unrecoverable, match=r"ended as FAILED. End of its log"):
        here.present(timeout=60.0)


def test_the_log_of_a_deployment(here: Here) -> None:
    here.present()
    assert here.site().log("h100-rdma")["log"][-1] == "Monitor nominal"
    with pytest.raises(NotFound, match=r"no deployment other"):
        here.site().log("other")


def test_an_answer_that_is_lost_makes_no_second_deployment(here: Here) -> None:
    here.server.forgetful = True
    here.server.fail("POST /deployment/", 0, after=True)
    assert here.present()[0]["changed"]
    assert len(here.server.posted) == 1 and here.deployed() == ["h100-rdma"]
    assert any("no answer" in line for line in here.said)


def test_a_request_that_was_not_taken_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.api, "sleep", lambda seconds: None)
    here.server.fail("POST /deployment/", 504, "<html><title>504</title></html>", kind="text/html")
    with pytest.raises(Unreachable, match=r"is not in the list of deployments: run again"):
        here.present()
    assert not here.server.posted


@pytest.mark.parametrize("lost", ["refused", "dropped", "cut", "cut error"])
def test_the_api_goes_away_in_the_middle_and_comes_back(here: Here, lost: str) -> None:
    """The deployment is not ready before the API was missed, however slow this machine is."""
    here.server.stuck["h100-rdma"] = "creating"
    status = {"dropped": 0, "cut": 200, "cut error": 500}.get(lost, 0)

    def away() -> None:
        assert any("creating" in line for line in here.said), "the wait has begun"
        if lost == "refused":
            here.server.stop()
        else:
            here.server.fail("GET /deployment/", status, "[", cut=status > 0)

    def back() -> None:
        if lost == "refused":
            here.server.start()
        here.go_on()

    pauses = here.at_pauses(away, back)
    assert here.present()[0]["ready"]
    assert pauses[:2] == [deploy.FIRST_POLL, client.PAUSE], "nothing answered once"
    assert len(here.server.posted) == 1


def test_the_api_stays_away(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.api.deployments()
    here.server.stop()
    with pytest.raises(Unreachable, match=r"Cannot list deployments: .* does not answer") as lost:
        here.api.deployments(patience=1.5)
    assert "\n" not in str(lost.value)
    with pytest.raises(Unreachable, match=r"Cannot log in to Blueprints"):
        Api({"url": here.server.url, "username": "a", "password": "b"}).call("x", "GET", "/deployment/", patience=0.1)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, PAGE, "text/html; charset=utf-8", "a web page .Log in . Corrino. instead of JSON"),
        (200, "<html></html>", "", "a web page instead of JSON"),
        (302, PAGE, "text/html", "a web page"),
        (301, "", "text/plain", "redirects; set rdma_blueprint_url to the address of the API itself"),
        (403, '{"detail": "no"}', "application/json", "403: no. Check username and password"),
        (
            500,
            "<html><title>Server Error</title></html>",
            "text/html",
            "500: a web page, Server Error. A missing policy",
        ),
        (200, '{"a": 1}', "application/json", "has an unknown format"),
        (200, "nonsense", "text/plain", "has an unknown format"),
    ],
)
def test_other_answers_than_json(here: Here, status: int, body: str, kind: str, words: str) -> None:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError

    here.server.fail("GET /deployment/", status, body, kind=kind, times=9)
    with pytest.raises(RdmaError, match=words) as told:
        here.api.deployments(patience=0.1)
    assert len(str(told.value)) < 500


def test_login(server: FakeBlueprints) -> None:
    for options, words in (
        ({"password": "wr0ng-c4nary"}, "Unable to log in with provided credentials. Check username and password"),
        ({"username": "", "password": ""}, "set rdma_blueprint_username and rdma_blueprint_password, or"),
        ({"url": "api.acme.test"}, "url must be"),
        ({"url": "http://api.acme.test"}, "no TLS"),
        ({"url": f"https://admin:{PASSWORD}@api.acme.test"}, "must not contain a user"),
        ({"url": f"https://admin:{PASSWORD}@api.acme.test/x"}, "url must be"),
    ):
        with pytest.raises((InputError, Forbidden), match=words) as told:
            Here(server, **options).api.deployments()
        assert "c4nary" not in str(told.value)
    assert Here(server, token=server.token, username="", password="").api.deployments() == []
    with pytest.raises(Forbidden, match=r"or the token"):
        Here(server, token="t0ken-c4nary", username="", password="").api.deployments()


def test_a_token_that_expires_in_a_long_wait(here: Here) -> None:
    here.api.deployments()
    here.server.token = "f" * 40
    assert here.api.deployments() == []
    assert here.server.calls["POST /login/"] == 2


def test_no_secret_is_told(here: Here) -> None:
    told = f"cannot read {LINK} with hf-c4nary and {PASSWORD}"
    echo = json.dumps({"error": {"password": PASSWORD, "detail": told}})
    here.server.fail("POST /deployment/", 400, echo)
    with pytest.raises(ClusterError, match=r"cannot read \S+/p/.hidden./n/\S+ with .hidden. and .hidden.") as refused:
        here.present(SERVICE)
    here.server.stuck["chat"] = "waiting"
    here.server.fail("GET /deployment_logs/", 200, f'["{LINK} {PASSWORD} {here.server.token}"]')
    with pytest.raises(DeadlinePassed) as late:
        here.present(SERVICE, timeout=0.1)
    assert "c4nary" not in str(refused.value) + str(late.value) + " ".join(here.said)
    assert here.server.token not in str(late.value)


def test_a_name_of_another_mode_and_of_two(here: Here) -> None:
    here.present()
    with pytest.raises(InputError, match=r"used by a deployment of mode shared_node_pool"):
        here.present({**SERVICE, "deployment_name": "h100-rdma"})
    here.server.forgetful = True
    here.api.create(POOL)
    assert len(here.present()[0]["duplicates"]) == 1
    assert any("deployed 2 times" in line for line in here.said)
    assert here.site().absent("h100-rdma")["changed"] and here.deployed() == []


def test_one_that_leaves_is_waited_for(here: Here) -> None:
    here.present()
    here.server.pace = 0.5
    here.api.undeploy(here.api.deployments()[0])
    here.server.pace = 0.2
    assert here.present()[0]["changed"]
    assert here.deployed() == ["h100-rdma"]


def test_tls_is_verified(tmp_path: Path) -> None:
    pem = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = FakeBlueprints()
    server.start(context)
    try:
        with pytest.raises(ClusterError, match=r"is not trusted .*_blueprint_ca_path.*_blueprint_verify_tls=false"):
            Here(server).api.deployments(patience=0.1)
        assert not server.calls, "no password goes to a server that is not trusted"
        assert Here(server, ca_path=str(pem)).api.deployments() == []
        assert Here(server, verify_tls=False).api.deployments() == []
    finally:
        server.stop()


def _certificate(folder: Path) -> Path:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "blueprints")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
