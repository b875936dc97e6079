# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence: what is in it and what never is, signatures, and what a verification refuses."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Union

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import dsse, evidence_io, statement
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from support import report_samples as samples

Key = Union[ed25519.Ed25519PrivateKey, ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey]
KEYS: dict[str, Callable[[], Key]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
}
UID, DIGEST = "6d1c8c4e-0b9e-4f57-9d5d-111122223333", f"sha256:{'ab' * 32}"
FACTS = {"cluster": UID, "images": [{"name": "gpu-operator:v26.7.0", "digest": DIGEST}], "unread": []}


def pair(folder: Path, key: Key, password: bytes = b"") -> tuple[str, str]:
    """Files of a private key and its public one."""
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    found = folder / "evidence.key", folder / "evidence.pub"
    for path, data in zip(found, (private, public)):
        path.write_bytes(data)
    return str(found[0]), str(found[1])


def written(folder: Path, report: dict[str, Any], key: str = "", facts: Any = FACTS) -> list[str]:
    run.write(folder / "report.json", report)
    return evidence_io.write(folder, report, facts, key)


def verified(place: Path, key: str = "", report: str = "", salt: str = "") -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    given = {"evidence_file": place, "public_key_file": key, "report_file": report, "salt_file": salt}
    return evidence_io.verify(given, lines.append), lines


@pytest.fixture(name="folder", params=KEYS)
def _folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A report's folder with signed evidence of a run with faults."""
    written(tmp_path, samples.fault(), pair(tmp_path, KEYS[request.param]())[0])
    return tmp_path


