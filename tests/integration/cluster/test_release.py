# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.release with a real API server and a real Helm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values
from support import chart_repository
from support.paths import ROOT
from support.sandboxes import ANSIBLE, Cluster, Pool
from support.small_sandbox import small_sandbox

pytestmark = pytest.mark.cluster


def other_python(folder: Path) -> Path:
    """A folder for PATH whose newest Python lacks what Helm's module imports, as a machine's own does."""
    made = folder / "other_python"
    made.mkdir(exist_ok=True)
    (made / "python3.14").write_text("#!/bin/sh\necho 'No module named yaml' >&2\nexit 1\n")
    (made / "python3.14").chmod(0o755)
    for name in ("python3.13", "python3.12"):
        (made / name).unlink(missing_ok=True)
        (made / name).symlink_to("python3.14")
    return made


class Releases(Cluster):
    def revision(self, name: str, namespace: str) -> int:
        return int(self.json("helm", "list", "-n", namespace, "-a", "--filter", f"^{name}$")[0]["revision"])

    def release(self, *options: str, **args: Any) -> dict[str, Any]:
        """One task of gpuops.rdma.release; its result with the display's text as ``output``."""
        collections = str(ROOT / ".cache" / "collections")
        env = {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_COLLECTIONS_PATH": collections}
        given = {"kubeconfig": str(self.kubeconfig), **args}
        inventory = ["-i", "localhost,", "-c", "local"]  # as README has it; the implicit localhost has Ansible's Python
        argv = [ANSIBLE, "localhost", *inventory, "-m", "gpuops.rdma.release", "-a", json.dumps(given), *options]
        done = self.done(*argv, env={**env, "PATH": f"{other_python(self.folder)}:{self.environment()['PATH']}"})
        assert "=> {" in done.stdout, done.stdout + done.stderr
        output, _, answer = done.stdout.partition("=> {")
        result, _ = json.JSONDecoder().raw_decode("{" + answer)
        return {**result, "failed": "FAILED!" in output, "output": output + done.stderr}


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    with small_sandbox(pool, tmp_path_factory.mktemp("kube"), 0) as small:
        yield Releases(small.sandbox, small.folder)


def chart(folder: Path, name: str, version: str = "v26.7.0", extra: str = "") -> str:
    """A chart of that name that makes one ConfigMap from its values."""
    place = folder / f"{name}-{version}"
    (place / "templates").mkdir(parents=True)
    (place / "Chart.yaml").write_text(f"apiVersion: v2\nname: {name}\nversion: {version}\n")
    (place / "values.yaml").write_text("driver:\n  enabled: true\n")
    (place / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-made\n"
        'data:\n  driver: "{{ .Values.driver.enabled }}"\n' + extra
    )
    return str(place)


def task(name: str, ref: str, **more: Any) -> dict[str, Any]:
    """Each test has a chart name of its own, so that tests do not see each other's releases."""
    base = {"name": name, "namespace": f"ns-{name}", "chart": name, "ref": ref, "version": "v26.7.0"}
    return {**base, "values": {"driver": {"enabled": False}}, **more}


def test_install_unchanged_upgrade(cluster: Releases, tmp_path: Path) -> None:
    given = task("first", chart(tmp_path, "first"))
    predicted = cluster.release("--check", "--diff", **given)
    assert (predicted["changed"], predicted["action"]) == (True, "install")
    assert cluster.done("kubectl", "get", "ns", "ns-first").returncode != 0, "check mode must change nothing"

    made = cluster.release(**given)
    assert (made["changed"], made["action"]) == (True, "install"), made
    assert "first: helm install first v26.7.0" in made["output"]
    assert cluster.json("kubectl", "get", "cm", "-n", "ns-first", "first-made")["data"]["driver"] == "false"

    again = cluster.release(**given, helm_binary="/nowhere/helm")
    assert (again["changed"], again.get("action")) == (False, "none"), again  # no Helm is needed where nothing changes
    assert again["requests"] <= 2

    given["values"] = {"driver": {"enabled": True}}
    predicted = cluster.release("--check", "--diff", **given)
    assert predicted["values_changed"] == ["driver.enabled"]
    assert "-    enabled: false" in predicted["output"] and "+    enabled: true" in predicted["output"]
    assert cluster.revision("first", "ns-first") == 1
    assert cluster.release(**given)["action"] == "upgrade"
    assert cluster.revision("first", "ns-first") == 2

    newer = cluster.release(**{**given, "ref": chart(tmp_path, "first", "v26.8.0")})
    assert (newer["action"], newer["version"]) == ("upgrade", "v26.8.0"), "the version is that of the directory's chart"
    back = cluster.release(**given)
    assert back["failed"] and "newer than v26.7.0" in back["msg"]


def test_release_under_another_name_is_adopted(cluster: Releases, tmp_path: Path) -> None:
    ref = chart(tmp_path, "second")
    cluster.run("helm", "install", "--generate-name", ref, "-n", "elsewhere", "--create-namespace", "--set", "own=1")
    made = cluster.release(**task("second", ref))
    assert (made["action"], made["namespace"]) == ("adopt", "elsewhere"), made
    assert made["name"].startswith("second-")
    kept = cluster.json("helm", "get", "values", made["name"], "-n", "elsewhere")
    assert kept == {"own": 1, "driver": {"enabled": False}}
    assert cluster.release(**task("second", ref))["action"] == "none"
    assert len(cluster.json("helm", "list", "-A", "--filter", "second")) == 1

    cluster.run("helm", "install", "third-party", ref, "-n", "other", "--create-namespace")
    doubled = cluster.release(**task("second", ref))
    assert doubled["failed"]
    assert "other/third-party" in doubled["msg"] and f"elsewhere/{made['name']}" in doubled["msg"]


def test_installation_without_helm_is_refused_or_taken_as_it_is(cluster: Releases, tmp_path: Path) -> None:
    labels = {"app": "addon"}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "addon-op", "namespace": "kube-system"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "op", "image": "ocir.example/oke/third:v25.10.1"}]},
                },
            },
        }
    )
    given = task("third", chart(tmp_path, "third"))
    refused = cluster.release(**given)
    assert refused["failed"] and "kube-system/addon-op" in refused["msg"] and "rdma_install=existing" in refused["msg"]
    taken = cluster.release(**given, install="existing")
    assert (taken["changed"], taken["action"]) == (False, "none")
    missing = cluster.release(**task("nowhere", given["ref"]), install="existing")
    assert missing["failed"] and "nowhere is not installed" in missing["msg"]


