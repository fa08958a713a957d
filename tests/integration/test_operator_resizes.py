"""`kubectl scale` on a real API server: the gang saves, stops and goes on with another number of pods."""

import json

import pytest

from beds.cluster import ClusterError
from beds.operator import Kubelet, Space
from beds.operator.jobs import CLAIM, job
from beds.operator.namespace import JOB
from resnetboost_api import names

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

SCALE = "/apis/{api}/namespaces/{namespace}/resnetboostjobs/digits/scale"


def scale(space: Space, count: int) -> None:
    space.plane.kubectl("scale", "rbj/digits", f"--replicas={count}", f"--namespace={space.namespace}")


def until_ranks(space: Space, count: int, attempt: int) -> list[str]:
    """Names of the attempt's pods, once all of them run."""
    status = space.until_started(attempt=attempt)
    assert status["deviceCount"] == count
    wanted = [f"digits-base-{attempt}-{index}" for index in range(count)]
    space.until_pods(*wanted)
    return wanted


def test_scaling_ends_one_gang_and_begins_another(space: Space, kubelet: Kubelet) -> None:
    kubelet.saved_step = 40
    kubelet.tell(41)
    space.add_claim(CLAIM)
    space.create(job(ranks=4, checkpoint={"claimName": CLAIM}))
    until_ranks(space, 4, attempt=0)
    scale(space, 2)
    until_ranks(space, 2, attempt=1)
    config = space.get("configmaps", space.config_map(1))["data"][names.CONFIG_KEY]
    assert "virtualRanks: 4" in config
    scale(space, 4)
    until_ranks(space, 4, attempt=2)
    status = space.status()
    assert [(record["reason"], record["ranks"], record["checkpointStep"]) for record in status["attempts"]] == [
        ("Resized", 4, 40),
        ("Resized", 2, 40),
    ]
    assert (status["restarts"], status["virtualRanks"]) == (0, 4)
    assert "Resized" in space.event_reasons()


def test_autoscalers_see_the_numbers_and_the_pods(space: Space, kubelet: Kubelet) -> None:
    space.create(job(ranks=2))
    space.until_started()
    path = SCALE.format(api=names.API_VERSION, namespace=space.namespace)
    found = json.loads(space.plane.client.get(path))
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (2, 2)
    selected = space.plane.kubectl(
        "get", "pods", f"--namespace={space.namespace}", f"--selector={found['status']['selector']}", "--output=name"
    )
    assert selected.split() == ["pod/digits-base-0-0", "pod/digits-base-0-1"]


def test_without_a_claim_a_running_job_keeps_its_devices_and_a_suspended_one_need_not(
    space: Space, kubelet: Kubelet
) -> None:
    space.create(job(ranks=4))
    space.until_started()
    with pytest.raises(ClusterError, match="claimName"):
        scale(space, 2)
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    scale(space, 2)
    space.change("digits", runPolicy={"suspend": False})
    status = space.until(lambda status: status.get("deviceCount") == 2, "two devices")
    assert space.get(JOB, "digits")["spec"]["device"]["count"] == 2
    space.until_pods(*(f"digits-base-{status['attempt']}-{index}" for index in range(2)))


def test_a_job_goes_on_with_as_many_devices_as_there_are(space: Space, kubelet: Kubelet) -> None:
    """Its node selector leaves it a node for one pod at a time, and then for all."""
    node = f"small-{space.namespace}"
    space.plane.add_node(node, {"example.com/slot": "1"})
    kubelet.tell(10)
    space.add_claim(CLAIM)
    device = {"count": 2, "minCount": 1, "elasticAfterSeconds": 2, "resizeBackoffSeconds": 2}
    resources = {"requests": {"example.com/slot": 1}, "limits": {"example.com/slot": 1}}
    template = {"nodeSelector": {"kubernetes.io/hostname": node}, "resources": resources}
    space.create(job(device=device, checkpoint={"claimName": CLAIM}, template=template))
    space.until(lambda status: status.get("deviceCount") == 1 and status["phase"] == "Running", "one device")
    space.plane.client.send(
        "PATCH",
        f"/api/v1/nodes/{node}/status",
        {"status": {"capacity": {"example.com/slot": "2"}, "allocatable": {"example.com/slot": "2"}}},
        "application/merge-patch+json",
    )
    status = space.until(lambda status: status.get("deviceCount") == 2 and status["phase"] == "Running", "two devices")
    assert [record["ranks"] for record in status["attempts"]] == [2, 1]
    assert "placeableDevices" not in status
    space.until_pods(*(f"digits-base-{status['attempt']}-{index}" for index in range(2)))