def test_the_statement_says_what_was_tested_without_a_name_of_the_site(tmp_path: Path) -> None:
    report = samples.fault()
    report["nccl"][0].update(image="iad.ocir.io/tenancy/nccl:2.32", digest=DIGEST)
    report["scan"] = samples.scanned(48)["scan"]
    written(tmp_path, report)
    made = json.loads((tmp_path / "evidence.json").read_text("utf-8"))
    text = json.dumps(made)
    for name in [*(node["name"] for node in report["nodes"]), "10.140", UID, "iad.ocir.io", "tenancy", "not shown"]:
        assert name not in text, name
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["subject"][0]["name"] == "report.json" and len(made["subject"][0]["digest"]["sha256"]) == 64
    said = made["predicate"]
    assert (said["verdict"], said["simulated"], said["cluster"]) == ("fail", True, made["subject"][1]["name"])
    lacks = next(node for node in said["nodes"] if node["vfs"]["allocatable"] == 15)
    assert lacks["vfs"]["expected"] == 16 and "error: vf.missing" in lacks["findings"]
    assert lacks["expected_by"] == "files/topology/BM.GPU.H100.8.yml" and lacks["expected_by"] in said["tables"]
    (test,) = said["tests"]
    assert test["image"] == {"name": "nccl:2.32", "digest": DIGEST} and test["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert test["threshold"]["gbytes"] == 360 and test["threshold"]["source"].startswith("CoreWeave 8 nodes")
    assert test["threshold"]["table"] == "files/nccl.yml" and len(said["tables"]["files/nccl.yml"]) == 64
    assert test["simulated"] and said["images"] == FACTS["images"]
    (scan,) = said["scans"]
    assert scan["verdict"] == "fail" and sum(len(one["nodes"]) for one in scan["convicted"]) == 2
    assert {one for found in scan["convicted"] for one in found["nodes"]} < set(scan["nodes"])


def test_the_same_run_is_the_same_bytes_and_another_salt_has_other_pseudonyms(tmp_path: Path) -> None:
    report = samples.fault()
    made = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        for _ in range(2):
            written(folder, report)
            made.append((folder / "evidence.json").read_bytes())
        assert (folder / "evidence-salt").stat().st_mode & 0o777 == 0o600
    assert made[0] == made[1] != made[2] == made[3]
    ids = [{node["id"] for node in json.loads(data)["predicate"]["nodes"]} for data in (made[0], made[2])]
    assert len(ids[0]) == 8 and not ids[0] & ids[1]


def test_what_the_cluster_does_not_show_is_unknown(tmp_path: Path) -> None:
    written(tmp_path, samples.fault(), facts=None)
    said = json.loads((tmp_path / "evidence.json").read_text("utf-8"))["predicate"]
    assert (said["cluster"], said["images"], said["unread"][0][:18]) == ("unknown", "unknown", "cluster and images")
    assert said["tests"][0]["image"] == {"name": "unknown", "digest": "unknown"}

    class Silent:
        def path(self, *_args: str) -> str:
            return "/"

        def projected(self, *_args: Any, **_more: Any) -> Any:
            raise Unreachable("10.0.0.1 does not answer")

    found = evidence_io.seen(SimpleNamespace(client=Silent()), Plan())  # type: ignore[arg-type]
    assert "10.0.0.1" not in str(found) and found["unread"][0] == "cluster (Unreachable)" and not found["images"]


@pytest.mark.parametrize(
    ("source", "table"),
    [
        ("given", ""),
        ("this site's own threshold", ""),
        ("this site's baseline, 0.95 of 380", ""),
        ("AWS", "files/nccl.yml"),
    ],
)
def test_a_threshold_names_its_source(source: str, table: str) -> None:
    report = samples.fault()
    report["nccl"][0]["source"] = source
    said = statement.statement(report, "", {}, {}, b"salt")["predicate"]["tests"][0]["threshold"]
    assert said["table"] == table and said["source"] == source.replace("given", "this run's input")


def test_signed_evidence_is_proven_and_the_owner_resolves_names(folder: Path) -> None:
    found, lines = verified(folder / "evidence.dsse.json", str(folder / "evidence.pub"))
    assert (found["verdict"], found["nodes"], found["simulated"], found["signed"]) == ("fail", 8, True, True)
    assert "FAIL  2026-01-02T03:04:05Z, 8 nodes, cluster-" in lines[0] and lines[0].endswith("[GPUs simulated]")
    assert found["report_checked"] and "report.json is unchanged" in lines[-1] and not found["names"]
    owner, _ = verified(folder, str(folder / "evidence.pub"), salt=str(folder / "evidence-salt"))
    assert sorted(owner["names"].values()) == sorted(samples.names(8))
    (folder / "evidence-salt").write_text("cd" * 32, "ascii")
    with pytest.raises(InputError, match="the salt does not lead"):
        verified(folder, str(folder / "evidence.pub"), salt=str(folder / "evidence-salt"))
    # who gets the envelope alone, without the names in report.json
    (folder / "report.json").unlink()
    alone, lines = verified(folder, str(folder / "evidence.pub"))
    assert not alone["report_checked"] and "report.json was not given" in lines[-1]
    with pytest.raises(InputError, match="Cannot read the report"):
        verified(folder, str(folder / "evidence.pub"), report=str(folder / "report.json"))


def test_every_changed_byte_is_refused(folder: Path) -> None:
    key, place = str(folder / "evidence.pub"), folder / "evidence.dsse.json"
    whole = place.read_bytes()
    places = [*range(0, len(whole), 97), *range(len(whole) - 220, len(whole))]
    for change in (lambda byte: byte ^ 1, lambda byte: byte ^ 32):
        for at in places:
            place.write_bytes(whole[:at] + bytes([change(whole[at])]) + whole[at + 1 :])
            with pytest.raises(InputError):
                verified(place, key)
    for changed in (whole + b" ", whole[:-1], b"\n" + whole, b"", b"[" * 100_000, b"null", b'{"payload": 1}'):
        place.write_bytes(changed)
        with pytest.raises(InputError):
            verified(place, key)
    place.write_bytes(whole)
    report = folder / "report.json"
    report.write_bytes(report.read_bytes().replace(b'"fail"', b'"pass"', 1))
    with pytest.raises(InputError, match="is not the one of this evidence"):
        verified(place, key)


def test_wrong_keys_and_missing_signatures_are_refused(tmp_path: Path) -> None:
    private, public = pair(tmp_path, KEYS["ed25519"]())
    written(tmp_path, samples.fault(), private)
    signed, plain = tmp_path / "evidence.dsse.json", tmp_path / "evidence.json"
    with pytest.raises(InputError, match="is not signed, and a key was given"):
        verified(plain, public)
    with pytest.raises(InputError, match="give the public key"):
        verified(signed)
    for make in (*KEYS.values(), lambda: rsa.generate_private_key(65537, 2048)):
        other = pair(tmp_path, make())
        with pytest.raises(InputError, match=r"was not signed with the key|must be an ed25519"):
            verified(signed, other[1])
    for bad in (pair(tmp_path, rsa.generate_private_key(65537, 2048)), pair(tmp_path, KEYS["p256"](), b"pass")):
        with pytest.raises(InputError, match="ed25519 or ECDSA P-256 key in PEM"):
            written(tmp_path, samples.fault(), bad[0])
    with pytest.raises(InputError, match="Cannot read the private key"):
        written(tmp_path, samples.fault(), str(tmp_path / "absent"))
    assert not signed.exists(), "an envelope of an earlier report would be left beside the new one"
    found, lines = verified(tmp_path)
    assert not found["signed"] and "NOT SIGNED: anybody could have written it" in lines


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"predicateType": "https://github.com/gpuops/gpuops.rdma/evidence/v2"}, "is not known here"),
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "is not known here"),
        ({"predicate": {}}, "has no such form"),
        ({"subject": []}, "has no such form"),
    ],
)
def test_statements_of_other_versions_are_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    private, public = pair(tmp_path, KEYS["ed25519"]())
    written(tmp_path, samples.fault())
    made = {**json.loads((tmp_path / "evidence.json").read_text("utf-8")), **change}
    sealed = dsse.seal(statement.text(made).encode(), Path(private).read_bytes(), "key")
    (tmp_path / "evidence.dsse.json").write_bytes(sealed)
    with pytest.raises(InputError, match=why):
        verified(tmp_path, public)