def pending(cluster: Releases, name: str, revision: int, status: str, minutes: int) -> None:
    """Turns a release's newest record into what a killed Helm leaves behind."""
    code = (
        "import base64,datetime,gzip,json,sys;s=json.load(sys.stdin);"
        "d=json.loads(gzip.decompress(base64.b64decode(base64.b64decode(s['data']['release']))));"
        f"t=datetime.datetime.now(datetime.timezone.utc)-datetime.timedelta(minutes={minutes});"
        f"d['info'].update(status='{status}',last_deployed=t.isoformat());s['metadata']['labels']['status']='{status}';"
        "s['data']['release']=base64.b64encode(base64.b64encode(gzip.compress(json.dumps(d).encode()))).decode();"
        "print(json.dumps(s))"
    )
    place = ["-n", f"ns-{name}", f"sh.helm.release.v1.{name}.v{revision}"]
    secret = cluster.run("kubectl", "get", "secret", *place, "-o", "json")
    changed = subprocess.run([sys.executable, "-c", code], input=secret, capture_output=True, text=True, check=True)
    cluster.apply(json.loads(changed.stdout))


def test_pending_release_is_refused_then_resumed(cluster: Releases, tmp_path: Path) -> None:
    given = task("fourth", chart(tmp_path, "fourth"))
    cluster.release(**given)
    pending(cluster, "fourth", 1, "pending-install", 3)
    young = cluster.release(**given, resume=True)
    assert young["failed"] and "another Helm process may be changing" in young["msg"]

    pending(cluster, "fourth", 1, "pending-install", 60)
    old = cluster.release(**given)
    assert old["failed"] and "helm uninstall fourth -n ns-fourth" in old["msg"] and "rdma_release_resume" in old["msg"]
    before = cluster.json("kubectl", "get", "cm", "-n", "ns-fourth", "fourth-made")["metadata"]["uid"]
    resumed = cluster.release(**given, resume=True)
    assert (resumed["changed"], resumed["action"]) == (True, "install"), resumed
    after = cluster.json("kubectl", "get", "cm", "-n", "ns-fourth", "fourth-made")["metadata"]["uid"]
    assert before == after, "the objects of the unfinished release are taken over, not made anew"
    assert cluster.release(**given)["action"] == "none"

    given["values"] = {"driver": {"enabled": True}}
    cluster.release(**given)
    pending(cluster, "fourth", 2, "pending-upgrade", 60)
    assert "helm rollback fourth" in cluster.release(**given)["msg"]
    resumed = cluster.release(**given, resume=True)
    assert resumed["action"] == "upgrade" and not resumed["failed"], resumed
    assert cluster.release(**given)["action"] == "none"


