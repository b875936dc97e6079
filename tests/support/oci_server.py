# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake OCI as a process of its own, whose instances join a sandbox: `python -m support.oci_server SANDBOX FOLDER`.

Its Resource Manager installs a fake of OCI AI Blueprints that deploys into the sandbox. Returns when it answers;
FOLDER/oci.json then has what roles need to know. It ends by POST /fake/end, or when nobody has asked for a quarter of
an hour.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
from pathlib import Path

from gpuops_sandbox.cluster import Sandbox

from support import authorities, oci_site
from support.blueprint_sandbox import SandboxSite
from support.fake_blueprints import FakeBlueprints
from support.fake_join import Joiner
from support.fake_oci import FakeOci
from support.fake_stacks import Stacks, World, stack_zip

IDLE = 900.0
"""Seconds without a request."""


def blueprints(fake: FakeOci, kubeconfig: Path, compartment: str, folder: Path) -> dict[str, str]:
    """What a stack of OCI AI Blueprints needs to know; its outputs lead to a fake API behind TLS."""
    ca, server = authorities.make(folder, "plain")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    site = SandboxSite(str(kubeconfig), fake, compartment, folder)
    site.network = "host"
    api = FakeBlueprints(site=site)
    stacks = Stacks(fake)
    stacks.seconds = dict.fromkeys(stacks.seconds, 0.0)
    outputs = {"corrino_api_url": api.start(context), "corrino_admin_username_output": api.username}
    outputs["corrino_admin_nonce_output"] = api.password
    stacks.world = World(resources={"helm_release.keda": "helm_release"}, outputs=outputs)
    stack_zip(folder / "app.zip")
    return {"zip": str(folder / "app.zip"), "ca_path": str(ca), "password": api.password}


def serve(sandbox: str, folder: Path) -> None:
    fake = oci_site.tenancy()
    url = fake.start()
    cluster = oci_site.cluster(fake)
    cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
    cluster["endpointConfig"] = {"subnetId": "ocid1.subnet.oc1..endpoint"}
    cluster["options"] = {"serviceLbSubnetIds": ["ocid1.subnet.oc1..lb"]}
    here = Sandbox(sandbox)
    joiner = Joiner(fake, here, cluster, delay=0.0)
    cluster["certificateAuthority"] = base64.b64encode(joiner.ca.encode()).decode()
    fake.durations.update(dict.fromkeys(fake.durations, 0.0))
    link = f"/p/secret/n/space/b/images/o/{oci_site.IMAGE}"
    fake.links.add(link)
    fake.sources[url + link] = ""
    known = {
        "service_endpoint": url,
        "config_file": str(oci_site.config_file(oci_site.credentials(fake, folder), folder)),
        "compartment": cluster["compartmentId"],
        "cluster": cluster["id"],
        "availability_domain": oci_site.DOMAIN,
        "shape": oci_site.H100,
        "subnet": oci_site.SUBNET,
        "image_url": url + link,
        "blueprints": blueprints(fake, here.kubeconfig, cluster["compartmentId"], folder),
    }
    print(json.dumps(known), flush=True)
    seen = -1
    while not fake.ended.is_set() and seen != (now := sum(fake.calls.values())):
        seen = now
        fake.ended.wait(IDLE)
    joiner.stop()
    fake.stop()


def main(sandbox: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", f"from support.oci_server import *; serve({sandbox!r}, Path({folder!r}))"]
    with (Path(folder) / "log").open("w", encoding="utf-8") as log:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    assert started.stdout
    line = started.stdout.readline()
    if not line:
        sys.exit((Path(folder) / "log").read_text("utf-8"))
    (Path(folder) / "oci.json").write_text(line, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
