"""User actions on an existing job: suspend, edit, delete, apply again; on a real API server."""

from pathlib import Path

import pytest

from beds.cluster import ClusterError, ControlPlane
from beds.operator import Kubelet, Operator, Space
from beds.operator.jobs import CLAIM, job
from beds.operator.namespace import JOB, condition, is_true
from beds.operator.wait import eventually, throughout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
GANG = ("digits-base-0-0", "digits-base-0-1")
NEXT_GANG = ("digits-base-1-0", "digits-base-1-1")


def uids(space: Space) -> set[str]:
    return {pod["metadata"]["uid"] for pod in space.pods()}


def graces_of(space: Space) -> list[int | None]:
    """The grace period of each pod; None while it is not being deleted."""
    return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in space.pods()]


def test_suspend_gives_the_ranks_their_grace_and_records_the_checkpoint(space: Space, kubelet: Kubelet) -> None:
    kubelet.ends, kubelet.saved_step = False, 33
    space.add_claim(CLAIM)
    space.create(job(checkpoint={"claimName": CLAIM}))
    space.until_started()
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspending")
    graces = eventually(lambda: graces_of(space), all, "pods that are being deleted")  # after the phase is written
    assert graces == [60, 60]
    assert not is_true(space.status(), "Suspended")
    kubelet.release()
    status = space.until_phase("Suspended")
    (record,) = status["attempts"]
    assert (record["reason"], record["checkpointStep"], status["restarts"]) == ("Suspended", 33, 0)
    assert "step 33" in condition(status, "Suspended")["message"]
    assert space.names_of("pods") == []


def test_a_resumed_job_goes_on_with_a_new_attempt(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    space.change("digits", runPolicy={"suspend": False})
    status = space.until_started(attempt=1)
    assert condition(status, "Suspended")["status"] == "False"
    assert (status["restarts"], space.names_of("pods")) == (0, list(NEXT_GANG))


def test_applying_an_example_again_changes_nothing(space: Space, control_plane: ControlPlane) -> None:
    """kubectl prints `configured` all the same, because it compares lists as a whole, and stages have defaults."""
    where = (f"--namespace={space.namespace}", f"--filename={EXAMPLE}")
    control_plane.kubectl("apply", *where)
    space.until_pods(*GANG)
    before = space.get(JOB, "digits")["metadata"]["generation"]
    control_plane.kubectl("apply", *where)
    assert space.get(JOB, "digits")["metadata"]["generation"] == before
    assert control_plane.kubectl("diff", *where) == ""
    assert space.status()["restarts"] == 0


def test_a_job_created_suspended_creates_nothing(space: Space, kubelet: Kubelet) -> None:
    space.create(job(runPolicy={"suspend": True}))
    space.until_phase("Suspended")
    assert space.names_of("pods") == space.names_of("configmaps") == []
    space.change("digits", runPolicy={"suspend": False})
    space.until_started(attempt=space.status()["attempt"])


def test_where_a_job_may_run_can_change_while_it_is_suspended(space: Space, kubelet: Kubelet) -> None:
    space.create(job(runPolicy={"suspend": True}))
    space.until_phase("Suspended")
    space.change("digits", template={"nodeSelector": {"kubernetes.io/hostname": "node-1"}})
    space.change("digits", runPolicy={"suspend": False})
    space.until_started(attempt=space.status()["attempt"])
    assert {pod["spec"]["nodeName"] for pod in space.pods()} == {"node-1"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": {"count": 4}}, "without checkpoint.claimName or url the training would begin again"),
        ({"device": {"type": "GPU"}}, "of device only count, minCount, elasticAfterSeconds and resizeBackoffSeconds"),
        (
            {"failurePolicy": {"backoffSeconds": 9}},
            "of failurePolicy only maxRestarts, rules, nodeExclusion and straggler can change",
        ),
        ({"template": {"image": "other"}}, "of template only nodeSelector and tolerations can change"),
        ({"template": {"nodeSelector": {"a": "b"}}}, "only while the job is suspended"),
    ],
    ids=["device-count", "device-type", "back-off", "image", "node-selector-while-it-runs"],
)
def test_an_immutable_field_is_refused_with_the_reason(
    space: Space, kubelet: Kubelet, change: dict[str, object], words: str
) -> None:
    space.create(job())
    with pytest.raises(ClusterError, match=words):
        space.change("digits", **change)


def test_a_budget_that_is_raised_counts_for_the_next_failure(space: Space, kubelet: Kubelet) -> None:
    space.create(job(failurePolicy={"maxRestarts": 0, "backoffSeconds": 0}))
    space.until_started()
    space.change("digits", failurePolicy={"maxRestarts": 1})
    kubelet.exit(GANG[0], 137)
    assert space.until_started(attempt=1)["restarts"] == 1