def test_failed_release_converges(cluster: Releases, tmp_path: Path) -> None:
    broken = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: 0bad\nspec:\n  ports: []\n"
    given = task("fifth", chart(tmp_path, "fifth", extra=broken))
    failed = cluster.release(**given)
    assert failed["failed"] and "Helm could not install fifth v26.7.0" in failed["msg"], failed
    assert "Service" in failed["msg"] and "Traceback" not in failed["msg"]
    (Path(given["ref"]) / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-made\n"
    )
    # The same version and values: kubernetes.core.helm alone would call the failed release done.
    again = cluster.release(**given)
    assert again["changed"] and not again["failed"], again
    assert cluster.release(**given)["action"] == "none"


def test_charts_that_cannot_be_pulled_and_bad_namespaces(cluster: Releases, tmp_path: Path) -> None:
    given = task("sixth", "")
    away = cluster.release(**{**given, "repo": "http://127.0.0.1:1/charts"})
    assert away["failed"] and "set rdma_charts.sixth to its directory" in away["msg"], away
    nowhere = cluster.release(**{**given, "ref": str(tmp_path / "nowhere")})
    assert nowhere["failed"] and f"chart {tmp_path / 'nowhere'}: it does not exist" in nowhere["msg"], nowhere

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stuck"}}
    hold = {"name": "hold", "namespace": "stuck", "finalizers": ["example.com/hold"]}
    cluster.apply(namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": hold})
    cluster.run("kubectl", "delete", "ns", "stuck", "--wait=false")
    stuck = cluster.release(**{**given, "ref": chart(tmp_path, "sixth"), "namespace": "stuck"})
    assert stuck["failed"] and "namespace stuck: it is Terminating" in stuck["msg"], stuck
    cluster.run("kubectl", "patch", "cm", "hold", "-n", "stuck", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')


def test_helm_that_is_missing_or_strange(cluster: Releases, tmp_path: Path) -> None:
    given = task("seventh", chart(tmp_path, "seventh"))
    missing = cluster.release(**given, helm_binary=str(tmp_path / "nothing"))
    assert missing["failed"] and "cannot be run" in missing["msg"]
    for version, words in (
        ("v3.9.4", "expected >= 3.10, < 5"),
        ("v5.0.0", "is v5.0.0"),
        ("v4.2.4", "from 6.4.0 on"),
    ):
        fake = tmp_path / f"helm-{version}"
        fake.write_text(f"#!/bin/sh\necho {version}\n")
        fake.chmod(0o755)
        strange = cluster.release(**given, helm_binary=str(fake))
        assert strange["failed"] and words in strange["msg"], strange
    assert cluster.done("kubectl", "get", "ns", "ns-seventh").returncode != 0


def test_manifest_is_applied_where_it_is_absent(cluster: Releases, tmp_path: Path) -> None:
    labels = {"app": "eighth"}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "eighth"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "eighth", "namespace": "eighth"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "example/eighth:1"}]},
                },
            },
        },
    ]
    manifest = tmp_path / "eighth.yaml"
    manifest.write_text(yaml.safe_dump_all(objects))
    given = {**task("eighth", "", manifest=str(manifest), keep=True), "namespace": "eighth"}
    assert cluster.release("--check", **given)["changed"]
    made = cluster.release(**given)
    assert (made["changed"], made["objects"]) == (True, 2), made
    meta = cluster.json("kubectl", "get", "deploy", "-n", "eighth", "eighth")["metadata"]
    assert meta["labels"]["app.kubernetes.io/managed-by"] == "gpuops-rdma"
    manifest.unlink()
    again = cluster.release(**given)
    assert (again["changed"], again["action"]) == (False, "none"), (
        "what is there is used; the manifest is not even read"
    )
    away = cluster.release(**{**given, "chart": "ninth", "manifest": str(manifest)})
    assert away["failed"] and "Cannot read the manifest" in away["msg"]


