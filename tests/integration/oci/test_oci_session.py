# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user may have wrong about himself or the way to OCI: one clear message each, and no key in it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import circuitbreaker
import oci
import pytest
import requests
import urllib3
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Forbidden,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import answers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from support import oci_site
from support.fake_oci import GARBLED, FakeOci

GPU = "ocid1.compartment.oc1..gpu"
Reach = Callable[..., oci_session.Session]


@pytest.fixture
def reach(url: str, config: dict[str, Any], tmp_path: Path) -> Reach:
    def one(more: Any = None, **changes: Any) -> oci_session.Session:
        path = oci_site.config_file({**config, **(more or {})}, tmp_path)
        options = {"service_endpoint": url, "config_file": str(path), **changes}
        return oci_session.Session(options, oci.retry.NoneRetryStrategy())

    return one


def asked(session: oci_session.Session) -> list[Any]:
    return session.all(f"list instances of {GPU}", "compute", "list_instances", GPU)


def raising(error: Exception) -> Callable[..., NoReturn]:
    def call(*_args: Any, **_more: Any) -> NoReturn:
        raise error

    return call


def other_key(folder: Path) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path = folder / "other.pem"
    path.write_bytes(text)
    return str(path)


def test_all_right(reach: Reach) -> None:
    assert asked(reach()) == []


WHO = "Check user, tenancy, fingerprint and key of the profile"


def test_a_wrong_key_or_fingerprint(reach: Reach, tmp_path: Path) -> None:
    for more in ({"key_file": other_key(tmp_path)}, {"fingerprint": ":".join(["ab"] * 16)}):
        with pytest.raises(Forbidden, match=f"Cannot list instances of .*401 NotAuthenticated.*{WHO}") as told:
            asked(reach(more))
        assert "PRIVATE KEY" not in str(told.value)


@pytest.mark.parametrize(
    ("more", "changes", "words"),
    [
        ({}, {"profile": "TRAIN"}, "has no profile 'TRAIN'. Known: DEFAULT"),
        ({}, {"region": "eu-frankfrt-1", "service_endpoint": None}, "Unknown OCI region 'eu-frankfrt-1'"),
        ({"key_file": "none.pem"}, {}, "Cannot authenticate to OCI by config: .*key_file"),
        ({"fingerprint": "12:34"}, {}, "the config is not valid .fingerprint: malformed"),
        ({}, {"config_file": "none"}, "the config file none does not exist"),
        ({}, {"auth_type": "password"}, "Unknown auth_type 'password'. Known: config, environment"),
        (
            {},
            {"auth_type": "security_token"},
            "profile DEFAULT has no security_token_file. Run oci session authenticate",
        ),
    ],
)
def test_a_wrong_profile_or_region(reach: Reach, more: Any, changes: Any, words: str) -> None:
    with pytest.raises(RdmaError, match=words):
        reach(more, **changes)


@pytest.mark.parametrize(("skew", "words"), [(1000.0, "1000 s behind|999 s behind"), (-1000.0, "100[01] s ahead")])
def test_a_wrong_clock(reach: Reach, fake: FakeOci, skew: float, words: str) -> None:
    fake.skew = skew
    with pytest.raises(Forbidden, match=f"This machine's clock is ({words}); OCI accepts 300 s"):
        asked(reach())


def test_no_right_looks_like_nothing_there(reach: Reach, fake: FakeOci) -> None:
    fake.fail("GET .*/instances", 404, "NotAuthorizedOrNotFound")
    with pytest.raises(NotFound, match=r"does not exist, or this user may not see it; OCI does not say.*policies"):
        asked(reach())


def test_the_service_is_down(reach: Reach, fake: FakeOci) -> None:
    session = reach()
    fake.fail("GET .*/instances", 503, "ServiceUnavailable", "try later")
    with pytest.raises(ClusterError, match="OCI answered 503 ServiceUnavailable: try later"):
        asked(session)
    with pytest.raises(Unreachable, match=r"Cannot list instances of .*: no answer from http://127.0.0.1:1 "):
        asked(reach(service_endpoint="http://127.0.0.1:1"))


CALLS = {
    "a list": ("compute", "list_instances", (GPU,)),
    "a collection": ("compute", "list_compute_clusters", (GPU,)),
    "an object": ("network", "get_subnet", ("nodes",)),
    "no answer's body": ("compute", "delete_compute_cluster", ("ocid1.computecluster.oc1..a",)),
}
UNREAD = ("a page that claims to be JSON", "cut", "empty", "null", "an empty object")
HARMLESS = {("no answer's body", name) for name in UNREAD}
"""A deletion has no body; what comes with it is not read."""


