# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret and no name of a site passes the redaction; the same name has the same pseudonym everywhere."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import redact
from hypothesis import example, given
from hypothesis import strategies as st
from support.canaries import CANARIES, SECRET

SALT = b"s" * 32


def redactor(**names: list[str]) -> redact.Redactor:
    return redact.Redactor(SALT, names, Secrets())


FORMS = {
    "ocid": "ocid1.instance.oc1.eu-frankfurt-1.antheljtzq7a",
    "mail": "jane.doe@corp.example.com",
    "IPv4": "10.20.30.40",
    "IPv6": "fd00:10:20::a1b",
    "GID": "fe80:0000:0000:0000:0e42:a1ff:fe12:3456",
    "MAC": "0e:42:a1:12:34:56",
    "UUID": "6d1c8c4e-0b9e-4f57-9d5d-111122223333",
    "GUID": "506b:4b03:00c2:d1a4",
    "hexadecimal GUID": "0x506b4b0300c2d1a4",
    "host": "gpu_7.rack3.corp.example.com",
    "host of a country": "gpu7.site.de",
    "host by its address": "ip-10-20-30-40",
    "kubeconfig": "/opt/customer/kubeconfig-prod.yml",
    "private key": "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1D",
}
PLACES = (
    "{}",
    "mac:{}:x",
    "addr:{} b",
    ":{}:",
    "node {} is down",
    "[{}]",
    "({}):",
    '"{}",',
    "x={}",
    "dial tcp {}: refused",
    "a\n{}\nb",
    "{};",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_names_with_a_form_are_replaced_everywhere(form: str, place: str) -> None:
    one = redactor()
    text = one.text(place.format(FORMS[form]))
    assert FORMS[form] not in text and sum(one.taken().values()) >= 1, text
    assert text.startswith(place.partition("{")[0])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GET https://api.acme:6443/version", "acme"),
        ("https://jane@git.acme/x.git", "acme"),
        ("image harbor:5000/x/y:1", "harbor"),
        ("iad.ocir.io/acmetenancy/nccl:1", "acmetenancy"),
        ("/home/jane/work", "jane"),
        ('User "jane" cannot list pods', "jane"),
        ("username: jane", "jane"),
        ("serial number: MT2231X01", "MT2231X01"),
        ("read ~/.kube/acme.conf", "acme"),
        ("--kubeconfig acme/prod.conf", "acme"),
    ],
)
def test_names_are_known_by_what_stands_before_them(text: str, name: str) -> None:
    assert name not in redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "apps/v1 Deployment gpu-operator of nvidia.com/v1, oke.oraclecloud.com/pool.name, networking.k8s.io",
        "nvcr.io/nvidia/driver:595.58.03-ubuntu22.04 is 24.10-3.2.5.0 or MLNX_OFED_LINUX-5.8-2.0.3.0",
        "containerd://1.7.27 cri-o://1.34.0-2 nfd.k8s-sigs.io http://169.254.169.254/opc",
        "0000:0c:00.1 at 18:03:23, 2026-11-28T18:03:23Z, std::string, 127.0.0.1, 255.255.0.0, 26.7.1",
        'User "system:serviceaccount:gpuops-rdma:x" and user: 1000',
        "gpu-operator.svc.cluster.local:443 report.json run.py volcano.sh quay.io/x:1",
        f"sha256:{'ab' * 32} 0x1f node-0123456789abcdef",
    ],
)
def test_what_names_no_site_stays(text: str) -> None:
    assert redactor(node=["n1"]).text(text) == text


def test_known_names_are_replaced_within_others_and_by_the_longest() -> None:
    one = redactor(node=["10.0.0.1", "10.0.0.11", "n1", "n1-b"], user=["jane"], path=["/srv/a b"], host=["n1"])
    first, second = (redact.pseudonym(SALT, "node", name) for name in ("10.0.0.1", "10.0.0.11"))
    text = one.text("gpuops-host-10.0.0.1 job-10-0-0-11_x N1 n1-b n12 janet jane: /srv/a b/c")
    short, long, user = (redact.pseudonym(SALT, *pair) for pair in (("node", "n1"), ("node", "n1-b"), ("user", "jane")))
    path = redact.pseudonym(SALT, "path", "/srv/a b")
    assert text == f"gpuops-host-{first} job-{second}_x {short} {long} n12 janet {user}: {path}/c"
    assert one.taken() == {"node": 4, "path": 1, "user": 1}


