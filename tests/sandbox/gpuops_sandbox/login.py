# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubeconfig of a sandbox and its login program, of the kind of OKE's ``oci ce cluster generate-token``.

The program prints an ExecCredential with a token of 4 minutes, OKE's lifetime. The token is one of a ServiceAccount,
signed with the API server's own key, so that the real authenticator decides: it refuses one that ended more than a
minute ago (the leeway of go-jose's jwt.Claims.Validate). A TokenRequest gives none below 10 minutes.

The program is a shell script that keeps its last token until half of its life is over: 3 ms, not Python's start for
each task of each test. Variables of the kubeconfig's ``exec`` change it: SANDBOX_LOGIN_LIFE, the token's life in
seconds; SANDBOX_LOGIN_TAKES, seconds that it sleeps first (OCI's program takes 1.3). The file ``logins`` beside it gets
a line for each time that it runs: the process that asked.

This file is run as a program too: login.py FOLDER SECONDS prints the credential's end, in seconds of the epoch, and the
credential.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding

API = "client.authentication.k8s.io/v1beta1"
"""Of the kubeconfigs that `oci ce cluster create-kubeconfig` writes."""
ISSUER = "https://kubernetes.default.svc.cluster.local"
"""kwokctl's --service-account-issuer."""
SPACE, USER = "kube-system", "sandbox-user"
_RBAC = "rbac.authorization.k8s.io"
_SCRIPT = """#!/bin/sh
# Prints an ExecCredential: gpuops_sandbox/login.py
unset LD_PRELOAD  # a test may move the clock of what asks, not that of who gives the token
life=${{SANDBOX_LOGIN_LIFE:-240}} now=$(date +%s) end=0
echo "$PPID" >>{folder}/logins
[ -z "${{SANDBOX_LOGIN_TAKES:-}}" ] || sleep "$SANDBOX_LOGIN_TAKES"
kept={folder}/credential.$life
[ ! -e "$kept" ] || read -r end credential <"$kept"
if [ "$((end - now))" -le "$((life / 2))" ]; then
  {python} -I {program} {folder} "$life" >"$kept.$$" && mv "$kept.$$" "$kept" || exit 1
  read -r end credential <"$kept"
fi
printf '%s\\n' "$credential"
"""


def objects() -> dict[str, dict[str, Any]]:
    """The user and its rights, in order, by the path of their collection."""
    subject = {"kind": "ServiceAccount", "name": USER, "namespace": SPACE}
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "subjects": [subject],
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER, "namespace": SPACE}}
    return {
        "/api/v1/namespaces": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        f"/api/v1/namespaces/{SPACE}/serviceaccounts": account,
        f"/apis/{_RBAC}/v1/clusterrolebindings": binding,
    }


def write(folder: Path, uid: str, key: Path) -> dict[str, Any]:
    """Writes the program into ``folder``; returns the user's entry of a kubeconfig. ``uid``: of the ServiceAccount;
    ``key``: with which the API server signs."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "account.json").write_text(json.dumps({"uid": uid, "key": str(key)}))
    program = folder / "login"
    program.write_text(_SCRIPT.format(folder=folder, python=sys.executable, program=Path(__file__).resolve()))
    # By sh: a folder in memory may be mounted without the right to execute.
    command = {"apiVersion": API, "command": "sh", "args": [str(program)], "interactiveMode": "Never", "env": []}
    return {"exec": command}


def credential(folder: Path, life: float) -> tuple[int, str]:
    """(end in seconds of the epoch, ExecCredential with a token that ends then)."""
    account = json.loads((folder / "account.json").read_text())
    key = serialization.load_pem_private_key(Path(account["key"]).read_bytes(), None)
    now = int(time.time())
    end = now + int(life)
    claims = {
        "iss": ISSUER,
        "aud": [ISSUER],
        "sub": f"system:serviceaccount:{SPACE}:{USER}",
        "iat": now,
        "nbf": now,
        "exp": end,
        "kubernetes.io": {"namespace": SPACE, "serviceaccount": {"name": USER, "uid": account["uid"]}},
    }
    signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256"}, claims))
    token = f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"  # type: ignore[union-attr, call-arg]
    status = {"token": token, "expirationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))}
    return end, json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": status})


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


if __name__ == "__main__":
    print(*credential(Path(sys.argv[1]), float(sys.argv[2])))