@pytest.mark.parametrize("name", list(GARBLED))
@pytest.mark.parametrize("what", list(CALLS))
def test_an_answer_that_is_not_ocis(reach: Reach, fake: FakeOci, what: str, name: str) -> None:
    """Each of these counted as an empty list or as an object without fields."""
    client, method, args = CALLS[what]
    fake.add("instances", {"compartmentId": GPU, "displayName": "a", "lifecycleState": "RUNNING"})
    cluster = {"id": "ocid1.computecluster.oc1..a", "compartmentId": GPU, "displayName": "a"}
    fake.add("computeClusters", {**cluster, "lifecycleState": "ACTIVE"})
    session = reach()
    if what != "no answer's body":
        assert session.call("ask", client, method, *args).data
    fake.garbling.append(("", GARBLED[name]))
    if (what, name) in HARMLESS:
        session.call("ask", client, method, *args)
        return
    with pytest.raises(
        Unreachable, match=r"Cannot ask: 127.0.0.1:\d+ answered .*which is not JSON from OCI \(a proxy\?\)"
    ):
        session.call("ask", client, method, *args)


def test_a_page_for_an_error_is_not_a_404(reach: Reach, fake: FakeOci) -> None:
    """A proxy that does not know the host: "not found" would read as "the pool is deleted"."""
    fake.fail("GET .*/subnets", 404, "NotFound")
    fake.garbling.append(("", GARBLED["a proxy's page"]))
    with pytest.raises(Unreachable, match="answered 404, text/html, which is not JSON from OCI"):
        reach().call("ask", "network", "get_subnet", "nodes")


class Failing:
    """A call of the SDK that fails ``times`` times, each time after ``seconds``."""

    def __init__(self, error: Exception, times: int, seconds: float = 0.0) -> None:
        self.error, self.times, self.seconds, self.tried, self.now = error, times, seconds, 0, 0.0

    def __call__(self) -> str:
        self.tried += 1
        self.now += self.seconds
        if self.tried > self.times:
            return "answer"
        raise self.error

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> str:
        return answers.Retries(lambda: self.now, self.sleep).make_retrying_call(self)


def wrapped(cause: Exception, kind: type[Exception] = requests.exceptions.ConnectionError) -> Exception:
    """As requests, urllib3 and the SDK wrap it."""
    pool = urllib3.connectionpool.HTTPSConnectionPool("iaas.eu-frankfurt-1.oraclecloud.com", 443)
    return oci.exceptions.RequestException(kind(urllib3.exceptions.MaxRetryError(pool, "/20160918/x" * 30, cause)))


def test_one_deadline_for_a_call_and_its_repetitions() -> None:
    """It was 579 s for a service that hangs, and 100 s for a wrong certificate."""
    hang = Failing(wrapped(TimeoutError("timed out")), 99, seconds=25.0)
    with pytest.raises(oci.exceptions.RequestException):
        hang.run()
    assert hang.tried == 2 and hang.now <= answers.DEADLINE
    busy = Failing(oci.exceptions.ServiceError(429, "TooManyRequests", {}, "slow down"), 4)
    assert busy.run() == "answer" and busy.now <= answers.DEADLINE
    down = Failing(oci.exceptions.ServiceError(503, "ServiceUnavailable", {}, "no"), 99)
    with pytest.raises(oci.exceptions.ServiceError):
        down.run()
    assert down.tried >= 5 and down.now <= answers.DEADLINE


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate in chain"), "self-signed"),
        (OSError("Tunnel connection failed: 407 Proxy Authentication Required"), "407 Proxy Authentication"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
    ],
)
def test_a_permanent_fault_is_not_repeated_and_its_cause_shown(
    reach: Reach, monkeypatch: pytest.MonkeyPatch, cause: Exception, words: str
) -> None:
    failing = Failing(wrapped(cause), 99)
    with pytest.raises(oci.exceptions.RequestException):
        failing.run()
    assert failing.tried == 1
    session = reach()
    monkeypatch.setattr(session.client("compute"), "list_instances", raising(wrapped(cause)))
    with pytest.raises(Unreachable, match=f"Cannot list instances of .*no answer from .*{words}"):
        asked(session)


def test_a_400_is_not_repeated() -> None:
    for status, code in ((400, "InvalidParameter"), (404, "NotFound"), (409, "Conflict"), (501, "NotImplemented")):
        failing = Failing(oci.exceptions.ServiceError(status, code, {}, "no"), 99)
        with pytest.raises(oci.exceptions.ServiceError):
            failing.run()
        assert failing.tried == 1, status


def test_a_long_message_keeps_its_end(reach: Reach, fake: FakeOci) -> None:
    fake.fail("GET .*/instances", 400, "InvalidParameter", f"{'x ' * 400}because of the shape")
    with pytest.raises(ClusterError, match=r"x \.\.\. .*because of the shape"):
        asked(reach())


def test_a_wrong_pass_phrase(reach: Reach, config: dict[str, Any], tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(Path(config["key_file"]).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    secret = serialization.BestAvailableEncryption(b"right")
    locked.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, secret)
    )
    assert asked(reach({"key_file": str(locked), "pass_phrase": "right"})) == []
    with pytest.raises(InputError, match="or the pass_phrase is wrong"):
        reach({"key_file": str(locked), "pass_phrase": "wrong"})
    with pytest.raises(InputError, match="the key needs a pass_phrase"):
        reach({"key_file": str(locked)})