def test_a_deadline_that_is_set_later_counts(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    space.change("digits", runPolicy={"activeDeadlineSeconds": 1})
    assert condition(space.until_phase("Failed"), "Failed")["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize(("policy", "left"), [("Running", GANG[:1]), ("All", ()), ("None", GANG)], ids=str)
def test_clean_pod_policy_says_what_a_failed_job_leaves(
    space: Space, kubelet: Kubelet, policy: str, left: tuple[str, ...]
) -> None:
    space.create(job(runPolicy={"cleanPodPolicy": policy}))
    space.until_started()
    kubelet.exit(GANG[0], 10)
    space.until_phase("Failed")
    space.until_pods(*left)
    throughout(lambda: space.names_of("pods"), lambda found: found == list(left), "no other pod goes", seconds=1)


def test_a_finished_job_goes_with_all_it_owns_when_its_time_is_over(space: Space, kubelet: Kubelet) -> None:
    space.create(job(runPolicy={"ttlSecondsAfterFinished": 2}))
    space.until_started()
    for pod in GANG:
        kubelet.exit(pod, 0)
    space.until_phase("Complete")
    space.until_gone(JOB, "digits")
    everything_is_gone(space)


def everything_is_gone(space: Space) -> None:
    for plural in ("pods", "configmaps", "services"):
        space.until_names(plural)


def test_a_deleted_job_leaves_nothing(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    space.delete(JOB, "digits", propagationPolicy="Background")
    space.until_gone(JOB, "digits")
    everything_is_gone(space)
    assert set(kubelet.seen.values()) == set(GANG), "no other pod ever came"


def test_a_deleted_namespace_goes_with_its_jobs(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    client, path = space.plane.client, f"/api/v1/namespaces/{space.namespace}"
    client.send("DELETE", path)
    eventually(lambda: client.answers(path), lambda there: not there, "the namespace goes")
    client.send("POST", "/api/v1/namespaces", {"metadata": {"name": space.namespace}})  # for the fixture to delete
    assert set(kubelet.seen.values()) == set(GANG), "no other pod ever came"


def test_a_foreground_deletion_is_not_undone(space: Space, kubelet: Kubelet) -> None:
    kubelet.ends = False
    space.create(job())
    space.until_started()
    space.delete(JOB, "digits", propagationPolicy="Foreground")

    def all_stop() -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in space.pods())

    eventually(all_stop, bool, "the garbage collector deletes the pods")
    first = uids(space)
    kubelet.release()
    space.until_gone(JOB, "digits")
    everything_is_gone(space)
    assert set(kubelet.seen) == first, "no other pod ever came"


def test_a_job_applied_again_while_its_old_pods_still_stop(space: Space, kubelet: Kubelet) -> None:
    kubelet.ends = False
    space.create(job())
    space.until_started()
    old = uids(space)
    space.delete(JOB, "digits", propagationPolicy="Background")
    space.until_gone(JOB, "digits")
    space.create(job())
    space.until_phase("Starting")
    assert uids(space) == old, "the names are taken until the old pods are gone"
    kubelet.release()
    status = space.until_started()
    assert uids(space).isdisjoint(old)
    assert (status["restarts"], status.get("attempts", [])) == (0, [])
    for pod in GANG:
        kubelet.exit(pod, 0)
    space.until_phase("Complete")


def test_a_job_deleted_while_the_operator_is_down_leaves_nothing(
    space: Space, kubelet: Kubelet, operator: Operator
) -> None:
    space.create(job())
    space.until_started()
    operator.kill()
    space.delete(JOB, "digits", propagationPolicy="Background")
    everything_is_gone(space)
    operator.start()
    space.create(job("other", ranks=1))
    space.until_started(job="other")
    assert space.names_of("pods") == ["other-base-0-0"]


def test_a_job_replaced_while_the_operator_is_down_starts_anew(
    space: Space, kubelet: Kubelet, operator: Operator
) -> None:
    space.create(job())
    space.until_started()
    operator.kill()
    space.delete(JOB, "digits", propagationPolicy="Background")
    everything_is_gone(space)
    space.create(job(ranks=1))
    operator.start()
    status = space.until_started()
    assert (status["restarts"], space.names_of("pods")) == (0, [GANG[0]])


def test_a_job_that_fails_while_the_operator_is_down_is_restarted_once(
    space: Space, kubelet: Kubelet, operator: Operator
) -> None:
    space.create(job())
    space.until_started()
    operator.kill()
    kubelet.exit(GANG[1], 137)
    operator.start()
    status = space.until_started(attempt=1)
    assert [record["rank"] for record in status["attempts"]] == [1]
    assert len(kubelet.seen) == 4
