"""Jobs in queues of the real Kueue: its controller manager, its webhooks and the rights of its chart.

`beds.queue.Kueue` only watches here: what the operator must never do to a Workload is checked after each test.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from beds.cluster import ControlPlane, build
from beds.cluster.fixtures import CRD, build_or_skip
from beds.cluster.helm import CHART, Helm
from beds.operator import Account, Kubelet, Space
from beds.operator.jobs import CLAIM, QUEUE, job, queued
from beds.operator.namespace import JOB, condition, is_true
from beds.operator.service_account import KUEUE_RULES
from beds.operator.wait import eventually
from beds.queue import Kueue, kinds
from beds.queue.decisions import FLAVOR
from beds.queue.manager import Manager
from beds.queue.topology import HOSTNAME
from resnetboost_api import names
from resnetboost_operator.observed.pods import timestamp as instant
from support.kueuestatus import condition as workload_condition
from support.kueuestatus import holds_quota

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("operator")]

NODES = ("node-0", "node-1")
GANG = ("digits-base-0-0", "digits-base-0-1")
OUR_KIND = f"{names.KIND}.v1alpha1.resnetboost.io"
ROOM = {"resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}


@pytest.fixture(scope="module")
def control_plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A control plane of its own, because Kueue's webhooks take part in every request."""
    build_or_skip(pytestconfig, (*build.CONTROL_PLANE, *build.KUEUE))
    with ControlPlane(crds=[CRD], with_audit=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def manager(control_plane: ControlPlane) -> Manager:
    """Kueue, with one flavor."""
    manager = Manager(control_plane)
    manager.start()
    kinds.add_flavor(control_plane, FLAVOR)
    return manager


@pytest.fixture(scope="module")
def account(control_plane: ControlPlane, manager: Manager) -> Account:
    """The operator's account, as of the chart with kueue.enabled."""
    for name in NODES:
        control_plane.add_node(name)
    account = Account(control_plane)
    account.allow(KUEUE_RULES)
    return account


@pytest.fixture(scope="module")
def operator_options() -> list[str]:
    """It queues jobs."""
    return ["--kueue"]


@pytest.fixture
def kueue(control_plane: ControlPlane, space: Space, kubelet: Kubelet) -> Iterator[Kueue]:
    """What happens to the Workloads of the test's namespace, whose queue has room for two pods."""
    add_queue(control_plane, space.namespace, QUEUE, cpus=2)
    kueue = Kueue(control_plane, space.namespace)
    kueue.paused = True  # the real one does it
    with kueue:
        yield kueue
        assert kueue.broken_promises() == []


def add_queue(
    plane: ControlPlane, namespace: str, name: str, cpus: int, flavor: str = FLAVOR, stop_policy: str = "None"
) -> None:
    """Create a LocalQueue with a ClusterQueue of its own, or change them."""
    resources = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "4Gi"}]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [
            {"coveredResources": ["cpu", "memory"], "flavors": [{"name": flavor, "resources": resources}]}
        ],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    cluster_queue = f"{namespace}-{name}"
    local = {"clusterQueue": cluster_queue, "stopPolicy": stop_policy}
    kinds.apply(plane, "ClusterQueue", {"name": cluster_queue}, spec=spec)
    kinds.apply(plane, "LocalQueue", {"name": name, "namespace": namespace}, spec=local)


def roomy(name: str = "digits", **more: Any) -> dict[str, Any]:
    """A job whose pods request one CPU each."""
    return job(name, template=ROOM, **more)


def until_the_second_after(timestamp: str) -> None:
    """Kueue serves those created in the same second in any order."""
    eventually(lambda: instant(time.time()), lambda now: now > timestamp, "the next second has begun")


def until_not_admitted(space: Space, *words: str, job: str = "digits") -> dict[str, Any]:
    def is_said(status: dict[str, Any]) -> bool:
        admitted = condition(status, "Admitted")
        return admitted.get("status") == "False" and all(word in admitted["message"] for word in words)

    return space.until(is_said, f"Admitted is False: {words}", job)


