# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where report.html goes from a pod that is thrown away, and what AWX is told."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.action import report as action_file
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS, OWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import keep as report_keep
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import keep_io

OCI = specs.fragment("oci")

PAGE = "<html>ä</html>".encode()
REPORT = {
    "verdict": "fail",
    "reason": "n3 is slow.",
    "made": "2026-01-31T12:00:00Z",
    "nodes": [{"name": f"n{number}", "verdict": "fail" if number < 60 else "pass"} for number in range(70)],
}
AUTH = dict.fromkeys(OCI)


def noise(size: int) -> bytes:
    return base64.b64encode(random.Random(1).randbytes(size))


def test_a_small_page_is_text_and_a_large_one_packed() -> None:
    small = report_keep.kept_object("configmap", "r", "ns", PAGE, REPORT)
    assert small["data"] == {"report.html": "<html>ä</html>"}
    secret = report_keep.kept_object("secret", "r", "ns", PAGE, REPORT)
    assert base64.b64decode(secret["data"]["report.html"]) == PAGE
    large = b"<p>row</p>" * 200_000
    packed = report_keep.kept_object("configmap", "r", "ns", large, REPORT)
    assert gzip.decompress(base64.b64decode(packed["binaryData"]["report.html.gz"])) == large
    assert packed == report_keep.kept_object("configmap", "r", "ns", large, REPORT)


def test_what_does_not_fit_is_refused_with_a_way_out() -> None:
    with pytest.raises(InputError, match="object_storage"):
        report_keep.kept_object("secret", "r", "ns", noise(2_000_000), REPORT)
    with pytest.raises(InputError, match="an artifact"):
        report_keep.artifact(noise(400_000))
    assert gzip.decompress(base64.b64decode(report_keep.artifact(PAGE))) == PAGE


@pytest.mark.parametrize(
    ("keep", "page", "part"),
    [
        ("configmap", PAGE, r"'{.data.report\.html}' > report.html"),
        ("secret", PAGE, r"'{.data.report\.html}' | base64 -d > report.html"),
        ("configmap", b"a" * 2_000_000, r"'{.binaryData.report\.html\.gz}' | base64 -d | gunzip > report.html"),
    ],
)
def test_the_command_that_gets_it(keep: str, page: bytes, part: str) -> None:
    obj = report_keep.kept_object(keep, "r", "ns", page, REPORT)
    assert report_keep.how_to_get(keep, "r", "ns", obj) == f"kubectl -n ns get {keep} r -o jsonpath={part}"


def test_names_in_a_bucket() -> None:
    assert report_keep.object_name("/a/b/", "lab 1", REPORT["made"]) == "a/b/lab-1/20260131T120000Z-report.html"  # type: ignore[arg-type]
    assert report_keep.object_name("", "lab", REPORT["made"]) == "lab/20260131T120000Z-report.html"  # type: ignore[arg-type]


def test_bad_nodes_stay_few() -> None:
    told = report_keep.statistics(REPORT, "r.json", "")
    assert (len(told["bad_nodes"]), told["bad_nodes_count"], told["verdict"]) == (50, 60, "fail")


class Cluster:
    def __init__(self, namespace: bool = True) -> None:
        self.namespace, self.there, self.dry = namespace, {}, []  # type: ignore[var-annotated]

    def path_of(self, obj: dict[str, Any]) -> str:
        return f"{obj['kind']}/{obj['metadata']['name']}"

    def find(self, path: str) -> Optional[dict[str, Any]]:
        return self.there.get(path)

    def apply(self, obj: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
        if not self.namespace:
            raise NotFound("no namespace", 404)
        self.dry.append(dry_run)
        if not dry_run:
            self.there[self.path_of(obj)] = obj
        return obj


class Keeper(action_file.ActionModule):
    check_mode = False  # type: ignore[assignment]

    def __init__(self, cluster: Optional[Cluster] = None) -> None:
        self._client, self.lines, self._task_vars = cluster, [], {"inventory_hostname": "lab"}  # type: ignore[assignment]

    def progress(self, line: str) -> None:
        self.lines.append(line)

    def keep(self, folder: Path, how: str, **more: Any) -> dict[str, Any]:
        names = {"name": "r", "namespace": "ns", "bucket": "", "prefix": "", "failed": None, **AUTH}
        return self.act({"state": "kept", "dir": str(folder), "keep": how, **names, **more})


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "report.json").write_text(json.dumps(REPORT), encoding="utf-8")
    (tmp_path / "report.html").write_bytes(PAGE)
    return tmp_path


