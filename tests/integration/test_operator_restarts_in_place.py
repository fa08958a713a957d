"""Restarts in place on a real API server, with launchers that the bed plays and the chart's rights."""

import itertools
import json
import threading
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, Kubelet, Operator, Space
from beds.operator.jobs import job
from beds.operator.launchers import PlayedLaunchers
from beds.operator.namespace import condition
from beds.operator.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

GANG = ("digits-base-0-0", "digits-base-0-1")


def training(space: Space, kubelet: Kubelet, **spec: Any) -> PlayedLaunchers:
    """A gang that trains, with its launchers."""
    kubelet.launches = True
    kubelet.tell(step=7, totalSteps=44)
    space.create(job(**spec))
    space.until_phase("Running")
    return kubelet.launchers["digits-base-0"]


def test_a_killed_rank_starts_again_in_its_pod_with_a_few_writes(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet
) -> None:
    launchers = training(space, kubelet)
    uids = [pod["metadata"]["uid"] for pod in space.all("pods")]
    before = writes(control_plane, space)
    launchers.end(1, 137, "Bus error")
    status = space.until(lambda found: found.get("attempt") == 1 and found["phase"] == "Running", "attempt 1 trains")
    assert (status["podsAttempt"], status["restarts"], status["restartsCountTowardsMax"]) == (0, 1, 1)
    (record,) = status["attempts"]
    assert (record["reason"], record["rank"], record["exitCode"]) == ("Killed", 1, 137)
    assert "Bus error" in record["message"]
    assert [pod["metadata"]["uid"] for pod in space.all("pods")] == uids
    assert sorted(launchers.starts)[1][:2] == (0, 1)
    made = writes(control_plane, space)[len(before) :]
    assert {found.partition(" ")[2] for found in made} <= {"resnetboostjobs", "events"}
    assert len(made) <= 10, made
    (event,) = [found for found in space.all("events") if found["reason"] == "GangRestart"]
    assert "restarts in place" in event["message"]


def writes(plane: ControlPlane, space: Space) -> list[str]:
    """The operator's writes in the namespace."""
    found = plane.requests(Account.user)
    reading = ("get", "list", "watch")
    return [
        f"{one.verb} {one.resource.partition('/')[0]}"
        for one in found
        if one.namespace == space.namespace and one.verb not in reading
    ]


def test_the_token_is_in_a_secret_of_the_job_which_its_pods_mount(space: Space, kubelet: Kubelet) -> None:
    training(space, kubelet)
    (secret,) = space.all("secrets")
    uid = space.get("resnetboostjobs", "digits")["metadata"]["uid"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == uid
    assert uid[:8] in secret["metadata"]["name"]
    assert secret["immutable"]
    volumes = {one["name"]: one for one in space.get("pods", GANG[1])["spec"]["volumes"]}
    assert volumes["launcher-token"]["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}


def test_a_lost_pod_gives_the_gang_new_pods(space: Space, kubelet: Kubelet) -> None:
    launchers = training(space, kubelet)
    space.delete("pods", GANG[1], gracePeriodSeconds=0)
    status = space.until_started(attempt=1)
    assert "podsAttempt" not in status
    assert launchers.commands == []
    space.until_pods("digits-base-1-0", "digits-base-1-1")


def test_launchers_that_do_not_obey_give_the_gang_new_pods(space: Space, kubelet: Kubelet) -> None:
    launchers = training(space, kubelet)
    launchers.obeys = False
    launchers.end(0, 139)
    status = space.until_started(attempt=2)
    assert (status["restarts"], len(status["attempts"])) == (1, 1)
    space.until_pods("digits-base-2-0", "digits-base-2-1")
    assert "NewPods" in space.event_reasons()


def test_ranks_of_an_image_without_launchers_get_new_pods(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    kubelet.exit(GANG[1], 137)
    status = space.until_started(attempt=1)
    assert "podsAttempt" not in status


def test_a_failed_job_keeps_the_pod_with_the_log(space: Space, kubelet: Kubelet) -> None:
    kubelet.launcher_patience_seconds = 2.0
    launchers = training(space, kubelet, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    launchers.end(1, 137)
    space.until_phase("Failed")
    eventually(lambda: space.names_of("pods"), lambda found: found == [GANG[1]], "only the failed rank's pod stays")
    eventually(
        lambda: space.get("pods", GANG[1])["status"]["phase"], lambda found: found == "Failed", "its container ends"
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_operator_killed_around_the_command_changes_nothing(
    operator: Operator, space: Space, kubelet: Kubelet, when: str
) -> None:
    """The next one finds the status written, and whether the leader has heard of the attempt."""
    kubelet.launcher_patience_seconds = 1e6
    launchers = training(space, kubelet)
    died = threading.Event()
    obeys = when == "after"

    def kill(command: object) -> None:
        if not died.is_set():
            operator.kill()
            died.set()
            launchers.obeys = obeys

    launchers.commanded = kill
    launchers.end(1, 137)
    assert died.wait(20)
    launchers.obeys = True
    operator.start()
    status = space.until(lambda found: found.get("attempt") == 1 and found["phase"] == "Running", "attempt 1 trains")
    assert (status["restarts"], status["podsAttempt"], len(status["attempts"])) == (1, 0, 1)
    assert [(index, attempt) for index, attempt, _ in sorted(launchers.starts)] == list(
        itertools.product((0, 1), (0, 1))
    )


def test_describe_tells_why_a_gang_got_new_pods(space: Space, kubelet: Kubelet) -> None:
    launchers = training(space, kubelet)
    launchers.disconnect()
    launchers.end(1, 137)
    space.until_started(attempt=1)
    (event,) = [found for found in space.all("events") if found["reason"] == "GangRestart"]
    assert "it gets new pods because 1/2 launchers are connected" in event["message"]
    assert condition(space.status(), "Running") and json.dumps(space.status())