def test_a_key_that_is_not_rsa(reach: Reach, tmp_path: Path) -> None:
    """It loads, and every call failed with a TypeError."""
    text = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "ed25519.pem"
    path.write_bytes(text)
    with pytest.raises(InputError, match="the key is Ed25519; API keys of OCI are RSA") as error:
        reach({"key_file": str(path)})
    assert "PRIVATE KEY" not in str(error.value)


def test_a_session_profile_without_auth_type(url: str, config: dict[str, Any], tmp_path: Path) -> None:
    """As `oci session authenticate` writes it: a token, no user."""
    (tmp_path / "token").write_text("eyJ.x.y", encoding="utf-8")
    profile = {key: value for key, value in config.items() if key != "user"}
    path = oci_site.config_file({**profile, "security_token_file": str(tmp_path / "token")}, tmp_path)
    session = oci_session.Session({"service_endpoint": url, "config_file": str(path)})
    assert session.auth_type == "security_token" and session.tenancy == config["tenancy"]


@pytest.mark.parametrize("key", ["fra", "FRA"])
def test_a_region_by_its_key(reach: Reach, key: str) -> None:
    assert reach({"region": key}, service_endpoint=None).region == "eu-frankfurt-1"
    assert reach(region=key, service_endpoint=None).region == "eu-frankfurt-1"


def test_cloud_shell(reach: Reach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCI_CLI_AUTH", "instance_obo_user")
    with pytest.raises(InputError, match=r"no delegation_token_file. Cloud Shell has it in /etc/oci/config"):
        reach()
    (tmp_path / "delegation").write_text("token-of-the-user\n", encoding="utf-8")
    told = {}
    monkeypatch.setattr(
        oci.auth.signers,
        "InstancePrincipalsDelegationTokenSigner",
        lambda **more: told.update(more) or SimpleNamespace(),
    )
    session = reach({"delegation_token_file": str(tmp_path / "delegation")})
    assert told == {"delegation_token": "token-of-the-user"} and session.auth_type == "instance_obo_user"


def test_the_sdk_gives_up_after_many_failures(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    session = reach()
    broken = session._tripped(circuitbreaker.CircuitBreaker(name="compute"))
    monkeypatch.setattr(session.client("compute"), "list_instances", raising(broken))
    with pytest.raises(Unreachable, match=r"Cannot list instances of .*no answer"):
        asked(session)


def test_the_tenancy_of_a_workload_is_in_its_token(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that join by themselves are told it."""
    token = SimpleNamespace(get_jwt=lambda: {"res_tenant": "ocid1.tenancy.oc1..work"})
    signer = SimpleNamespace(security_token=token, region="eu-frankfurt-1")
    monkeypatch.setattr(oci_session.Session, "_by_workload_identity", lambda _self: ({}, signer))
    assert reach(auth_type="workload_identity").tenancy == "ocid1.tenancy.oc1..work"
    signer.security_token = "ST$x"
    monkeypatch.setenv("OCI_CLI_TENANCY", "ocid1.tenancy.oc1..told")
    assert reach(auth_type="workload_identity").tenancy == "ocid1.tenancy.oc1..told"


def test_an_ocid_of_another_type() -> None:
    with pytest.raises(InputError, match=r"image must be the OCID of an image, not of a subnet: ocid1.subnet.oc1"):
        oci_session.of_kind("ocid1.subnet.oc1.a.b", "image", "image")
    with pytest.raises(InputError, match=r"cluster must be an OCID \(ocid1.cluster\.\.\.\), not 'train'"):
        oci_session.of_kind("train", "cluster", "cluster")


def test_the_clis_name_for_a_key_in_the_environment(
    fake: FakeOci, url: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the credential of AWX sets it: the CLI, which a kubeconfig of OKE runs, refuses `environment`."""
    told = {"TENANCY": "tenancy", "USER": "user", "FINGERPRINT": "fingerprint", "REGION": "region"}
    for name, key in told.items():
        monkeypatch.setenv(f"OCI_CLI_{name}", config[key])
    monkeypatch.setenv("OCI_CLI_KEY_CONTENT", Path(config["key_file"]).read_text("utf-8"))
    monkeypatch.setenv("OCI_CLI_AUTH", "api_key")
    session = oci_session.Session({"service_endpoint": url})
    assert session.auth_type == "environment"
    assert asked(session) == []


@pytest.mark.parametrize(
    ("told", "ours"),
    [
        (None, "config"),
        ("api_key", "config"),
        ("oke_workload_identity", "workload_identity"),
        ("security_token", "security_token"),
        ("environment", "environment"),
        ("pkcs11", "pkcs11"),
    ],
)
def test_names_of_the_cli(told: str | None, ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTH", "KEY_CONTENT", "KEY_FILE"):
        monkeypatch.delenv(f"OCI_CLI_{name}", raising=False)
    if told:
        monkeypatch.setenv("OCI_CLI_AUTH", told)
    assert oci_session.auth_of_environment() == ours
