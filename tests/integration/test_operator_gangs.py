"""A job's life without failures, from creation through a gang of pods to completion, on a real API server."""

import re
import time

import pytest

from beds.cluster import ControlPlane
from beds.operator import Kubelet, Operator, Space
from beds.operator.jobs import CLAIM, job
from beds.operator.namespace import JOB, condition, is_true
from beds.operator.wait import eventually
from resnetboost_api import __version__, names

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

GANG = ("digits-base-0-0", "digits-base-0-1")


def finish(kubelet: Kubelet, *pods: str) -> None:
    for pod in pods:
        kubelet.exit(pod, 0, report={"class": "Succeeded", "step": 44, "top1": 0.97} if pod.endswith("-0") else None)


def test_a_job_becomes_pods_with_a_config_map_and_a_service(space: Space, kubelet: Kubelet) -> None:
    created = space.create(job())
    space.until_started()
    pods = space.until_pods(*GANG)
    assert [pod["metadata"]["labels"][names.LABEL_INDEX] for pod in pods] == ["0", "1"]
    assert space.names_of("configmaps") == [space.config_map()]
    assert space.get("configmaps", space.config_map())["immutable"] is True
    assert space.names_of("services") == ["digits-base-0"]
    owned = [*pods, space.get("configmaps", space.config_map()), space.get("services", "digits-base-0")]
    for found in owned:
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (created["metadata"]["uid"], True)


def test_the_service_is_headless_and_selects_the_coordinator_alone(space: Space, kubelet: Kubelet) -> None:
    space.create(job(ranks=3))
    space.until_started()
    service = space.get("services", "digits-base-0")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    chosen = [pod["metadata"]["name"] for pod in space.pods() if service["selector"].items() <= labels(pod).items()]
    assert chosen == ["digits-base-0-0"]


