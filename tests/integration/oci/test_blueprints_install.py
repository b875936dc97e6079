# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blueprints by oci_stack: by ansible-playbook against the fake Resource Manager; certificate and place by
themselves."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import stack_inputs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support import oci_site, warm
from support.fake_oci import FakeOci
from support.fake_stacks import Stacks, World, stack_zip
from support.paths import ROOT

GPU, SECRET = "ocid1.compartment.oc1..gpu", "hunter2-hunter2"

# ---- certificates --------------------------------------------------------------------------------------------------


def authority(name: str, folder: Path, issuer: Any = None) -> Any:
    """(key, certificate) of a CA, or with ``issuer`` of 127.0.0.1; written as ``name``.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    build = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer[1].subject if issuer else subject)
    build = build.public_key(key.public_key()).serial_number(x509.random_serial_number())
    build = build.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    build = build.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    build = build.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = build.sign(issuer[0] if issuer else key, hashes.SHA256())
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    text = key.private_bytes(encoding, private, serialization.NoEncryption()) + made.public_bytes(encoding)
    (folder / f"{name}.pem").write_bytes(text)
    return key, made


class Tls:
    """A server whose certificate cert-manager has not got yet, and then has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        root = authority("ca", folder)
        authority("good", folder, root)
        authority("fake", folder)
        self.shown = "good"
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.looks = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _address = self.server.accept()
            except OSError:
                return
            self.looks += 1
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.folder / f"{self.shown}.pem")
            plain.settimeout(5)
            try:
                context.wrap_socket(plain, server_side=True).close()
            except OSError:
                plain.close()


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    made = Tls(tmp_path)
    yield made
    made.server.close()


def test_a_certificate(tls: Tls) -> None:
    ca = str(tls.folder / "ca.pem")
    assert stack_inputs.certificate("127.0.0.1", tls.port, ca) == ""
    assert "its certificate is not valid: unable to get local" in stack_inputs.certificate("127.0.0.1", tls.port)
    tls.shown = "fake"
    assert "certificate is not valid: self" in stack_inputs.certificate("127.0.0.1", tls.port, ca)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        nobody = free.getsockname()[1]
        assert "does not answer: Connection refused" in stack_inputs.certificate("127.0.0.1", nobody, ca)
    assert "block nip.io" in stack_inputs.certificate("api.gpuops.invalid", 443)
    assert "does not answer" in stack_inputs.certificate("127.0.0.1", tls.port, "/nowhere.pem")


def test_the_certificate_is_waited_for_k_of_n_minutes() -> None:
    now, lines = [0.0], []
    answers = iter(["its certificate is not valid: self-signed certificate"] * 13 + [""])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clocks = {"clock": lambda: now[0], "sleep": sleep}
    check = {"check": lambda *_args: next(answers)}
    stack_inputs.wait_for_certificate("https://api.x.nip.io", 20, "", lines.append, **clocks, **check)
    assert lines[0] == "api.x.nip.io: its certificate is not valid: self-signed certificate (0 of 20 min)"
    assert [line.partition("(")[2] for line in lines[1:-1]] == ["1 of 20 min)", "2 of 20 min)", "3 of 20 min)"]
    assert lines[-1] == "api.x.nip.io: certificate valid after 3 min"
    with pytest.raises(DeadlinePassed, match=r"api\.x after 2 min: late\. See `kubectl get certificates.*ca_path"):
        late = {"check": lambda *_args: "late"}
        stack_inputs.wait_for_certificate("https://api.x", 2, "", lines.append, **clocks, **late)


# ---- the cluster's place -------------------------------------------------------------------------------------------


def placed(fake: FakeOci) -> dict[str, Any]:
    cluster = oci_site.cluster(fake)
    cluster["endpointConfig"] = {"subnetId": "ocid1.subnet.oc1..endpoint"}
    cluster["options"] = {"serviceLbSubnetIds": ["ocid1.subnet.oc1..lb"]}
    config = {"placementConfigs": [{"availabilityDomain": oci_site.DOMAIN, "subnetId": oci_site.SUBNET}]}
    pool = {"name": "system", "clusterId": cluster["id"], "compartmentId": GPU, "nodeConfigDetails": config}
    fake.add("nodePools", {**pool, "lifecycleState": "ACTIVE"})
    return cluster


def test_place(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> None:
    cluster, given = placed(fake), {"node_subnet": "", "load_balancer_subnet": ""}
    access = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, tmp_path))}
    session = oci_session.Session(access, oci.retry.NoneRetryStrategy())
    found = stack_inputs.place(session, cluster["id"], given)
    assert found["existent_oke_nodes_subnet_ocid"] == oci_site.SUBNET
    assert found["existent_vcn_compartment_ocid"] == GPU and found["existent_vcn_ocid"] == "vcn"
    assert found["existent_oke_load_balancer_subnet_ocid"].endswith("..lb")
    cluster["options"] = {}
    with pytest.raises(
        InputError,
        match=r"Cannot read from the cluster .*: load balancer subnet\. Set it as an option, or as exist",
    ):
        stack_inputs.place(session, cluster["id"], given)
    cluster["lifecycleState"] = "CREATING"
    with pytest.raises(InputError, match="is CREATING, not ACTIVE"):
        stack_inputs.place(session, cluster["id"], given)