def test_release_that_is_uninstalled(cluster: Releases, tmp_path: Path) -> None:
    ref = chart(tmp_path, "away-chart")
    cluster.run("helm", "install", "any-name", ref, "-n", "away", "--create-namespace")
    gone = {"state": "absent", "operator": "away_chart"}
    predicted = cluster.release("--check", **gone)
    assert (predicted["changed"], predicted["name"], predicted["namespace"]) == (True, "any-name", "away")
    assert cluster.revision("any-name", "away") == 1
    assert cluster.release(**gone)["action"] == "uninstall"
    assert cluster.json("helm", "list", "-n", "away", "-a") == []
    again = cluster.release(**gone)
    assert (again["changed"], again["action"]) == (False, "none")
    for name in ("one", "two"):
        cluster.run("helm", "install", name, ref, "-n", f"away-{name}", "--create-namespace")
    both = cluster.release(**gone)
    assert both["failed"] and "away-one/one, away-two/two" in both["msg"], both
    assert cluster.release(**gone, name="two", namespace="away-two")["name"] == "two"
    assert cluster.release(**gone)["name"] == "one"


def test_an_operator_from_a_manifest_is_removed_with_what_was_applied(cluster: Releases, tmp_path: Path) -> None:
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "thirteenth"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "op", "namespace": "thirteenth"}},
    ]
    manifest = tmp_path / "thirteenth.yaml"
    manifest.write_text(yaml.safe_dump_all(objects))
    given = {**task("thirteenth", "", manifest=str(manifest), keep=True), "namespace": "thirteenth"}
    assert cluster.release(**given)["objects"] == 2
    away = cluster.release(state="absent", operator="thirteenth")
    assert (away["changed"], away["action"], away["objects"]) == (True, "remove", 2), away
    assert cluster.done("kubectl", "get", "ns", "thirteenth").returncode != 0
    assert not cluster.release(state="absent", operator="thirteenth")["changed"]


def test_server_that_goes_away_in_the_middle(cluster: Releases, tmp_path: Path) -> None:
    """The first upgrade command fails as it does when the API server restarts; the second is Helm's own."""
    real = cluster.run("sh", "-c", "command -v helm").strip()
    wrapper = tmp_path / "helm"
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *upgrade*) if [ ! -e "$0.used" ]; then touch "$0.used";\n'
        "echo 'Error: Kubernetes cluster unreachable: dial tcp: connection refused' >&2; exit 1; fi;;\n"
        f'esac\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    made = cluster.release(**task("tenth", chart(tmp_path, "tenth")), helm_binary=str(wrapper))
    assert not made["failed"] and made["changed"], made
    assert "the API server was not reachable while Helm ran" in made["output"]
    assert cluster.revision("tenth", "ns-tenth") == 1


def test_release_of_a_plan(cluster: Releases, tmp_path: Path) -> None:
    ref = chart(tmp_path, "eleventh")
    entry = Release(**task("eleventh", ref), images=("eleventh",))
    file = tmp_path / "plan.json"
    base_run.write(file, Plan(install="helm", releases={"gpu_operator": entry}))
    unknown = cluster.release(plan=str(file), operator="network_operator")
    assert unknown["failed"] and "It has: gpu_operator." in unknown["msg"]
    assert cluster.release(plan=str(file), operator="gpu_operator")["action"] == "install"
    renamed = replace(entry, name="renamed", action="none", present={"name": "eleventh"})
    base_run.write(file, Plan(install="helm", releases={"gpu_operator": renamed}))
    assert cluster.release(plan=str(file), operator="gpu_operator")["name"] == "eleventh"

    found = replace(renamed, chart="twelfth", present={}, why="its CRDs are there")
    base_run.write(file, Plan(install="helm", releases={"batch": found}))
    made = cluster.release(plan=str(file), operator="batch")
    assert made["changed"], "only a release or a Deployment counts; definitions may be what a killed run left"


