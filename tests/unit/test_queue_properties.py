"""A queued job against random histories of Kueue, of people and of pods. Quota and pods must always fit together."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator import status
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from support.examples import examples
from support.simulation import Cluster, Crash, job

STAGES = [
    {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8, "deviceCount": 3},
    {"name": "fine", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8, "deviceCount": 2},
]
FLAVORS = {"spot": Flavor({"example.com/kind": "spot"})}

event = st.one_of(
    st.tuples(st.just("pass"), st.none()),
    st.tuples(st.just("pass"), st.none()),
    st.tuples(st.just("pass"), st.none() | st.integers(0, 5)),
    st.tuples(st.just("admit"), st.none()),
    st.tuples(st.just("admit"), st.none()),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("kubelet"), st.none()),
    st.tuples(st.just("time"), st.integers(1, 700)),
    st.tuples(st.just("exit"), st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 1, 14, 16, 137]))),
    st.tuples(st.just("vanish"), st.integers(0, 2)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("label"), st.sampled_from(["team-a", "team-b"])),
    st.tuples(st.just("flavors"), st.booleans()),
    st.tuples(st.just("active"), st.booleans()),
    st.tuples(st.just("evict"), st.sampled_from(["Preempted", "PodsReadyTimeout", "NodeFailures"])),
    st.tuples(st.sampled_from(["finish", "remove"]), st.none()),
    st.tuples(st.sampled_from(["reserve", "refuse", "notice_inactive"]), st.none()),
)


def queued() -> Cluster:
    wanted = job(device={"type": "CPU", "count": 3}, stages=STAGES, failurePolicy={"maxRestarts": 1000})
    cluster = Cluster(replace(wanted, queue="team-a"))
    cluster.capabilities, cluster.flavors = Capabilities(kueue=True, kueue_enabled=True), FLAVORS
    return cluster


def happen(cluster: Cluster, what: str, how: Any) -> None:
    if what == "pass":
        one_pass(cluster, how)
    elif what == "run":
        cluster.run_all()
    elif what == "kubelet":
        cluster.finish_deletions()
    elif what == "time":
        cluster.now += how
    elif what == "suspend":
        policy = replace(cluster.job.spec.run_policy, suspend=how)
        cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
    elif what == "label":
        cluster.job = replace(cluster.job, queue=how)
    elif what == "flavors":
        cluster.flavors = FLAVORS if how else {}
    elif what in ("exit", "vanish"):
        happen_to_a_pod(cluster, what, how)
    else:
        happen_to_the_workload(cluster, what, how)


def happen_to_a_pod(cluster: Cluster, what: str, how: Any) -> None:
    index, code = how if what == "exit" else (how, None)
    alive = [pod for pod in cluster.gang() if pod["status"]["phase"] == "Running"]
    if str(index) not in {pod["metadata"]["labels"][names.LABEL_INDEX] for pod in alive}:
        return
    if code is None:
        cluster.vanish(index)
    else:
        cluster.exit(index, code)


def happen_to_the_workload(cluster: Cluster, what: str, how: Any) -> None:
    if what == "active":
        cluster.kueue.activate(how)
    elif what == "evict":
        cluster.kueue.evict(how)
    else:
        getattr(cluster.kueue, what)()


def one_pass(cluster: Cluster, crash_after: int | None = None) -> None:
    """A pass of the operator, which creates pods only while Kueue allows it. Releases are checked by the cluster."""
    allowed, before = cluster.kueue.allows_pods(), len(cluster.created)
    with contextlib.suppress(Crash):
        cluster.step(crash_after)
    assert allowed or len(cluster.created) == before, "pods without quota"


def check(cluster: Cluster) -> None:
    admitted = status.condition(cluster.status, "Admitted")
    if cluster.status.phase == "Queued":
        assert (cluster.status.start_time, cluster.status.attempt_creation_time) == (None, None)
        assert admitted is not None
        assert admitted.status == "False"
    assert cluster.status.restarts_count_towards_max <= cluster.status.restarts


@examples(300)
@given(st.lists(event, max_size=60))
def test_pods_have_quota_and_quota_outlives_them(events: list[tuple[str, Any]]) -> None:
    cluster = queued()
    for what, how in events:
        happen(cluster, what, how)
        check(cluster)


@examples(200)
@given(st.lists(event, max_size=40))
def test_after_every_history_the_plan_comes_to_rest(events: list[tuple[str, Any]]) -> None:
    cluster = queued()
    for what, how in events:
        happen(cluster, what, how)
    cluster.settle()
    again = cluster.plan()
    assert (again.status, again.workload, again.events) == (cluster.status, (), ())
    assert {deletion.name for deletion in again.delete} <= set(cluster.pods)


@examples(100)
@given(st.lists(event, max_size=40))
def test_from_every_history_a_friendly_queue_lets_the_job_finish(events: list[tuple[str, Any]]) -> None:
    cluster = queued()
    for what, how in events:
        happen(cluster, what, how)
    happen(cluster, "suspend", False)
    happen(cluster, "flavors", True)
    for _ in range(120):
        if cluster.kueue.condition("Finished")[1] in ("Succeeded", "Failed"):
            break
        live(cluster)
    reasons = {condition.reason for condition in cluster.status.conditions if condition.status == "True"}
    assert reasons & {"StagesComplete", "RepeatedFailure"}, cluster.status
    assert cluster.kueue.workload is None or cluster.kueue.condition("Finished")[0] == "True"


def live(cluster: Cluster) -> None:
    """A pass, and what a healthy cluster with a friendly queue does next."""
    cluster.kueue.notice_inactive()
    wake = cluster.plan().wake_seconds
    one_pass(cluster)
    cluster.finish_deletions()
    if not status.is_terminal(cluster.status):
        cluster.kueue.activate(True)
        cluster.kueue.admit()
    cluster.run_all()
    size = {stage.name: stage.device_count for stage in cluster.job.spec.stages}[cluster.status.stage]
    running = [pod for pod in cluster.gang() if pod["status"]["phase"] == "Running"]
    for pod in running if len(cluster.gang()) == size else []:
        cluster.exit(int(pod["metadata"]["labels"][names.LABEL_INDEX]), 0)
    cluster.now += wake or 0.0
