# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must not be shown: by its form, by the name that it stands under, by where it comes from."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import (
    HIDDEN,
    Secrets,
    hidden,
    joined,
    speaks_of_secret,
)
from support.canaries import CANARIES, KINDS, SECRET


@pytest.mark.parametrize(("kind", "value"), [(kind, one) for kind in KINDS for one in CANARIES[kind]])
def test_each_canary_is_hidden_as_data_as_text_and_where_it_comes_back(kind: str, value: object) -> None:
    """As a value of an input; in the text that a diff or an error makes of it; and, once it was an input, bare."""
    assert SECRET in json.dumps(value)
    assert SECRET not in json.dumps(hidden(value)), kind
    for text in (json.dumps(value), str(value), yaml.safe_dump(value)):
        assert SECRET not in str(hidden(text)), kind
    known = Secrets()
    known.learn(value)
    for secret in secrets_in(value):
        assert SECRET not in known.text(f"error: cannot use {secret} there")
        assert SECRET not in known.text(json.dumps({"harmless": secret}))


def secrets_in(value: object) -> list[str]:
    """The bare secrets: each word around a canary's mark."""
    return re.findall(rf"[\w.%=-]*{SECRET}[\w.%=-]*", " ".join(texts(value)))


def texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else [str(value)]


def test_there_are_sixty_of_fifteen_kinds() -> None:
    assert len(KINDS) == 15
    assert sum(len(CANARIES[kind]) for kind in KINDS) == 60


@pytest.mark.parametrize(
    "plain",
    [
        {"imagePullSecrets": ["nvcr-login"], "secretName": "lic", "secrets": ["lic"], "existingSecret": "x"},
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "topologyKey": "kubernetes.io/hostname"},
        {"valueFrom": {"secretKeyRef": {"name": "ngc", "key": "NGC_API_KEY"}}},
        {"ssh_public_key": "ssh-ed25519 AAAAC3Nza me@there", "boot_volume_key": "ocid1.key.oc1..aaaa"},
        {"NCCL_IB_PKEY": "0x8001", "NCCL_IB_HCA": "=mlx5_0,mlx5_1", "tokenizer": "meta-llama/tok"},
        {"max_tokens": "4096", "tokenExpirationSeconds": 3600, "passthrough": "on", "compass": "north"},
        {"image": "oci://registry.example.com:5000/nvidia/gpu-operator@sha256:0123456789abcdef"},
        "nvcr.io/nvidia/cuda:12.4@sha256:0123456789abcdef and http://host:8080/path@v1 and /p/short/n",
        "rdma_image_pull_secrets: nvcr-login; namespace default has no pull secret nvcr-login",
        {"summary": {"pass": 2, "fail": 0}, "verdict": "pass", "nodes_pass": 3},
        "is a basic cluster; by security_token: profile X has none; no password: give one",
        "the chart accepts one pull secret: one, without two",
        'token = open(path).read(); headers = {"Authorization": "Bearer Oracle"}',
        {"ssh_key": "~/.ssh/id_ed25519", "recipe_public_ssh_key": "x"},
        "r1:0:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>",
    ],
)
def test_what_is_no_secret_is_shown(plain: object) -> None:
    assert hidden(plain) == plain


def test_secrets_are_hidden_wherever_they_stand_and_references_are_not() -> None:
    tree = {
        "operator": {"certificate": {"tlsKey": "x", "tlsCrt": "y"}},
        "registry": {"password": "p", "passwords": ["p", "q"], "imagePullSecrets": ["pull"], "secretName": "lic"},
        "env": [{"name": "NGC_API_KEY", "value": "k"}, {"name": "MOFED_ENABLED", "value": "false"}],
        "deep": [{"list": [{"authToken": "t"}]}],
        "tokenCount": 3,
    }
    shown = json.loads(json.dumps(tree))
    shown["operator"]["certificate"]["tlsKey"] = shown["registry"]["password"] = HIDDEN
    shown["registry"]["passwords"] = [HIDDEN, HIDDEN]
    shown["env"][0]["value"] = shown["deep"][0]["list"][0]["authToken"] = HIDDEN
    assert hidden(tree) == shown
    assert hidden("plain") == "plain"
    assert hidden("p", "driver.adminPassword") == HIDDEN


