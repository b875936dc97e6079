# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets that must not be shown anywhere, four of each kind; all contain SECRET."""

from __future__ import annotations

import json
import re
from typing import Any

SECRET = "CaNaRy7"


def _four(*forms: Any) -> list[Any]:
    assert len(forms) == 4
    return list(forms)


CANARIES: dict[str, list[Any]] = {
    "password in a URL": _four(
        f"https://user:{SECRET}-pw01@charts.example.com/stable",
        f"oci://user:{SECRET}-pw02@registry.example.com/charts/gpu-operator",
        {"proxy": f"http://bob:{SECRET}-pw03@proxy.example.com:3128"},
        f"cannot reach https://x:{SECRET}p%40w04@h.example.com:8443/v2/: timeout",
    ),
    "token alone in a URL": _four(
        f"https://{SECRET}-tk05@git.example.com/models.git",
        f"git+https://oauth2:{SECRET}-tk06@git.example.com/a.git",
        {"url": f"https://{SECRET}-tk07@hooks.example.com/x"},
        [f"ssh://{SECRET}-tk08@host.example.com:22/"],
    ),
    "pre-authenticated request": _four(
        f"https://objectstorage.eu-frankfurt-1.oraclecloud.com/p/{SECRET}-par-0000009/n/ns/b/models/o/llama",
        f"https://ns.objectstorage.eu-frankfurt-1.oci.customer-oci.com/p/{SECRET}-par-0000010/n/ns/b/b/o/x",
        {"model": f"https://objectstorage.uk.oraclecloud.com/p/{SECRET}-par-0000011/n/ns/b/b/o/"},
        f"GET /p/{SECRET}-par-0000012/n/ns/b/b/o/x returned 404",
    ),
    "environment of a container": _four(
        [{"name": "NGC_API_KEY", "value": f"{SECRET}-env13"}],
        {"env": [{"name": "HTTPS_PROXY", "value": f"http://u:{SECRET}-env14@proxy:3128"}]},
        {"containers": [{"env": [{"name": "DB_PASS", "value": f"{SECRET}-env15"}]}]},
        [{"key": "HF_TOKEN", "value": f"{SECRET}-env16"}],
    ),
    "mapping of variables": _four(
        {"AWS_SECRET_ACCESS_KEY": f"{SECRET}-map17"},
        {"WANDB_API_KEY": f"{SECRET}-map18"},
        {"MYSQL_PASSWORD": f"{SECRET}-map19"},
        {"GIT_CREDENTIAL": f"{SECRET}-map20"},
    ),
    "value named PASS": _four(
        {"adminPassword": f"{SECRET}-val21"},
        {"registry": {"passwd": f"{SECRET}-val22"}},
        {"smtp_pass": f"{SECRET}-val23"},
        {"keystorePassphrase": f"{SECRET}-val24"},
    ),
    "value named TOKEN": _four(
        {"token": f"{SECRET}-val25"},
        {"authToken": f"{SECRET}-val26"},
        {"bearer_token": f"{SECRET}-val27"},
        {"tokens": [f"{SECRET}-val28"]},
    ),
    "value named SECRET": _four(
        {"clientSecret": f"{SECRET}-val29"},
        {"webhook_secret": f"{SECRET}-val30"},
        {"secretValue": f"{SECRET}-val31"},
        {"JWT_SECRET": f"{SECRET}-val32"},
    ),
    "value named KEY": _four(
        {"apiKey": f"{SECRET}-val33"},
        {"licence_key": f"{SECRET}-val34"},
        {"tlsKey": f"{SECRET}-val35"},
        {"encryptionKey": f"{SECRET}-val36"},
    ),
    "value named CREDENTIAL": _four(
        {"credential": f"{SECRET}-val37"},
        {"gcpCredentials": f"{SECRET}-val38"},
        {"credentials": {"password": f"{SECRET}-val39"}},
        {"credentials": [f"{SECRET}-val40"]},
    ),
    "arguments of a program": _four(
        ["--api-key", f"{SECRET}-arg41"],
        [f"--token={SECRET}-arg42"],
        f"vllm serve --api-key {SECRET}-arg43 --port 8000",
        {"args": ["serve", "--hf-token", f"{SECRET}-arg44"]},
    ),
    "header of a request": _four(
        f"Authorization: Bearer {SECRET}-hdr45",
        {"headers": {"X-Auth-Token": f"{SECRET}-hdr46"}},
        f"Authorization: Basic {SECRET}hdr47==",
        f"sent Bearer {SECRET}.hdr48 and got 401",
    ),
    "key as PEM": _four(
        f"-----BEGIN PRIVATE KEY-----\nMII{SECRET}49\n-----END PRIVATE KEY-----",
        {"cert.pem": f"-----BEGIN RSA PRIVATE KEY-----\nMII{SECRET}50\n-----END RSA PRIVATE KEY-----\n"},
        {"any": f"-----BEGIN OPENSSH PRIVATE KEY-----\nMII{SECRET}51\n-----END OPENSSH PRIVATE KEY-----"},
        f"read -----BEGIN EC PRIVATE KEY-----\nMII{SECRET}52",
    ),
    "token by its form": _four(
        f"eyJhbGciOiJSUzI1NiJ9.eyJ{SECRET}53.{SECRET}sig53",
        f"hf_{SECRET}AbCdEfGhIjKl54",
        f"ghp_{SECRET}AbCdEfGhIjKl55",
        {"any": f"nvapi-{SECRET}AbCdEfGhIjKl56"},
    ),
    "Secret of Kubernetes": _four(
        {"kind": "Secret", "stringData": {"token": f"{SECRET}-sec57"}},
        {"kind": "Secret", "data": {"password": f"{SECRET}sec58"}},
        {"metadata": {"annotations": {"last-applied": f'{{"data":{{"api_key":"{SECRET}-sec59"}}}}'}}},
        {"dockerconfigjson": {"auths": {"r.example.com": {"password": f"{SECRET}-sec60"}}}},
    ),
}
KINDS = tuple(CANARIES)
VARIABLES = [
    {"name": f"NOTE_{number}", "value": one if isinstance(one, str) else json.dumps(one)}
    for number, one in enumerate((one for kind in KINDS for one in CANARIES[kind]), start=1)
]
"""All of them as variables of a container, whose names say nothing."""
NUMBERS = {f"{number:02}" for number in range(1, 61)}


def numbers_in(text: str) -> set[str]:
    """The numbers of the canaries in a text."""
    return {found[-2:] for found in re.findall(rf"{SECRET}[\w%=.-]*\d\d", text)}
