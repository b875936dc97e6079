# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user may have wrong about himself or the way to OCI: one clear message each, and no key in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import circuitbreaker
import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import (
    ClusterError,
    Forbidden,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci_session
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support import oci_site
from support.fake_oci import FakeOci

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