# ---- definitions ---------------------------------------------------------------------------------------------------

SRIOV = "sriovoperatorconfigs.sriovnetwork.openshift.io"


def network_operator(ref: str, version: str, **values: Any) -> dict[str, Any]:
    name = "network-operator"
    base = {"name": name, "namespace": name, "chart": name, "ref": ref, "version": version}
    return {**base, "values": {"nfd": {"enabled": False}, **values}}


def definitions(cluster: Releases) -> dict[str, str]:
    """name -> resourceVersion"""
    items = cluster.json("kubectl", "get", "crd")["items"]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


def test_definitions_of_an_enabled_sub_chart_are_applied_before_helm(cluster: Releases, tmp_path: Path) -> None:
    """Helm adds what is in crds/ with a first release only: "no matches for kind SriovOperatorConfig", before any hook
    runs."""
    nfd = chart_repository.directory(tmp_path, "gpu-operator", "v23.9.1") / "charts" / "node-feature-discovery" / "crds"
    cluster.run("kubectl", "apply", "-f", str(nfd))
    old = chart_repository.directory(tmp_path, "network-operator", "23.10.0")
    new = chart_repository.directory(tmp_path, "network-operator", "26.4.1")
    archive = chart_repository.packed(tmp_path, new)
    first = cluster.release(**network_operator(str(old), "23.10.0", deployCR=True))
    assert (first["action"], "create nicclusterpolicies.mellanox.com" in first["definitions"]) == ("install", True), (
        first
    )
    before = definitions(cluster)
    assert SRIOV not in before, "the sub-chart was off"

    on: dict[str, Any] = {"sriovNetworkOperator": {"enabled": True}}
    with chart_repository.repository(tmp_path, archive) as repo:
        served = {**network_operator("", "26.4.1", **on), "repo": repo.url}
        forms = [network_operator(str(new), "26.4.1", **on), network_operator(str(archive), "26.4.1", **on), served]
        predicted = [cluster.release("--check", "--diff", **form) for form in forms]
        told = predicted[0]["definitions"]
        assert [one["definitions"] for one in predicted] == [told] * 3, "a directory, a .tgz and a repository are alike"
        assert f"create {SRIOV}" in told and "+ version v1" in predicted[0]["output"]
        assert definitions(cluster) == before, "check mode changes nothing"
        made = cluster.release(**served)
        assert (made["failed"], made["action"], made["definitions"]) == (False, "upgrade", told), made
    assert cluster.json("kubectl", "get", "sriovoperatorconfig", "-n", "network-operator", "default")
    after = definitions(cluster)
    assert set(before) < set(after), "nothing is removed"
    again = cluster.release(**network_operator(str(new), "26.4.1", **on))
    assert (again["changed"], "definitions" in again) == (False, False)
    assert definitions(cluster) == after