def test_documents_lose_secrets_environments_and_secret_objects() -> None:
    document = {
        "10.0.0.1": {"serial": "MT1", "holderIdentity": "jane@bastion", "token": "abcdefgh12345"},
        "objects": [{"kind": "Secret", "metadata": {"name": "s"}, "data": {"x": "eHl6"}}],
        "env": [{"name": "SITE", "value": "acme"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "count": 3,
    }
    one = redactor(node=["10.0.0.1"])
    found = one.data(document)
    text = json.dumps(found)
    assert not [word for word in ("10.0.0.1", "MT1", "jane", "abcdefgh", "eHl6", "acme") if word in text], text
    assert found["count"] == 3 and found["env"][0] == {"name": "SITE", "value": "(left out)"}
    assert one.taken() == {"node": 1, "object Secret": 1, "secret": 1, "serial": 1, "user": 1, "value of a variable": 1}


@pytest.mark.parametrize("kind", CANARIES)
def test_no_canary_passes(kind: str) -> None:
    for value in CANARIES[kind]:
        one = redactor()
        assert SECRET not in (one.text(value) if isinstance(value, str) else json.dumps(one.data(value)))


@pytest.mark.parametrize("part", ["a", "a-", "a.", "1:", "/a", "a@", "ab:", "user "])
def test_long_words_take_no_quadratic_time(part: str) -> None:
    """Which would be minutes."""
    began = time.monotonic()
    redactor(node=["a-a"]).text(part * (200_000 // len(part)))
    assert time.monotonic() - began < 20


def test_nodes_are_found_by_their_keys() -> None:
    document = {
        "nodes": ["n1", {"name": "n2", "node": "n3"}],
        "hosts": {"n4": {"hostname": "n5"}},
        "pairs": [{"a": "n6"}],
    }
    assert sorted(redact.nodes_in(document)) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert not [*redact.nodes_in("n1"), *redact.nodes_in({"node": "two words", "name": "x"})]


LABEL = st.from_regex(r"[a-z][a-z0-9]{2,8}(-[a-z0-9]{2,5}){1,3}", fullmatch=True).filter(lambda name: name[0] != "x")
AROUND = st.text(alphabet=st.characters(codec="ascii"), max_size=30)
BORDER = st.sampled_from([*" :/_@-.\n\t\"(,;'={|[", "..", "*.", "to..."])
SITE = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/8").map(str),
    st.ip_addresses(v=4, network="192.168.0.0/16").map(str),
    st.ip_addresses(v=6, network="fd00::/8").map(str),
    st.ip_addresses(v=6, network="fe80::/10").map(lambda one: ipaddress.ip_address(int(one)).exploded),
    st.uuids().map(str),
    st.from_regex(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", fullmatch=True),
    st.from_regex(r"ocid1\.[a-z]{4,9}\.oc1\.[a-z]{2}-[a-z]{4,9}-1\.[a-z0-9]{10,60}", fullmatch=True),
    st.builds("{}.{}.internal".format, LABEL, LABEL),
    st.builds("{}@{}.com".format, LABEL, LABEL),
)


@given(before=AROUND, left=BORDER, name=SITE, right=BORDER.filter(lambda one: not one[0].isalnum()), after=AROUND)
@example(before="", left="=", name="10.0.0.1", right=",", after="")
def test_a_name_with_a_form_passes_in_no_text(before: str, left: str, name: str, right: str, after: str) -> None:
    text = f"{before}{left}{name}{right}{after}"
    one = redactor()
    shown = one.text(text)
    assert name not in shown, (text, shown)
    again = redactor().text(shown)
    assert re.sub(r"-[0-9a-f]{16}", "", again).count("(hidden)") >= shown.count("(hidden)")


@given(
    names=st.lists(LABEL, min_size=1, max_size=5, unique=True),
    around=st.lists(AROUND, min_size=6, max_size=6),
    data=st.data(),
)
def test_a_known_name_passes_nowhere_and_is_the_same_everywhere(names: list[str], around: list[str], data: Any) -> None:
    one = redactor(node=names)
    name = data.draw(st.sampled_from(names))
    text = "".join(f"{part}{data.draw(BORDER)}{name}{data.draw(BORDER)}" for part in around)
    document = {text: [text, {"x": text}], "nodes": names}
    shown = one.text(text)
    whole = json.dumps(one.data(document))
    for known in names:
        assert not re.search(rf"(?<![a-z0-9]){known}(?![a-z0-9])", whole, re.IGNORECASE), (known, whole)
    assert redact.pseudonym(SALT, "node", name) in shown or "(hidden)" in shown


@given(secret=st.from_regex(r"[A-Za-z0-9]{12,40}", fullmatch=True), before=AROUND, data=st.data())
def test_a_learned_secret_passes_nowhere(secret: str, before: str, data: Any) -> None:
    secrets = Secrets()
    secrets.learn(secret, whole=True)
    one = redact.Redactor(SALT, {"node": ["n1"]}, secrets)
    text = f"{before}{data.draw(BORDER)}{secret}{data.draw(BORDER)}"
    assert secret not in one.text(text) + json.dumps(one.data({"a": [text], text: 1}))
