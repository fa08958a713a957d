"""Gangs on devices that a plugin offers to a real kubelet: rank tables, unhealthy devices, a deleted node."""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.cluster import ClusterError
from beds.deviceplugin import ASCEND, NVIDIA, DevicePlugin, Kind, annotations
from beds.kubelet import Bed, images, texts
from beds.operator import Space
from beds.operator.jobs import job
from beds.operator.namespace import condition, is_true
from beds.operator.wait import eventually
from resnetboost_api import names

pytestmark = [pytest.mark.slow, pytest.mark.long]

DEVICES = 16
PATIENCE_SECONDS = 60.0
STANDIN = Path(__file__).with_name("standin.py")


@pytest.fixture
def ascend(bed: Bed) -> Iterator[DevicePlugin]:
    with plugin(bed, ASCEND) as found:
        found.until_listed()
        yield found


def plugin(bed: Bed, kind: Kind, count: int = DEVICES) -> DevicePlugin:
    return DevicePlugin(bed.plugins, kind.resource, kind.devices(count), kind.give)


def offered(bed: Bed, kind: Kind = ASCEND) -> int:
    return int(bed.node()["status"]["allocatable"].get(kind.resource, "0"))


def until_offered(bed: Bed, count: int, kind: Kind = ASCEND) -> None:
    eventually(lambda: offered(bed, kind), lambda found: found == count, f"{count} devices", PATIENCE_SECONDS)


def standing_in(space: Space, ranks: int, device: str = "Ascend", **spec: Any) -> dict[str, Any]:
    """A job whose pods run standin.py in the trainer's place."""
    code = {"metadata": {"name": "standin"}, "data": {"resnetboost_trainer.py": STANDIN.read_text()}}
    space.create({"kind": "ConfigMap", **code})
    template = {
        "image": images.TRAINER.tag,
        "env": [{"name": "PYTHONPATH", "value": "/standin"}],
        "volumes": [{"name": "standin", "configMap": {"name": "standin"}}],
        "volumeMounts": [{"name": "standin", "mountPath": "/standin"}],
    }
    kind = {"type": device, "count": ranks} | ({"driverMounts": False} if device == "Ascend" else {})
    return job(ranks=ranks, device=kind, template=template, **spec)


def gang(space: Space, count: int, attempt: int = 0) -> list[dict[str, Any]]:
    """Wait until all of the attempt's pods run; returns them."""

    def run(found: list[dict[str, Any]]) -> bool:
        mine = [pod for pod in found if pod["metadata"]["labels"].get(names.LABEL_ATTEMPT) == str(attempt)]
        return len(mine) == count == len(found) and all(pod["status"]["phase"] == "Running" for pod in mine)

    return eventually(space.pods, run, f"{count} pods of attempt {attempt} run", space.patience_seconds)


def why(status: dict[str, Any]) -> str:
    """Why a gang does not train, from its condition."""
    return str(condition(status, "Running").get("message", ""))


def annotate(bed: Bed, pods: list[dict[str, Any]]) -> None:
    """Annotate the pods as the plugin does, in the given order."""
    devices = annotations.given_out(bed.plugins, ASCEND.resource)
    for pod in pods:
        annotations.write(bed.plane.client, pod, devices[pod["metadata"]["uid"]])


