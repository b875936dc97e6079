# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake OCI behaves as the service is documented to, seen through the real SDK."""

from __future__ import annotations

import http.client
import json
import urllib.request
from typing import Any

import oci
import pytest
from oci.core import models as core
from support import oci_site
from support.fake_oci import FakeOci

GPU = "ocid1.compartment.oc1..gpu"
AD = oci_site.DOMAIN


def compute(config: dict[str, Any], url: str) -> oci.core.ComputeClient:
    return oci.core.ComputeClient(config, service_endpoint=url)


def management(config: dict[str, Any], url: str) -> oci.core.ComputeManagementClient:
    return oci.core.ComputeManagementClient(config, service_endpoint=url)


def refused(call: Any, *args: Any, **more: Any) -> oci.exceptions.ServiceError:
    with pytest.raises(oci.exceptions.ServiceError) as error:
        call(*args, **more)
    return error.value


def test_a_right_signature_is_accepted_and_a_wrong_key_is_not(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    assert compute(config, url).list_instances(GPU).data == []
    error = refused(compute({**config, "fingerprint": "aa:" * 15 + "aa"}, url).list_instances, GPU)
    assert (error.status, error.code) == (401, "NotAuthenticated")


def test_body_date_and_headers_are_verified(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    signer = oci.signer.Signer(config["tenancy"], config["user"], config["fingerprint"], config["key_file"])

    def send(body: bytes, sent: bytes, **changes: str) -> int:
        request = oci._vendor.requests.Request("POST", f"{url}/20160918/computeClusters", data=body, auth=signer)
        request.headers["content-type"] = "application/json"
        prepared = request.prepare()
        prepared.headers.update(changes)
        host, port = url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        headers = {**prepared.headers, "content-length": str(len(sent))}
        connection.request("POST", "/20160918/computeClusters", sent, headers)
        return connection.getresponse().status

    good = b'{"displayName": "a", "compartmentId": "c", "availabilityDomain": "x"}'
    assert send(good, good) == 200
    assert send(good, good.replace(b'"a"', b'"b"')) == 401, "the digest of the body is signed"
    assert send(good, good, date="Thu, 05 Jan 2034 21:31:40 GMT") == 401, "the clock must not differ"
    assert send(good, good, authorization="Bearer x") == 401
    assert next(iter(fake.tables["computeClusters"].values()))["displayName"] == "a"
    assert len(fake.tables["computeClusters"]) == 1


def test_lists_are_paged(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    oci_site.nodes(fake, oci_site.cluster(fake)["id"], 250)
    client = compute(config, url)
    assert len(client.list_instances(GPU).data) == 100, "the first page only"
    found = oci.pagination.list_call_get_all_results(client.list_instances, GPU).data
    assert len({item.id for item in found}) == 250
    assert found[0].lifecycle_state == "RUNNING"
    assert len(client.list_instances(GPU, limit=1000).data) == 250
    assert client.list_instances("ocid1.compartment.oc1..other").data == []
    assert len(client.list_compute_hosts(GPU).data.items) == 0, "hosts belong to the root compartment here"


def test_429_is_tried_again_by_the_sdks_strategy(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    fake.fail("GET .*/instances", 429, "TooManyRequests", times=1)
    strategy = oci.retry.RetryStrategyBuilder(retry_base_sleep_time_seconds=0).get_retry_strategy()
    assert compute(config, url).list_instances(GPU, retry_strategy=strategy).data == []
    fake.fail("GET .*/instances", 429, "TooManyRequests", times=1)
    error = refused(compute(config, url).list_instances, GPU, retry_strategy=oci.retry.NoneRetryStrategy())
    assert error.code == "TooManyRequests"


def test_an_import_takes_its_time(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    fake.sources = {"http://good": "", "http://short": "The image file is truncated."}
    client, works = compute(config, url), oci.work_requests.WorkRequestClient(config, service_endpoint=url)

    def start(source: str) -> Any:
        details = core.ImageSourceViaObjectStorageUriDetails(source_uri=source)
        return client.create_image(core.CreateImageDetails(compartment_id=GPU, image_source_details=details))

    image = start("http://good")
    key = image.headers["opc-work-request-id"]
    assert image.data.lifecycle_state == "IMPORTING"
    fake.clock.advance(1350)
    assert works.get_work_request(key).data.percent_complete == pytest.approx(50, abs=1)
    fake.clock.advance(1350)
    assert works.get_work_request(key).data.status == "SUCCEEDED"
    assert client.get_image(image.data.id).data.lifecycle_state == "AVAILABLE"
    client.add_image_shape_compatibility_entry(image.data.id, oci_site.H100)
    assert [item.shape for item in client.list_image_shape_compatibility_entries(image.data.id).data] == [oci_site.H100]
    short = start("http://short").headers["opc-work-request-id"]
    fake.clock.advance(2700)
    assert works.get_work_request(short).data.status == "FAILED"
    assert works.list_work_request_errors(short).data[0].message == "The image file is truncated."
    assert refused(start, "http://expired").status == 400


def cluster_network(client: Any, size: int) -> Any:
    launch = core.InstanceConfigurationLaunchInstanceDetails(shape=oci_site.H100, compartment_id=GPU)
    details = core.ComputeInstanceDetails(launch_details=launch)
    made = client.create_instance_configuration(
        core.CreateInstanceConfigurationDetails(compartment_id=GPU, instance_details=details)
    )
    pool = core.CreateClusterNetworkInstancePoolDetails(instance_configuration_id=made.data.id, size=size)
    place = core.ClusterNetworkPlacementConfigurationDetails(availability_domain=AD, primary_subnet_id="nodes")
    return client.create_cluster_network(
        core.CreateClusterNetworkDetails(compartment_id=GPU, instance_pools=[pool], placement_configuration=place)
    )


def test_a_cluster_network_comes_up(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    client, network = management(config, url), oci.core.VirtualNetworkClient(config, service_endpoint=url)
    made = cluster_network(client, 4).data
    assert made.lifecycle_state == "PROVISIONING"
    assert client.list_cluster_network_instances(GPU, made.id).data == []
    fake.clock.advance(600)
    found = client.list_cluster_network_instances(GPU, made.id).data
    assert len(found) == 4 and {item.state for item in found} == {"Running"}
    attached = compute(config, url).list_vnic_attachments(GPU).data
    addresses = {item.vnic_id: item.ip_address for item in network.list_private_ips(subnet_id="nodes").data}
    assert len({addresses[item.vnic_id] for item in attached}) == 4


def test_no_capacity_is_told_by_the_work_request(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    fake.capacity[(AD, oci_site.H100)] = 3
    client, works = management(config, url), oci.work_requests.WorkRequestClient(config, service_endpoint=url)
    key = cluster_network(client, 4).headers["opc-work-request-id"]
    fake.clock.advance(600)
    assert works.get_work_request(key).data.status == "FAILED"
    assert works.list_work_request_errors(key).data[0].message == "Out of host capacity."
    report = core.CreateComputeCapacityReportDetails(
        compartment_id=fake.tenancy,
        availability_domain=AD,
        shape_availabilities=[core.CreateCapacityReportShapeAvailabilityDetails(instance_shape=oci_site.H100)],
    )
    told = compute(config, url).create_compute_capacity_report(report).data.shape_availabilities[0]
    assert (told.availability_status, told.available_count) == ("AVAILABLE", 3), "and still four do not fit"
    report.shape_availabilities[0].fault_domain = "FAULT-DOMAIN-1"
    assert refused(compute(config, url).create_compute_capacity_report, report).code == "CannotParseRequest"


def test_new_objects_are_not_there_at_once(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    fake.lag = 5
    client = compute(config, url)
    details = core.CreateComputeClusterDetails(compartment_id=GPU, availability_domain=AD, display_name="rdma")
    made = client.create_compute_cluster(details, opc_retry_token="once").data
    assert refused(client.get_compute_cluster, made.id).code == "NotAuthorizedOrNotFound"
    assert client.list_compute_clusters(GPU).data.items == []
    assert client.create_compute_cluster(details, opc_retry_token="once").data.id == made.id, "the same request again"
    fake.clock.advance(5)
    assert [item.id for item in client.list_compute_clusters(GPU).data.items] == [made.id]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"freeform_tags": {"gpuops.rdma": "x"}}, "Invalid free-form tag key: gpuops.rdma"),
        ({"freeform_tags": {"two words": "x"}}, "Invalid free-form tag key: two words"),
        ({"freeform_tags": {"a" * 101: "x"}}, "Invalid free-form tag key: aaa"),
        ({"freeform_tags": {"a": "x" * 257}}, "has over 256 characters"),
        ({"freeform_tags": {str(number): "x" for number in range(11)}}, "can have 10 free-form tags, not 11"),
        ({"display_name": "x" * 256}, "displayName must have 1 to 255 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_and_tags_have_oracles_limits(
    fake: FakeOci, url: str, config: dict[str, Any], changed: dict[str, Any], words: str
) -> None:
    """fake_oci_rules.md has the sources. One step within each limit is accepted."""
    given = {"compartment_id": GPU, "availability_domain": AD, "display_name": "x" * 255}
    tags = {"gpuops/rdma": "x" * 256, "a" * 100: "", **{str(number): "x" for number in range(8)}}
    made = compute(config, url).create_compute_cluster(
        core.CreateComputeClusterDetails(**given, freeform_tags=tags), opc_retry_token="once"
    )
    assert made.data.freeform_tags == tags
    details = core.CreateComputeClusterDetails(**{**given, **changed})
    error = refused(compute(config, url).create_compute_cluster, details)
    assert (error.status, error.code) == (400, "InvalidParameter") and words in error.message
    other = core.CreateComputeClusterDetails(**{**given, "display_name": "other"})
    error = refused(compute(config, url).create_compute_cluster, other, opc_retry_token="once")
    assert (error.status, error.code) == (409, "Conflict") and "in use for a different request" in error.message


def test_an_instance_is_reset_once_by_a_token_and_tagged_where_the_tag_is(
    fake: FakeOci, url: str, config: dict[str, Any]
) -> None:
    client, (made,) = compute(config, url), oci_site.nodes(fake, oci_site.cluster(fake)["id"], 1)
    fake.durations["reset"] = 60.0
    for _again in range(2):
        assert client.instance_action(made["id"], "RESET", opc_retry_token="once").data.lifecycle_state == "STOPPING"
    error = refused(client.instance_action, made["id"], "RESET")
    assert (error.status, error.code) == (409, "IncorrectState")
    fake.clock.advance(61.0)
    assert client.get_instance(made["id"]).data.lifecycle_state == "RUNNING"
    assert [event["state"] for event in fake.instance_events].count("RESET") == 1
    tags = {"ComputeInstanceHostActions": {"CustomerReportedHostStatus": "unhealthy"}}
    details = core.UpdateInstanceDetails(defined_tags=tags)
    error = refused(client.update_instance, made["id"], details)
    assert error.status == 400 and "TagNamespace ComputeInstanceHostActions does not exists" in error.message
    oci_site.host_tag(fake)
    assert client.update_instance(made["id"], details).data.defined_tags == tags


def test_a_node_pool_in_a_compute_cluster(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    from oci.container_engine import models as oke

    client = oci.container_engine.ContainerEngineClient(config, service_endpoint=url)
    cluster = oci_site.cluster(fake)
    made = compute(config, url).create_compute_cluster(
        core.CreateComputeClusterDetails(compartment_id=GPU, availability_domain=AD)
    )
    place = oke.NodePoolPlacementConfigDetails(availability_domain=AD, subnet_id="nodes")
    details = oke.CreateNodePoolDetails(
        compartment_id=GPU,
        cluster_id=cluster["id"],
        name="rdma",
        node_shape=oci_site.H100,
        node_config_details=oke.CreateNodePoolNodeConfigDetails(
            size=2, placement_configs=[place], compute_cluster_id=made.data.id
        ),
    )
    key = client.create_node_pool(details).headers["opc-work-request-id"]
    work = client.get_work_request(key).data
    assert work.status == "IN_PROGRESS" and work.resources[0].entity_type == "nodepool"
    fake.clock.advance(600)
    assert client.get_work_request(key).data.status == "SUCCEEDED"
    pool = client.get_node_pool(work.resources[0].identifier).data
    assert [node.private_ip is not None for node in pool.nodes] == [True, True]
    assert client.list_clusters(GPU).data[0].endpoints.private_endpoint == "10.0.0.10:6443"
    assert client.list_addons(cluster["id"]).data == []
    assert "v1.34.1" in client.get_node_pool_options("all").data.kubernetes_versions


def test_identity_and_limits(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    identity = oci.identity.IdentityClient(config, service_endpoint=url)
    assert next(item.name for item in identity.list_availability_domains(fake.tenancy).data) == AD
    details = oci.identity.models.CreatePolicyDetails(
        compartment_id=fake.tenancy, name="p", description="d", statements=["Allow any-user to use x in tenancy"]
    )
    identity.create_policy(details)
    assert refused(identity.create_policy, details).status == 409
    assert identity.list_policies(fake.tenancy).data[-1].statements == details.statements
    limits = oci.limits.LimitsClient(config, service_endpoint=url)
    found = limits.get_resource_availability("compute", "h100-count", fake.tenancy, availability_domain=AD).data
    assert found.available == 64
    assert refused(limits.get_resource_availability, "compute", "h100-count", fake.tenancy).code == "InvalidParameter"
    assert refused(limits.get_resource_availability, "compute", "none", fake.tenancy).status == 404
    shapes = {item.shape: item for item in compute(config, url).list_shapes(GPU, availability_domain=AD).data}
    assert (shapes[oci_site.H100].gpus, shapes[oci_site.H100].rdma_ports) == (8, 16)


def asked(url: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=10) as answer:
        return json.load(answer)


def test_who_makes_nodes_of_instances_is_told(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    """In this process by a call, in another one by HTTP without a signature."""
    told: list[dict[str, Any]] = []
    fake.watchers.append(told.append)
    fake.durations["boot"] = 60.0
    network = cluster_network(management(config, url), 2).data
    assert asked(url, "/fake/instances") == []
    asked(url, "/fake/clock", {"advance": 600})
    states = {item.state for item in management(config, url).list_cluster_network_instances(GPU, network.id).data}
    assert states == {"Provisioning"} and told == []
    asked(url, "/fake/clock", {"advance": 60})
    events = asked(url, "/fake/instances")
    assert events == told and [item["state"] for item in events] == ["RUNNING"] * 2
    assert {item["clusterNetworkId"] for item in events} == {network.id} and events[0]["shape"] == oci_site.H100
    assert events[0]["networkBlockId"] and events[0]["privateIp"] != events[1]["privateIp"]
    management(config, url).terminate_cluster_network(network.id)
    asked(url, "/fake/clock", {"advance": 600})
    assert [item["state"] for item in asked(url, "/fake/instances?after=2")] == ["TERMINATED"] * 2


def test_a_service_of_another_file_is_mounted(fake: FakeOci, url: str, config: dict[str, Any]) -> None:
    def handler(oci: FakeOci, request: Any) -> Any:
        return [{"id": "stack"}] if request.path.endswith("/stacks") else None

    fake.register("/20180917", handler)
    client = oci.resource_manager.ResourceManagerClient(config, service_endpoint=url)
    assert [item.id for item in client.list_stacks(compartment_id=GPU).data] == ["stack"]
    assert "The fake has no GET" in refused(client.get_job, "ocid1.ormjob.oc1..a").message