def test_of_two_jobs_in_a_queue_for_one_the_second_waits(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy()))
    assert is_true(space.until_started(), "Admitted")
    space.create(queued(roomy("other")))
    status = until_not_admitted(space, "insufficient unused quota for cpu", "2 more needed", job="other")
    assert (status["phase"], "startTime" in status) == ("Queued", False)
    assert space.names_of("pods") == list(GANG)
    kubelet.succeed(*GANG)
    kueue.until_reason("digits", "Finished", "Succeeded")
    assert is_true(space.until_started(job="other"), "Admitted")
    assert kueue.counts() == {"workloads": 2, "evictions": 0, "releases": 0}


def test_pods_get_what_their_flavor_says(control_plane: ControlPlane, space: Space, kueue: Kueue) -> None:
    toleration = {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}
    kinds.add_flavor(control_plane, "spot", nodeLabels={HOSTNAME: "node-1"}, tolerations=[toleration])
    add_queue(control_plane, space.namespace, "spots", cpus=2, flavor="spot")
    space.create(queued(roomy(), "spots"))
    space.until_started()
    for pod in space.until_pods(*GANG):
        assert (pod["spec"]["nodeName"], pod["spec"]["nodeSelector"][HOSTNAME]) == ("node-1", "node-1")
        assert any(toleration.items() <= found.items() for found in pod["spec"]["tolerations"])


def test_a_job_of_higher_priority_takes_the_place_and_gives_it_back(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    kinds.add_priority_class(control_plane, "high", 1000)
    space.add_claim(CLAIM)
    space.create(queued(roomy(checkpoint={"claimName": CLAIM})))
    space.until_started()
    before = kueue.workload("digits")["metadata"]
    until_the_second_after(before["creationTimestamp"])
    space.create(queued(roomy("later")))
    until_not_admitted(space, job="later")
    space.create(queued(roomy("urgent"), priority="high"))
    space.until_started(job="urgent")
    space.until_phase("Queued")
    kubelet.succeed("urgent-base-0-0", "urgent-base-0-1")
    status = space.until_started(attempt=1)
    assert (status["restarts"], [one["reason"] for one in status["attempts"]]) == (0, ["Evicted"])
    after = kueue.workload("digits")["metadata"]
    assert (after["uid"], after["creationTimestamp"]) == (before["uid"], before["creationTimestamp"])
    assert space.status("later")["phase"] == "Queued", "the older job is first, because it kept its place"
    assert kueue.counts()["releases"] == 1


def test_a_restarted_gang_keeps_workload_and_quota(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy()))
    space.until_started()
    before = kueue.workload("digits")["metadata"]["uid"]
    kubelet.exit(GANG[1], 137)
    assert space.until_started(attempt=1)["restarts"] == 1
    after = kueue.workload("digits")
    assert (after["metadata"]["uid"], holds_quota(after)) == (before, True)
    assert kueue.counts() == {"workloads": 1, "evictions": 0, "releases": 0}


def test_a_deactivated_workload_stops_the_gang_until_it_is_active(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy()))
    space.until_started()
    kueue.activate("digits", False)
    space.until_phase("Queued")
    until_not_admitted(space, "deactivated")
    kueue.until("digits", lambda found: not holds_quota(found), "its quota is given back")
    kueue.activate("digits", True)
    space.until_started(attempt=1)
    assert kueue.counts()["releases"] == 1


def test_a_suspended_job_leaves_the_queue_to_the_next(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy()))
    space.until_started()
    space.create(queued(roomy("other")))
    until_not_admitted(space, job="other")
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    space.until_started(job="other")
    space.change("digits", runPolicy={"suspend": False})
    until_not_admitted(space, "2 more needed")


def test_a_queue_that_does_not_exist(control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy(), "nowhere"))
    assert until_not_admitted(space, "nowhere")["phase"] == "Queued"
    add_queue(control_plane, space.namespace, "nowhere", cpus=2)
    space.until_started()