def told(space: Space, pods: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Output of every stand-in, by pod, as soon as all have printed it."""

    def said(pod: dict[str, Any]) -> str:
        try:
            return space.plane.kubectl("logs", pod["metadata"]["name"], f"--namespace={space.namespace}")
        except ClusterError:  # a kubelet that has just started serves no logs yet
            return ""

    def read() -> dict[str, str]:
        return {pod["metadata"]["name"]: said(pod) for pod in pods}

    logs = eventually(read, lambda found: all("sha256" in log for log in found.values()), "rank tables", 60)
    return {name: json.loads(log.splitlines()[-1]) for name, log in logs.items()}


def test_a_gang_on_ascend_gets_one_table_in_the_same_bytes_everywhere(
    bed: Bed, space: Space, ascend: DevicePlugin
) -> None:
    until_offered(bed, DEVICES)
    space.create(standing_in(space, 4))
    pods = gang(space, 4)
    status = space.until(lambda found: condition(found, "RankTableReady"), "it says what it waits for")
    assert condition(status, "RankTableReady")["reason"] == "AnnotationsMissing"
    random.Random(4).shuffle(pods)
    annotate(bed, pods[:3])
    space.until(lambda found: "1 of 4 pods" in condition(found, "RankTableReady")["message"], "one is missing")
    annotate(bed, pods[3:])
    space.until(lambda found: is_true(found, "RankTableReady"), "the rank table is ready")
    tellings = told(space, pods)

    table = space.get("configmaps", space.rank_table())["data"][names.RANK_TABLE_KEY]
    digest = hashlib.sha256(table.encode()).hexdigest()
    assert {telling["sha256"] for telling in tellings.values()} == {digest}
    assert sorted(int(telling["rank"]) for telling in tellings.values()) == [0, 1, 2, 3]
    (server,) = json.loads(table)["server_list"]
    by_rank = {device["rank_id"]: device for device in server["device"]}
    given = {uid: devices[0] for uid, devices in annotations.given_out(bed.plugins, ASCEND.resource).items()}
    for pod in pods:
        telling = tellings[pod["metadata"]["name"]]
        assert f"Ascend910-{by_rank[telling['rank']]['device_id']}" == given[pod["metadata"]["uid"]]
        assert telling["visible"] == by_rank[telling["rank"]]["device_id"]


def test_sixteen_ranks_have_their_table_soon_after_the_last_annotation(
    bed: Bed, space: Space, ascend: DevicePlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    until_offered(bed, DEVICES)
    space.create(standing_in(space, DEVICES))
    pods = gang(space, DEVICES)
    annotate(bed, pods)
    annotated = time.time()
    delays = sorted(telling["time"] - annotated for telling in told(space, pods).values())
    with capsys.disabled():
        print(f"\nrank table in {DEVICES} pods {delays[0]:.2f} to {delays[-1]:.2f} s after the last annotation")
    assert delays[-1] < 10


def test_a_gang_waits_for_a_sick_device_and_starts_when_it_is_well(
    bed: Bed, space: Space, ascend: DevicePlugin
) -> None:
    until_offered(bed, DEVICES)
    sick = ASCEND.devices(DEVICES)[13:]
    for device in sick:
        ascend.set_health(device, False)
    until_offered(bed, DEVICES - len(sick))
    space.create(standing_in(space, 14))
    status = space.until(lambda found: "Insufficient" in why(found), "it says what it waits for")
    assert ASCEND.resource in why(status)
    for device in sick:
        ascend.set_health(device, True)
    gang(space, 14)
    used = annotations.given_out(bed.plugins, ASCEND.resource)
    assert len({devices[0] for devices in used.values()}) >= 14


def test_a_drained_node_restarts_the_gang_elsewhere_without_using_the_budget(
    bed: Bed, space: Space, ascend: DevicePlugin
) -> None:
    until_offered(bed, DEVICES)
    space.create(standing_in(space, 2, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0}))
    gang(space, 2)
    space.plane.kubectl("cordon", texts.NODE)
    try:
        own = f"--pod-selector={names.LABEL_JOB}=digits"
        space.plane.kubectl("drain", texts.NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", own)
        space.until(lambda found: found.get("attempt") == 1, "another attempt")
    finally:
        space.plane.kubectl("uncordon", texts.NODE)
    gang(space, 2, attempt=1)
    status = space.status()
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)
    assert [attempt["reason"] for attempt in status["attempts"]] == ["Disrupted"]


def test_gpus_come_one_to_a_pod(bed: Bed, space: Space) -> None:
    with plugin(bed, NVIDIA, 2) as gpus:
        gpus.until_listed()
        until_offered(bed, 2, NVIDIA)
        space.create(standing_in(space, 2, "GPU"))
        gang(space, 2)
        assert sorted(gpus.allocated) == [[device] for device in NVIDIA.devices(2)]


# Last, because a restarted kubelet rejects pods for some seconds although its node offers devices.
def test_a_restart_of_kubelet_leaves_a_gang_and_its_devices_alone(bed: Bed, space: Space, ascend: DevicePlugin) -> None:
    until_offered(bed, DEVICES)
    space.create(standing_in(space, 2))
    pods = gang(space, 2)
    registered = ascend.registrations
    bed.stop_kubelet()
    bed.start_kubelet()
    eventually(lambda: ascend.registrations, lambda found: found == registered + 1, "a new registration", 60)
    annotate(bed, pods)
    space.until(lambda found: is_true(found, "RankTableReady"), "the rank table is ready")
    tellings = told(space, pods)
    assert len({telling["sha256"] for telling in tellings.values()}) == 1
    assert [pod["metadata"]["uid"] for pod in space.pods()] == [pod["metadata"]["uid"] for pod in pods]
    assert space.status().get("restarts", 0) == 0