def test_a_newer_release_brings_its_definitions_from_every_place(cluster: Releases, tmp_path: Path) -> None:
    """v26.3.3 to v26.7.0: three definitions more, and new fields in the others, which Helm alone would leave out."""
    old, new = (chart_repository.directory(tmp_path, "gpu-operator", version) for version in ("v26.3.3", "v26.7.0"))
    archive = chart_repository.packed(tmp_path, new)

    def asked(version: str, **place: str) -> dict[str, Any]:
        name = "gpu-operator"
        base = {"name": name, "namespace": name, "chart": name, "version": version, **place}
        return {**base, "values": {"operator": {"upgradeCRD": False}}}  # its Job would need a node

    def fields() -> set[str]:
        live = cluster.json("kubectl", "get", "crd", "clusterpolicies.nvidia.com")["spec"]["versions"][0]
        operator = live["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["operator"]
        return set(operator["properties"])

    assert cluster.release(**asked("v26.3.3", ref=str(old)))["action"] == "install"
    before = definitions(cluster)
    assert "metrics" not in fields()
    with chart_repository.repository(tmp_path, archive) as repo:
        places = [{"ref": str(new)}, {"ref": str(archive)}, {"repo": repo.url}]
        predicted = [cluster.release("--check", **asked("v26.7.0", **place)) for place in places]
    told = predicted[0]["definitions"]
    assert {"create gpuclusters.nvidia.com", "update clusterpolicies.nvidia.com"} < set(told)
    assert [(one["action"], one["definitions"]) for one in predicted] == [("upgrade", told)] * 3, predicted
    assert definitions(cluster) == before, "check mode changes nothing"
    made = cluster.release(**asked("v26.7.0", ref=str(archive)))
    assert (made["failed"], made["version"], made["definitions"]) == (False, "v26.7.0", told), made
    assert "metrics" in fields() and set(before) < set(definitions(cluster)), "nothing is removed"
    _a_hold_that_helm_leaves_is_let_go(cluster, tmp_path / "plan.json", asked("v26.7.0", ref=str(archive)))


def _a_hold_that_helm_leaves_is_let_go(cluster: Releases, file: Path, asked: dict[str, Any]) -> None:
    """An upgrade was killed between the ClusterPolicy and its Helm, or that Helm failed: no later one changed the
    fields, as they are the same in both of its manifests, and no operand was replaced any more."""
    hold = {"daemonsets": {"updateStrategy": "OnDelete"}, "driver": {"upgradePolicy": {"autoUpgrade": False}}}
    held = ["kubectl", "patch", "clusterpolicy", "cluster-policy", "--field-manager=gpuops-rdma", "--type=merge", "-p"]
    values = chart_values.merge(asked["values"], {"dcgmExporter": {"enabled": False}})
    for _run in range(2):
        cluster.run(*held, json.dumps({"spec": hold}))
        entry = Release(**{**asked, "values": values}, images=("gpu-operator",), held=True)
        base_run.write(file, Plan(install="helm", releases={"gpu_operator": entry}))
        made = cluster.release(plan=str(file), operator="gpu_operator")
        assert (made["failed"], made["changed"]) == (False, True), made
        assert cluster.revision("gpu-operator", "gpu-operator") == 3
        spec = cluster.json("kubectl", "get", "clusterpolicy", "cluster-policy")["spec"]
        assert spec["daemonsets"]["updateStrategy"] == "RollingUpdate", "with a Helm, and without one"
        assert spec["driver"]["upgradePolicy"]["autoUpgrade"] is True


def test_definitions_of_another_origin_are_refused_and_newer_ones_left(cluster: Releases, tmp_path: Path) -> None:
    def things(*fields: str) -> dict[str, Any]:
        spec = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
        names = {"kind": "Thing", "listKind": "ThingList", "plural": "things", "singular": "thing"}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
        meta = {"name": "things.example.com"}
        api = "apiextensions.k8s.io/v1"
        return {"apiVersion": api, "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}

    def fields() -> set[str]:
        live = cluster.json("kubectl", "get", "crd", "things.example.com")["spec"]["versions"][0]
        return set(live["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])

    given = task("thing-op", chart(tmp_path, "thing-op"))
    crd = Path(given["ref"]) / "crds" / "things.yaml"
    crd.parent.mkdir()
    crd.write_text(yaml.safe_dump(things("a", "new")))
    cluster.apply(things("a", "own"))
    refused = cluster.release(**given)
    assert (
        refused["failed"] and "things.example.com lacks v1 spec.new of the chart's; has v1 spec.own" in refused["msg"]
    )
    assert cluster.done("kubectl", "get", "ns", "ns-thing-op").returncode != 0, "nothing was changed"
    cluster.apply(things("a"))
    assert cluster.release(**given)["definitions"] == ["update things.example.com"]
    assert fields() == {"a", "new"}
    cluster.apply(things("a", "new", "newer"))
    newer = cluster.release(**{**given, "values": {"driver": {"enabled": True}}})
    assert (newer["action"], "definitions" in newer) == ("upgrade", False), newer
    shown = " ".join(newer["output"].split())
    assert "things.example.com has v1 spec.newer that the chart's lacks; it is kept" in shown
    assert fields() == {"a", "new", "newer"}