def test_a_stopped_queue_lets_the_gang_save_and_go(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    space.create(queued(roomy()))
    space.until_started()
    add_queue(control_plane, space.namespace, QUEUE, cpus=2, stop_policy="HoldAndDrain")
    assert space.until_phase("Queued")["attempts"][0]["reason"] == "Evicted"
    add_queue(control_plane, space.namespace, QUEUE, cpus=2)
    assert space.until_started(attempt=1)["restarts"] == 0


def test_stages_give_back_what_the_rest_does_not_need(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    space.add_claim(CLAIM)
    add_queue(control_plane, space.namespace, QUEUE, cpus=4)
    stages = roomy(stages=("base", "fine"), ranks=4)
    stages["spec"]["stages"][1]["deviceCount"] = 2
    space.create(queued(stages))
    space.until_started()
    space.create(queued(roomy("other")))
    until_not_admitted(space, job="other")
    kubelet.succeed(*(f"digits-base-0-{index}" for index in range(4)))
    space.until_started(attempt=1)
    space.until_started(job="other")


def test_fewer_ranks_start_where_the_quota_has_no_room_for_all(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.add_claim(CLAIM)
    elastic = roomy(ranks=4, checkpoint={"claimName": CLAIM})
    elastic["spec"]["device"]["minCount"] = 2
    space.create(queued(elastic))
    space.until_started()
    assert len(space.pods()) == 2


def test_each_rank_goes_to_the_node_of_its_topology_assignment(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    for node in NODES:
        control_plane.kubectl("label", "node", node, "example.com/pool=digits", "--overwrite")
    kinds.apply(control_plane, "Topology", {"name": "by-host"}, spec={"levels": [{"nodeLabel": HOSTNAME}]})
    kinds.add_flavor(control_plane, "topology", nodeLabels={"example.com/pool": "digits"}, topologyName="by-host")
    add_queue(control_plane, space.namespace, "topological", cpus=4, flavor="topology")
    constraints = {"schedulingConstraints": {"topology": [{"key": HOSTNAME}]}}
    space.create(queued(roomy(scheduling=constraints), "topological"))
    space.until_started()
    (given,) = kueue.workload("digits")["status"]["admission"]["podSetAssignments"]
    assert given["topologyAssignment"]["levels"] == [HOSTNAME]
    assert len({pod["spec"]["nodeName"] for pod in space.pods()}) == 1
    assert all(pod["spec"]["nodeSelector"][HOSTNAME] == pod["spec"]["nodeName"] for pod in space.pods())


def test_the_end_of_a_job_is_that_of_its_workload(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(roomy(failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})))
    space.until_started()
    kubelet.exit(GANG[1], 137)
    space.until_phase("Failed")
    finished = workload_condition(kueue.until_reason("digits", "Finished", "Failed"), "Finished")
    assert finished["message"] == condition(space.status(), "Failed")["message"]


def test_a_default_queue_gates_single_pods_until_kueue_knows_the_kind(
    control_plane: ControlPlane, manager: Manager, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    kueue.allow_early_end()  # the garbage collector removes pods and Workload of the deleted job in any order
    add_queue(control_plane, space.namespace, "default", cpus=2)
    space.create(queued(roomy()))
    status = space.until(
        lambda status: condition(status, "Running").get("reason") == "GatedByKueue", "its pods are gated"
    )
    assert OUR_KIND in condition(status, "Running")["message"]
    space.delete(JOB, "digits")
    manager.stop()
    let_kueue_read_jobs(control_plane)
    manager.start([OUR_KIND])
    space.create(queued(roomy("again")))
    space.until_started(job="again")


def let_kueue_read_jobs(plane: ControlPlane) -> None:
    """As the chart with kueue.externalFramework.enabled."""
    values = ["--set=kueue.enabled=true", "--set=kueue.externalFramework.enabled=true"]
    plane.kubectl(
        "apply",
        "--filename=-",
        input=Helm.of(plane)("template", "resnetboost", CHART, "--show-only=templates/kueue.yaml", *values),
    )