def test_without_the_library_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, _public = pair(tmp_path, KEYS["ed25519"]())
    monkeypatch.setattr(dsse, "MISSING", "No module named 'cryptography'")
    args = {"evidence": True, "evidence_key_file": private}
    run.write(tmp_path / "report.json", samples.fault())
    lines, why = evidence_io.written(tmp_path, samples.fault(), FACTS, args)
    assert not lines and why.startswith("There is no evidence of this run: Cannot use the key")
    assert "pip install cryptography" in why and (tmp_path / "evidence.json").exists()
    assert evidence_io.written(tmp_path, {**samples.fault(), "predicted": {"create": 1}}, FACTS, args) == ([], "")
    assert evidence_io.written(tmp_path, samples.fault(), FACTS, {**args, "evidence": False}) == (
        [],
        "",
    )


def test_the_signed_bytes_are_those_of_the_specification() -> None:
    assert dsse.signed_bytes(b"hello world") == b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_openssl_verifies_it_too(folder: Path) -> None:
    """By the commands of docs/evidence.md."""
    document = json.loads((folder / "evidence.dsse.json").read_text("utf-8"))
    payload = base64.b64decode(document["payload"])
    assert payload == (folder / "evidence.json").read_bytes()
    (folder / "signed").write_bytes(dsse.signed_bytes(payload))
    (folder / "sig").write_bytes(base64.b64decode(document["signatures"][0]["sig"]))
    with_key = ("-pubin", "-inkey", "evidence.pub", "-rawin", "-in", "signed", "-sigfile", "sig")
    done = subprocess.run(("openssl", "pkeyutl", "-verify", *with_key), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "Verified Successfully" in done.stdout, done.stderr


def test_images_of_pods_have_the_digests_that_the_node_reports() -> None:
    pod = {
        "spec": {"containers": [{"name": "a", "image": "nvcr.io/nvidia/x:1"}, {"name": "b", "image": f"r/y@{DIGEST}"}]},
        "status": {"containerStatuses": [{"name": "a", "imageID": f"nvcr.io/nvidia/x@{DIGEST}"}]},
    }
    assert evidence_io._images(pod) == [("x:1", DIGEST), ("y", "")]
    assert statement.bare_digest("docker-pullable://x, 0123") == ""