def labels(pod: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    return pod["metadata"]["labels"]


def test_what_a_user_leaves_out_has_the_api_servers_defaults(space: Space, kubelet: Kubelet) -> None:
    manifest = job()
    del manifest["spec"]["failurePolicy"]
    created = space.create(manifest)
    assert created["spec"]["failurePolicy"]["maxRestarts"] == 5
    space.until_started()
    pod = space.get("pods", GANG[0])
    assert "image" not in created["spec"]["template"], "what depends on the device type the operator fills in"
    assert pod["spec"]["containers"][0]["image"] == f"resnetboost/trainer-cpu:{__version__}"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_ranks_that_share_a_node_are_neighbours(space: Space, kubelet: Kubelet) -> None:
    space.create(job(ranks=4, device={"type": "CPU", "count": 4, "perNode": 2}))
    space.until_started()
    first, second, third, fourth = (pod["spec"]["nodeName"] for pod in space.pods())
    assert (first, third) == (second, fourth)
    assert first != third


def test_pods_satisfy_the_restricted_pod_security_standard(space: Space, kubelet: Kubelet) -> None:
    path = f"/api/v1/namespaces/{space.namespace}"
    strict = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    space.plane.client.send("PATCH", path, strict, "application/merge-patch+json")
    space.create(job())
    space.until_started()


def test_a_job_runs_to_its_end(space: Space, kubelet: Kubelet, control_plane: ControlPlane) -> None:
    kubelet.tell(step=7, loss=1.5)
    space.create(job())
    running = space.until_phase("Running")
    assert (running["progress"]["step"], running["progress"]["loss"]) == (7, 1.5)
    assert (running["ranks"]["running"], running["ranks"]["desired"]) == (2, 2)
    finish(kubelet, *GANG)
    control_plane.kubectl(
        "wait", "--for=condition=Complete", "--timeout=30s", f"--namespace={space.namespace}", "rbj/digits"
    )
    status = space.status()
    assert (status["phase"], status["ranks"]["succeeded"], status["restarts"]) == ("Complete", "0-1", 0)
    assert status["stages"] == [{"name": "base", "state": "Complete", "attempts": 1, "top1": 0.97}]
    assert {"GangStarting", "Complete"} <= set(space.event_reasons())
    assert space.names_of("pods") == list(GANG), "finished pods stay, for their logs"


def test_kubectl_shows_how_far_a_job_is(space: Space, kubelet: Kubelet, control_plane: ControlPlane) -> None:
    kubelet.tell(step=7, loss=1.5, accuracy=0.5, top1=0.625)
    space.create(job())
    space.until_phase("Running")
    head, row = control_plane.kubectl("get", "rbj", f"--namespace={space.namespace}").splitlines()
    assert head.split() == ["NAME", "PHASE", "STAGE", "STEP", "LOSS", "ACCURACY", "TOP1", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["digits", "Running", "base", "7", "1.5", "0.5", "0.625", "0"]
    described = control_plane.kubectl("describe", "rbj", "digits", f"--namespace={space.namespace}")
    assert "GangStarting" in described


def test_stages_run_one_after_another(space: Space, kubelet: Kubelet) -> None:
    space.add_claim(CLAIM)
    space.create(job(stages=("base", "fine")))
    space.until_started()
    finish(kubelet, *GANG)
    second = ("digits-fine-1-0", "digits-fine-1-1")
    space.until_started(attempt=1)
    assert [stage["state"] for stage in space.status()["stages"]] == ["Complete", "Running"]
    assert space.names_of("configmaps") == [space.config_map(1, stage="fine")], (
        "what the first stage's pods referred to is gone"
    )
    assert space.names_of("pods") == sorted(GANG + second)
    finish(kubelet, *second)
    space.until_phase("Complete")


def test_complete_is_final(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    space.create(job())
    space.until_started()
    finish(kubelet, *GANG)
    before = space.until_phase("Complete")
    for pod in GANG:
        space.delete("pods", pod)
    space.until_pods()
    operator.kill()
    operator.start()
    another_job_runs(space)
    assert (space.status(), space.names_of("pods")) == (before, ["other-base-0-0"])


def another_job_runs(space: Space) -> None:
    """Run another job, which proves that the operator has processed all earlier events."""
    space.create(job("other", ranks=1))
    space.until_started(job="other")


def test_a_rank_that_is_done_is_not_run_again(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    space.until_started()
    finish(kubelet, GANG[1])
    space.until(lambda status: status["ranks"]["succeeded"] == "1", "rank 1 is done")
    space.delete("pods", GANG[1])
    space.until_gone("pods", GANG[1])
    finish(kubelet, GANG[0])
    status = space.until_phase("Complete")
    assert (status["restarts"], space.names_of("pods")) == (0, [GANG[0]])


def test_fifty_jobs_at_once(space: Space, kubelet: Kubelet) -> None:
    kubelet.succeeds = True
    jobs = [f"job-{number}" for number in range(50)]
    for name in jobs:
        space.create(job(name))

    def phases() -> dict[str, int]:
        found = [item.get("status", {}).get("phase", "") for item in space.all(JOB)]
        return {phase: found.count(phase) for phase in set(found)}

    eventually(phases, lambda counts: counts == {"Complete": 50}, "all jobs are complete", seconds=120)
    assert len(kubelet.seen) == 100, "two pods for each job, none twice"


def test_progress_is_asked_for_only_while_the_gang_runs(space: Space, kubelet: Kubelet) -> None:
    kubelet.tell(step=3)
    space.create(job())
    space.until_phase("Running")
    kubelet.exit(GANG[1], 0)
    kubelet.exit(GANG[0], 0)
    space.until_phase("Complete")
    asked = len(kubelet.asked(GANG[0]))
    time.sleep(4)  # rank 0 is polled every three seconds while it starts
    assert len(kubelet.asked(GANG[0])) == asked


def test_progress_is_written_at_most_every_15_seconds(
    space: Space, kubelet: Kubelet, control_plane: ControlPlane
) -> None:
    kubelet.tell(step=1)
    space.create(job())
    space.until_phase("Running")
    before, begun = status_writes(control_plane, space), time.monotonic()
    while time.monotonic() < begun + 20:  # rank 0's answers change all the time
        kubelet.tell(step=1 + int(100 * (time.monotonic() - begun)))
        time.sleep(0.1)
    assert 1 <= status_writes(control_plane, space) - before <= 2


def status_writes(plane: ControlPlane, space: Space) -> int:
    requests = plane.requests()
    return sum((found.resource, found.namespace) == (f"{JOB}/status", space.namespace) for found in requests)


NONSENSE = {
    "nothing": b"",
    "no-json": b"not JSON",
    "negative": b'{"step": -1}',
    "infinite": b'{"state": "Training", "stage": "base", "attempt": 0, "step": 1e999}',
    "huge": b'{"state": "' + b"x" * 20_000_000 + b'"}',
    "nested": b"[" * 100_000,
    "unknown-state": b'{"state": "Hacked", "stage": "base", "attempt": 0, "step": 5, "heartbeat": 5}',
    "above-64-bits": b'{"state": "Training", "stage": "base", "attempt": 0, "step": 99999999999999999999}',
    "another-attempt": b'{"state": "Training", "stage": "base", "attempt": 9, "step": 5, "heartbeat": 5}',
}


def test_malformed_progress_is_harmless(space: Space, kubelet: Kubelet) -> None:
    kubelet.told_of.update(NONSENSE)
    for name in NONSENSE:
        space.create(job(name, ranks=1))
    pods = [f"{name}-base-0-0" for name in NONSENSE]
    eventually(lambda: [pod for pod in pods if not kubelet.asked(pod)], lambda found: not found, "each was asked")
    for name in NONSENSE:
        space.until_started(job=name)
        kubelet.exit(f"{name}-base-0-0", 0)
        assert is_true(space.until_phase("Complete", job=name), "Complete")


def test_metrics_count_jobs_and_forget_those_that_are_gone(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    space.create(job("measured", ranks=1))
    space.until_started(job="measured")
    kubelet.exit("measured-base-0-0", 0)
    space.until_phase("Complete", job="measured")
    eventually(lambda: phase_gauge(operator, "Complete"), lambda jobs: jobs >= 1, "a complete job is counted")
    text = operator.answer("/metrics")
    for metric in ("reconcile_seconds", "queue_depth", "queue_wait_seconds", "api_requests_total"):
        assert f"resnetboost_operator_{metric}" in text
    series = f'resnetboost_job_phase{{job_name="measured",job_namespace="{space.namespace}",phase="Complete"}} 1.0'
    assert series in text.splitlines()
    space.delete(JOB, "measured")
    space.until_gone(JOB, "measured")
    eventually(lambda: operator.answer("/metrics"), lambda told: "measured" not in told, "no series outlives its job")


def phase_gauge(operator: Operator, phase: str) -> float:
    found = re.search(rf'^resnetboost_operator_jobs{{phase="{phase}"}} (\S+)$', operator.answer("/metrics"), re.M)
    return float(found[1]) if found else 0.0


def test_values_of_a_users_environment_stay_out_of_the_log(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    space.create(job(template={"env": [{"name": "API_KEY", "value": "hunter2-hunter2"}]}))
    space.until_started()
    kubelet.exit(GANG[1], 10, report={"class": "ConfigError", "message": "no"})
    space.until_phase("Failed")
    assert f"{space.namespace}/digits" in operator.log()
    assert "hunter2" not in operator.log()


def test_the_status_has_the_observed_generation(space: Space, kubelet: Kubelet) -> None:
    space.create(job())
    assert space.until_started()["observedGeneration"] == 1
    space.change("digits", failurePolicy={"maxRestarts": 7})
    status = space.until(lambda status: status["observedGeneration"] == 2, "generation 2 is seen")
    assert condition(status, "Failed") == {}
