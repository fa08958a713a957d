"""Why a job does not run, as a condition; it starts once the cause is gone; on a real API server."""

import contextlib
from typing import Any

import pytest

from beds.cluster import ClusterError
from beds.operator import Kubelet, Space
from beds.operator.jobs import job
from beds.operator.namespace import JOB, condition
from beds.operator.wait import eventually, throughout
from resnetboost_api import names

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

GANG = ("digits-base-0-0", "digits-base-0-1")


def until_said(space: Space, reason: str, *words: str) -> None:
    def is_said(status: dict[str, Any]) -> bool:
        running = condition(status, "Running")
        return running.get("reason") == reason and all(word in running["message"] for word in words)

    space.until(is_said, f"the condition says {reason}: {words}")


def test_a_device_that_no_node_has(space: Space, kubelet: Kubelet) -> None:
    space.create(job(template={"resources": {"limits": {"huawei.com/Ascend910": 1}}}))
    until_said(space, "Unschedulable", "0/2 ranks are scheduled", "Insufficient huawei.com/Ascend910")
    space.plane.add_node(space.namespace, {"huawei.com/Ascend910": "8"})
    space.until_started()
    space.plane.client.send("DELETE", f"/api/v1/nodes/{space.namespace}")


def test_a_quota(space: Space, kubelet: Kubelet) -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    space.create(quota)
    space.create(job())
    until_said(space, "PodsRefused", "1/2 pods exist", "exceeded quota: small")
    eventually(space.event_reasons, lambda told: "PodsRefused" in told, "a Warning event says so")
    space.delete("resourcequotas", "small")
    status = space.until_started()
    assert status["restarts"] == 0
    assert len(kubelet.seen) == 2
    assert space.event_reasons().count("PodsRefused") == 1


def test_a_pod_that_the_api_server_calls_invalid_fails_the_job_in_its_words(space: Space) -> None:
    """The schema accepts it: only the API server knows that devices cannot be overcommitted."""
    resources = {"requests": {"example.com/device": 1}, "limits": {"example.com/device": 2}}
    space.create(job(template={"resources": resources}))
    status = space.until_phase("Failed")
    failed = condition(status, "Failed")
    assert failed["reason"] == "InvalidPod"
    assert "must be equal to example.com/device limit" in failed["message"]
    assert space.names_of("pods") == []


def foreign_service(space: Space) -> None:
    space.create({"kind": "Service", "metadata": {"name": "digits-base-0"}, "spec": {"clusterIP": "None"}})


def foreign_pod(space: Space) -> None:
    container = {"name": "c", "image": "i"}
    space.create({"kind": "Pod", "metadata": {"name": GANG[1]}, "spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("put_in_the_way", "plural", "name"),
    [(foreign_service, "services", "digits-base-0"), (foreign_pod, "pods", GANG[1])],
    ids=["service", "pod"],
)
def test_a_foreign_object_of_our_name(
    space: Space, kubelet: Kubelet, put_in_the_way: Any, plural: str, name: str
) -> None:
    put_in_the_way(space)
    theirs = space.get(plural, name)["metadata"]["uid"]
    space.create(job())
    until_said(space, "PodsRefused", name, "delete it, or rename the job")
    assert space.get(plural, name)["metadata"]["uid"] == theirs, "what is not ours is left alone"
    space.delete(plural, name)
    space.until_started()


def test_pods_that_only_look_like_ours_are_ignored(space: Space, kubelet: Kubelet) -> None:
    created = space.create(job())
    space.until_started()
    space.create(lookalike(created["metadata"]["uid"], "lookalike"))
    stranger = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "x", "uid": "0000", "controller": True}
    owned = lookalike("0000", "owned")
    owned["metadata"]["ownerReferences"] = [stranger]
    space.create(owned)
    kubelet.exit("lookalike", 10, report={"class": "ConfigError"})
    throughout(space.status, lambda status: status["restarts"] == 0, "nobody takes it for a rank", seconds=2)
    for pod in GANG:
        kubelet.exit(pod, 0)
    space.until_phase("Complete")
    assert "lookalike" in space.names_of("pods")


def test_pods_of_another_namespace_are_ignored(space: Space, kubelet: Kubelet) -> None:
    created = space.create(job())
    space.until_started()
    pod = owned_by(created, lookalike(created["metadata"]["uid"], "abroad"))
    path = "/api/v1/namespaces/default/pods"
    space.plane.client.send("POST", path, pod)
    throughout(space.status, lambda status: status["restarts"] == 0, "nobody takes it for a rank", seconds=2)
    assert space.status()["ranks"]["desired"] == 2
    with contextlib.suppress(ClusterError):  # the garbage collector was faster: owners must be in the same namespace
        space.plane.client.send("DELETE", f"{path}/abroad", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize(
    ("label", "value"),
    [
        (names.LABEL_INDEX, "99"),
        (names.LABEL_INDEX, "0"),
        (names.LABEL_INDEX, "x"),
        (names.LABEL_ATTEMPT, "7"),
        (names.LABEL_ATTEMPT, "x"),
        (names.LABEL_STAGE, "none"),
    ],
)
def test_a_pod_that_claims_to_be_a_rank_the_job_has_not(space: Space, kubelet: Kubelet, label: str, value: str) -> None:
    created = space.create(job(ranks=1))
    space.until_started()
    pod = owned_by(created, lookalike(created["metadata"]["uid"], "forged"))
    pod["metadata"]["labels"][label] = value
    space.create(pod)
    throughout(space.status, lambda status: status["phase"] == "Starting", "it is no rank", seconds=1)
    if "forged" in space.names_of("pods"):
        kubelet.exit("forged", 0)
        throughout(space.status, lambda status: status["phase"] == "Starting", "it is no rank", seconds=1)
    kubelet.exit(GANG[0], 0)
    status = space.until_phase("Complete")
    assert (status["restarts"], status["ranks"]["succeeded"]) == (0, "0")


def owned_by(job: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """A pod with a forged owner reference."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "controller": True}
    pod["metadata"]["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
    return pod


def test_two_jobs_whose_pods_would_have_the_same_names(space: Space, kubelet: Kubelet) -> None:
    space.create(job("a", stages=("b-c",)))
    space.until_started(job="a")
    space.create(job("a-b", stages=("c",)))
    words = "Service a-b-c-0 exists and is not this job's"
    space.until(lambda status: words in condition(status, "Running").get("message", ""), words, job="a-b")
    space.delete(JOB, "a", propagationPolicy="Background")
    space.until_started(job="a-b")


def lookalike(uid: str, name: str) -> dict[str, Any]:
    """A foreign pod with all labels of rank 0."""
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: "digits",
        names.LABEL_JOB_UID: uid,
        names.LABEL_STAGE: "base",
        names.LABEL_ATTEMPT: "0",
        names.LABEL_INDEX: "0",
    }
    container = {"name": names.CONTAINER, "image": "i"}
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}
