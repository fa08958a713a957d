"""The test bed's gang scheduler, without the operator: what plain pods of two gangs do, and what PodGroups change."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.cluster.gangfixtures import DeviceNodes
from beds.cluster.nodes import RESOURCE
from beds.operator.wait import eventually

pytestmark = pytest.mark.long

SIZE = 4
RACK = "example.com/rack"
ROUNDS = pytest.mark.parametrize("turn", range(3))


class Gangs:
    """Gangs of pods that ask for one device each, in one namespace; `members` of a gang are numbered from 0."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._client = plane.client
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._groups = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups"

    def add_group(self, gang: str, **spec: Any) -> None:
        """The PodGroup of a gang, which is to be whole or not at all."""
        spec["schedulingPolicy"] = {"gang": {"minCount": SIZE}}
        self._client.send("POST", self._groups, {"metadata": {"name": gang}, "spec": spec})

    def add_pod(self, gang: str, member: int, grouped: bool = True) -> None:
        """A pod of a gang; without `grouped` the scheduler knows nothing of the others."""
        container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE: "1"}}}
        spec: dict[str, Any] = {"containers": [container]}
        if grouped:
            spec["schedulingGroup"] = {"podGroupName": gang}
        metadata = {"name": f"{gang}-{member}", "labels": {"gang": gang}}
        self._client.send("POST", self._pods, {"metadata": metadata, "spec": spec})

    def add_in_turn(self, gangs: Iterable[str], grouped: bool = True) -> None:
        """All pods of several gangs, as they come when all gangs are created at the same time."""
        gangs = list(gangs)
        for member in range(SIZE):
            for gang in gangs:
                self.add_pod(gang, member, grouped)

    def remove(self, gang: str) -> None:
        """Delete all pods of a gang."""
        self._client.send("DELETE", f"{self._pods}?labelSelector=gang%3D{gang}", {})

    def pods(self, gang: str) -> list[dict[str, Any]]:
        """The pods of a gang."""
        found: list[dict[str, Any]] = self._get(f"{self._pods}?labelSelector=gang%3D{gang}")["items"]
        return found

    def nodes(self, gang: str) -> list[str]:
        """Where the pods of a gang are that have a place."""
        return [pod["spec"]["nodeName"] for pod in self.pods(gang) if "nodeName" in pod["spec"]]

    def verdicts(self, *gangs: str) -> list[str]:
        """What the scheduler says of each pod: True if it has a place, False if there is none, empty if not yet."""
        return [condition(pod, "PodScheduled").get("status", "") for gang in gangs for pod in self.pods(gang)]

    def verdict(self, gang: str) -> dict[str, Any]:
        """What the scheduler says of the whole gang: its condition PodGroupScheduled, empty if there is none yet."""
        return condition(self._get(f"{self._groups}/{gang}"), "PodGroupScheduled")

    def until_placed(self, gang: str) -> list[str]:
        """The nodes of a gang as soon as all its pods run."""
        what = f"all pods of {gang} run"
        eventually(
            lambda: [pod.get("status", {}).get("phase") for pod in self.pods(gang)],
            lambda phases: phases == ["Running"] * SIZE,
            what,
        )
        return self.nodes(gang)

    def until_refused(self, gang: str) -> dict[str, Any]:
        """The condition of a gang as soon as there is no place for it."""
        return eventually(
            lambda: self.verdict(gang), lambda verdict: verdict.get("status") == "False", f"no place for {gang}"
        )

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._client.get(path))
        return found


def condition(item: dict[str, Any], kind: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = item.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


@pytest.fixture
def gangs(gang_cluster: ControlPlane, gang_namespace: str) -> Gangs:
    return Gangs(gang_cluster, gang_namespace)


def test_the_gang_cluster_says_which_kubernetes_it_is(gang_cluster: ControlPlane) -> None:
    version = json.loads(gang_cluster.client.get("/version"))
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].startswith("v1.36.")


@ROUNDS
def test_plain_pods_of_two_gangs_take_half_of_the_devices_each(
    gangs: Gangs, device_nodes: DeviceNodes, turn: int
) -> None:
    device_nodes.add(6)
    gangs.add_in_turn("ab", grouped=False)
    eventually(lambda: gangs.verdicts("a", "b"), all, "the scheduler has seen all pods")
    assert (len(gangs.nodes("a")), len(gangs.nodes("b"))) == (3, 3)


@ROUNDS
def test_of_two_pod_groups_one_is_placed_whole_and_the_other_follows_it(
    gangs: Gangs, device_nodes: DeviceNodes, turn: int
) -> None:
    device_nodes.add(6)
    for gang in "ab":
        gangs.add_group(gang)
    gangs.add_in_turn("ab")
    eventually(lambda: [len(gangs.nodes(gang)) for gang in "ab"], any, "a gang has a place")
    first, second = sorted("ab", key=lambda gang: len(gangs.nodes(gang)), reverse=True)
    assert len(set(gangs.until_placed(first))) == SIZE
    assert gangs.until_refused(second)["reason"] == "Unschedulable"
    assert gangs.nodes(second) == []
    gangs.remove(first)
    assert len(set(gangs.until_placed(second))) == SIZE


def test_no_pod_of_a_group_is_placed_before_all_are_there(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(6)
    gangs.add_group("a")
    for member in range(SIZE - 1):
        gangs.add_pod("a", member)
    # A pod that comes later and has a place shows that the scheduler went past those.
    gangs.add_pod("later", 0, grouped=False)
    eventually(lambda: gangs.nodes("later"), bool, "the later pod has a place")
    assert gangs.nodes("a") == []
    gangs.add_pod("a", SIZE - 1)
    gangs.until_placed("a")


def test_a_group_is_placed_within_the_only_rack_that_has_room_for_all(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(2, labels={RACK: "small"})
    large = device_nodes.add(4, labels={RACK: "large"})
    gangs.add_group("a", schedulingConstraints={"topology": [{"key": RACK}]})
    gangs.add_in_turn("a")
    assert sorted(gangs.until_placed("a")) == sorted(large)