# ---- the role ------------------------------------------------------------------------------------------------------


class Kube:
    """Of an API server what the survey asks: Deployments."""

    def __init__(self, folder: Path) -> None:
        self.images: list[tuple[str, str]] = []
        kube = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"kind": "List", "metadata": {}, "items": kube.items()}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.config = folder / "kubeconfig"
        entry = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}}
        document = {"apiVersion": "v1", "kind": "Config", "clusters": [entry], "users": [{"name": "x", "user": {}}]}
        context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
        self.config.write_text(yaml.safe_dump({**document, "contexts": [context], "current-context": "x"}))

    def items(self) -> list[dict[str, Any]]:
        return [
            {
                "metadata": {"namespace": namespace, "name": f"d{index}"},
                "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
            }
            for index, (image, namespace) in enumerate(self.images)
        ]


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path, tls: Tls) -> None:
        self.folder, self.tls, self.kube, self.stacks = folder, tls, Kube(folder), Stacks(fake)
        self.stacks.seconds = dict.fromkeys(self.stacks.seconds, 0.0)
        outputs = {"corrino_api_url": f"https://127.0.0.1:{tls.port}", "corrino_admin_username_output": "admin"}
        outputs.update({"corrino_admin_nonce_output": SECRET, "postgres_db_password": "s3cr3t-s3cr3t"})
        self.stacks.world = World(resources={"helm_release.keda": "helm_release"}, outputs=outputs, echo=True)
        stack_zip(folder / "app.zip")
        self.variables: dict[str, Any] = {
            "compartment": GPU,
            "cluster": placed(fake)["id"],
            "zip": str(folder / "app.zip"),
            "admin_password": SECRET,
            "admin_email": "me@example.com",
            "service_endpoint": url,
            "config_file": str(oci_site.config_file(config, folder)),
            "ca_path": str(folder / "ca.pem"),
            "certificate_timeout": 1,
        }

    def play(self, **changes: Any) -> str:
        given = {**self.variables, **changes}
        access = {key: given[key] for key in ("compartment", "service_endpoint", "config_file")}
        login = f"login is there: {{{{ login.admin_password == {given['admin_password']!r} }}}}"
        tasks = [
            {"gpuops.rdma.oci_stack": {**given, "kind": "blueprints"}, "register": "installed"},
            {"gpuops.rdma.oci_stack": {**access, "kind": "blueprints", "state": "login"}, "register": "login"},
            {"ansible.builtin.debug": {"var": "installed"}},
            {"ansible.builtin.debug": {"msg": login}},
        ]
        document = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
        (self.folder / "play.yml").write_text(yaml.safe_dump(document))
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        done = warm.done(
            [program, str(self.folder / "play.yml"), "-i", "localhost,", "-vv"],
            {**environment, "KUBECONFIG": str(self.kube.config), "K8S_AUTH_KUBECONFIG": str(self.kube.config)},
        )
        output = done.stdout + done.stderr
        assert SECRET not in output and "s3cr3t-s3cr3t" not in output and "Traceback" not in output, output[-3000:]
        return output


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path, tls: Tls) -> Iterator[Site]:
    made = Site(fake, url, config, tmp_path, tls)
    yield made
    made.kube.server.shutdown()
    made.kube.server.server_close()


def test_installed_beside_what_is_there_and_again(site: Site) -> None:
    site.kube.images = [("registry.k8s.io/kueue/kueue:v0.18.2", "kueue-system")]
    first = site.play()
    assert "failed=0" in first and "changed=1" in first, first[-3000:]
    assert "Kueue: the existing one in kueue-system" in first and "certificate valid after 0 min" in first
    (stack,) = site.stacks.stacks.values()
    wanted = {"bring_your_own_kueue": "true", "existent_kueue_namespace": "kueue-system", "stack_version": "v1.0.11"}
    assert wanted.items() <= stack["variables"].items() and "bring_your_own_lws" not in stack["variables"]
    assert stack["variables"]["corrino_admin_nonce"] == SECRET
    assert "login is there: True" in first
    site.kube.images += [("registry.k8s.io/lws/lws:v0.7.0", "lws-system"), ("x/gpu-operator:v25.3.0", "gpu-operator")]
    again = site.play()
    assert "changed=0" in again and "failed=0" in again and "LeaderWorkerSet: the stack's own" in again, again[-3000:]
    site.kube.images.append(("x/gpu-operator:v26.7.0", "other"))
    refused = site.play()
    assert "the GPU Operator is installed 2 times: gpu-operator/d2, other/d3. Remove all but one" in refused


def test_what_a_new_installation_needs(site: Site) -> None:
    assert "needs admin_password and admin_email" in site.play(admin_password="", admin_email="")
    assert "Set rdma_oci_cluster to the OCID of the cluster" in site.play(cluster="")
    assert not site.stacks.stacks
