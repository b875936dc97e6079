# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake OCI as a process of its own, whose instances join a sandbox: `python -m support.oci_server SANDBOX FOLDER`.

Returns when it answers; FOLDER/oci.json then has what roles need to know. It ends by POST /fake/end, or when nobody has
asked for a quarter of an hour.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

from gpuops_sandbox.cluster import Sandbox

from support import oci_site
from support.fake_join import Joiner

IDLE = 900.0
"""Seconds without a request."""


def serve(sandbox: str, folder: Path) -> None:
    fake = oci_site.tenancy()
    url = fake.start()
    cluster = oci_site.cluster(fake)
    cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
    joiner = Joiner(fake, Sandbox(sandbox), cluster, delay=0.0)
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