def test_the_name_of_a_secret_decides_by_its_words() -> None:
    for name in ("NGC_API_KEY", "DB_PASS", "adminPassword", "clientSecret", "AWS_ACCESS_KEY_ID", "tlsKey", "secret"):
        assert speaks_of_secret(name), name
    for name in ("key", "keys", "secrets", "pull_secrets", "secretName", "token_file", "publicKey", "pass"):
        assert not speaks_of_secret(name), name


def test_the_rest_of_a_text_stays() -> None:
    assert hidden("pull from https://bob:pw12345678@charts.example.com/x failed") == (
        f"pull from https://{HIDDEN}@charts.example.com/x failed"
    )
    assert hidden("login --password=abc123def -u bob") == f"login --password={HIDDEN} -u bob"
    assert hidden("login --password abc123def -u bob") == f"login --password {HIDDEN} -u bob"
    assert hidden('{"token": "a b c", "x": 1}') == f'{{"token": "{HIDDEN}", "x": 1}}'
    assert hidden("https://objectstorage.eu.oci/p/AbCdEfGhIjKlMnOp/n/space/b/bucket/o/model") == (
        f"https://objectstorage.eu.oci/p/{HIDDEN}/n/space/b/bucket/o/model"
    )


def test_a_document_is_split_and_joined_again() -> None:
    document = {
        "releases": {
            "gpu_operator": {"repo": "https://u:pw12345678@h/x", "values": {"a/b": [{"password": "x"}], "~": 1}}
        },
        "nodes": [{"name": "n0"}],
    }
    shown, kept = Secrets().split(document)
    assert set(kept) == {"/releases/gpu_operator/repo", "/releases/gpu_operator/values/a~1b/0/password"}
    assert "pw1234" not in json.dumps(shown) and shown["nodes"] == document["nodes"]
    assert joined(json.loads(json.dumps(shown)), kept) == document
    assert joined({"releases": {}}, kept) == {"releases": {}}


def test_the_values_of_a_kubernetes_secret_are_hidden_and_known() -> None:
    coded = base64.b64encode(b"geheim-geheim").decode()
    known = Secrets()
    known.learn({"kind": "Secret", "metadata": {"name": "x"}, "data": {"any": coded}})
    assert known.data({"kind": "Secret", "data": {"any": coded}}) == {"kind": "Secret", "data": {"any": HIDDEN}}
    assert known.text(f"got {coded}") == f"got {HIDDEN}"


def test_a_word_under_a_name_that_speaks_of_a_secret_is_hidden_there_alone() -> None:
    known = Secrets()
    known.learn({"tokenAuth": "disabled", "apiKey": "disabled-7"})
    assert known.text("it is disabled; disabled-7") == f"it is disabled; {HIDDEN}"
    assert known.data({"tokenAuth": "disabled"}) == {"tokenAuth": HIDDEN}


def test_a_secret_input_is_hidden_whole_wherever_it_occurs() -> None:
    known = Secrets()
    known.learn({"pool": {"first": "Sesam", "n": 12}}, whole=True)
    assert known.text("open Sesam, 12 times") == f"open {HIDDEN}, 12 times"
    assert known.data({"x": ["Sesam!"]}) == {"x": [f"{HIDDEN}!"]}


@pytest.mark.parametrize("text", ["://a", "://a:b", "x://a:b"])
def test_a_long_word_takes_linear_time(text: str) -> None:
    """Ten times the length took a hundred times as long."""
    began = time.process_time()
    hidden(text * 10000)
    assert time.process_time() - began < 2.0
