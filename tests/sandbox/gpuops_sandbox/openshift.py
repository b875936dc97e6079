# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``sandbox up --platform openshift --ocp 4.18|4.20``: what makes the cluster an OpenShift one.

What belongs to the flavour, and where to add to it:

- ``tests/sandbox/openshift/crds/*.yaml``: CustomResourceDefinitions, our own and minimal, served before the controllers
  start. Where ../shared/upstream/crds/openshift has the real one of that name, the real one is taken. A file in
  ``crds/4.18/`` or ``crds/4.20/`` is for that version alone and wins over both.
- ``tests/sandbox/openshift/objects/*.yaml``: objects that every such cluster has (namespaces, ClusterVersion,
  catalogs), status included, in the order of the files' names; ``$ocp`` is the version.
- ``tests/sandbox/openshift/catalog.yaml``: what OLM can install, in the versions of files/profiles;
  platform_openshift/olm.py reads it.
- ``gpuops_sandbox/platform_openshift/*.py``: simulated controllers, modules with ``NAME`` and
  ``register(registry, ctx)`` like those of operators/. ``ctx.ocp`` is the version; ``--without NAME`` leaves one out.
- ``nodes.py``: the nodes' labels, roles and system.
"""

from __future__ import annotations

import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from .cluster import Api

Json = dict[str, Any]

VERSIONS = ("4.18", "4.20")
DEFAULT = VERSIONS[-1]
GROUP = "platform_openshift"
FOLDER = Path(__file__).resolve().parents[1] / "openshift"
PROFILES = FOLDER.parents[2] / "files" / "profiles"
UPSTREAM = FOLDER.parents[2] / ".." / "shared" / "upstream" / "crds" / "openshift"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENCE = 30.0
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def install(api: Api, ocp: str) -> None:
    """Definitions, then objects; returns when all of them are served."""
    definitions = list(crds(ocp))
    for crd in definitions:
        api.apply(f"{CRDS}/{crd['metadata']['name']}", crd)
    for crd in definitions:
        _await_served(api, crd["metadata"]["name"])
    plurals = {_key(crd): (crd["spec"]["names"]["plural"], crd["spec"]["scope"]) for crd in definitions}
    for obj in objects(ocp):
        path = _path(obj, plurals)
        api.apply(path, obj)
        if "status" in obj:
            api.merge(f"{path}/status", {"status": obj["status"]})


def crds(ocp: str) -> Iterator[Json]:
    """The definitions of that version, each once."""
    real = {crd["metadata"]["name"]: crd for path in sorted(UPSTREAM.glob("*.yaml")) for crd in _documents(path)}
    found: dict[str, Json] = {}
    for path in sorted((FOLDER / "crds").glob("*.yaml")):
        for crd in _documents(path):
            found[crd["metadata"]["name"]] = real.get(crd["metadata"]["name"], crd)
    for path in sorted((FOLDER / "crds" / ocp).glob("*.yaml")):
        found.update({crd["metadata"]["name"]: crd for crd in _documents(path)})
    yield from found.values()


def objects(ocp: str) -> Iterator[Json]:
    for path in sorted((FOLDER / "objects").glob("*.yaml")):
        yield from _documents(path, ocp)


def catalog(ocp: str) -> Json:
    """``{package: {...}}`` of catalog.yaml."""
    return next(_documents(FOLDER / "catalog.yaml", ocp, **_releases()))


def _releases() -> dict[str, str]:
    """The operators' versions of the profiles, and their majors, by the names that catalog.yaml has for them."""
    found = {}
    for profile, when in (("current", ""), ("previous", "_before")):
        document = yaml.load((PROFILES / f"{profile}.yml").read_text(), _LOADER)
        for name in ("gpu", "network"):
            version = str(document[f"{name}_operator"]["version"]).removeprefix("v")
            found[f"{name}{when}"], found[f"{name}{when}_major"] = version, version.rpartition(".")[0]
    return found


def _documents(path: Path, ocp: str = "", **words: str) -> Iterator[Json]:
    text = path.read_text()
    for one in yaml.load_all(string.Template(text).safe_substitute(words, ocp=ocp) if ocp else text, _LOADER):
        if one and one.get("kind") == "CustomResourceDefinition":
            one.pop("status", None)
        if one:
            yield one


def _key(crd: Json) -> tuple[str, str]:
    return crd["spec"]["group"], crd["spec"]["names"]["kind"]


def _path(obj: Json, plurals: dict[tuple[str, str], tuple[str, str]]) -> str:
    version, meta = obj["apiVersion"], obj["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    word = obj["kind"].lower()
    plain = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    plural, _scope = plurals.get((version.partition("/")[0], obj["kind"]), (plain, ""))
    place = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{root}{place}/{plural}/{meta['name']}"


def _await_served(api: Api, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        conditions = (api.find(f"{CRDS}/{name}") or {}).get("status", {}).get("conditions") or []
        if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return
        time.sleep(0.1)