def test_awx_is_told_the_verdict_whatever_is_kept(folder: Path) -> None:
    stats = Keeper().keep(folder, "none")["ansible_stats"]
    assert (stats["per_host"], stats["aggregate"]) == (False, True)
    assert stats["data"]["rdma_report"]["lab"]["verdict"] == "fail"
    assert list(stats["data"]) == ["rdma_report"]
    keeper = Keeper()
    kept = keeper.keep(folder, "artifact")
    # AWX gives artifacts to the next job as extra variables, which must not be refused as unknown inputs there.
    assert set(kept["ansible_stats"]["data"]) <= {*INPUTS, *OWN}
    packed = kept["ansible_stats"]["data"]["rdma_report_html"]["lab"]
    assert gzip.decompress(base64.b64decode(packed)) == PAGE
    assert keeper.lines == [f"report kept: {kept['place']}; get it: {kept['fetch']}"] and "gunzip" in kept["fetch"]


def test_a_second_time_nothing_changes(folder: Path) -> None:
    cluster = Cluster()
    first, second = (Keeper(cluster).keep(folder, "configmap") for _turn in range(2))
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["ansible_stats"]["data"]["rdma_report"]["lab"]["place"] == "configmap ns/r"


def test_a_namespace_that_is_not_there(folder: Path) -> None:
    with pytest.raises(InputError, match="rdma_report_keep_namespace"):
        Keeper(Cluster(namespace=False)).keep(folder, "secret")
    planning = Keeper(Cluster(namespace=False))
    planning.check_mode = True  # type: ignore[misc]
    assert planning.keep(folder, "secret")["changed"], "the run that is predicted would have made it"


def test_an_unmanaged_object_is_left_alone(folder: Path) -> None:
    cluster = Cluster()
    cluster.there["ConfigMap/r"] = {"metadata": {"name": "r", "labels": {"app": "x"}}, "data": {"a": "1"}}
    with pytest.raises(InputError, match=r"ConfigMap ns/r: it exists without the label"):
        Keeper(cluster).keep(folder, "configmap")
    assert cluster.dry == []


class Bucket:
    """As much of plugin_utils/oci/session.Session as the action asks."""

    kept: dict[tuple[str, ...], tuple[bytes, str]] = {}

    def __init__(self, _options: Any) -> None:
        """Reads nothing."""

    def call(self, _what: str, _client: str, method: str, *args: Any, **more: Any) -> Any:
        answer = type("Answer", (), {"data": "tenancy", "headers": {}})()
        if method == "head_object":
            if args not in self.kept:
                raise NotFound("no such object", 404)
            answer.headers = {"content-md5": self.kept[args][1]}
        if method == "put_object":
            self.kept[args[:3]] = (args[3], more["content_md5"])
        return answer


def test_object_storage_keeps_each_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_io.oci, "Session", Bucket)
    monkeypatch.setattr(Bucket, "kept", {})
    first, second = (Keeper().keep(folder, "object_storage", bucket="b") for _turn in range(2))
    assert (first["changed"], second["changed"]) == (True, False)
    assert list(Bucket.kept) == [("tenancy", "b", "lab/20260131T120000Z-report.html")]
    with pytest.raises(InputError, match="object_storage needs bucket"):
        Keeper().keep(folder, "object_storage")


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Keeper().keep(tmp_path, "none")
