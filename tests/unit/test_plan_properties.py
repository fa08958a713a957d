"""Invariants of the plan over random histories: failures, crashes between writes, lost pods, elapsed time."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator import status
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import timestamp
from support.examples import examples
from support.simulation import Cluster, Crash, job

STAGES = [
    {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8},
    {"name": "fine", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8},
]
MAX_RESTARTS = 2
# Ranks of the two stages: the same number in both, fewer in the second, more in the second.
SIZES = st.sampled_from([(3, 3), (3, 1), (1, 3), (2, 3), (3, 2)])

cluster_event = st.one_of(
    # Three passes for each other event: a history without passes tests nothing.
    st.tuples(st.just("pass"), st.none()),
    st.tuples(st.just("pass"), st.none()),
    st.tuples(st.just("pass"), st.none() | st.integers(0, 5)),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("kubelet"), st.none()),
    st.tuples(st.just("time"), st.integers(1, 700)),
    st.tuples(st.just("train"), st.integers(1, 50)),
    st.tuples(st.just("exit"), st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 1, 13, 14, 16, 137]))),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1, 14, 16, 137, 143]))),
    st.tuples(st.just("vanish"), st.integers(0, 2)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("node"), st.tuples(st.integers(0, 2), st.booleans())),
    st.tuples(st.just("hear"), st.booleans()),
    st.tuples(st.just("unreachable"), st.booleans()),
    st.tuples(st.just("evict"), st.integers(0, 2)),
)


EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def happen(cluster: Cluster, what: str, how: object) -> None:
    if what == "pass":
        with contextlib.suppress(Crash):
            cluster.step(crash_after=how)  # type: ignore[arg-type]
    elif what == "run":
        cluster.run_all()
    elif what == "kubelet":
        cluster.finish_deletions()
    elif what == "time":
        cluster.now += how  # type: ignore[operator]
    elif what == "unreachable":
        cluster.unreachable = bool(how)
    elif what == "suspend":
        suspend(cluster, bool(how))
    elif what == "train":
        cluster.train_to(how)  # type: ignore[arg-type]
    elif what == "node":
        node(cluster, *how)  # type: ignore[misc]
    else:
        happen_to_a_pod(cluster, what, how)


def suspend(cluster: Cluster, value: bool) -> None:
    policy = replace(cluster.job.spec.run_policy, suspend=value)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))


def node(cluster: Cluster, index: int, ready: bool) -> None:
    name = f"node-{index}"
    cluster.nodes[name] = NodeView(name, ready, silent_since=cluster.now)


def happen_to_a_pod(cluster: Cluster, what: str, how: object) -> None:
    index, code = how if isinstance(how, tuple) else (0, how) if what == "hear" else (how, None)
    running = {pod["metadata"]["labels"][names.LABEL_INDEX] for pod in cluster.gang() if is_running(pod)}
    if str(index) not in running:
        return
    if what == "exit":
        cluster.exit(index, code)
    elif what == "hear":
        cluster.hear(bool(code))
    elif what == "delete":
        delete(cluster, index, code)
    elif what == "evict":
        cluster.rank(index)["status"]["conditions"] = [EVICTED]
        cluster.exit(index, 137)
    else:
        cluster.vanish(index)


def delete(cluster: Cluster, index: int, code: int | None) -> None:
    """A user deletes a rank, which exits with that code, or has not exited yet."""
    cluster.rank(index)["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    if code is not None:
        cluster.exit(index, code)


def is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def staged(sizes: tuple[int, int], **spec: Any) -> Cluster:
    """A job whose stages have these numbers of ranks."""
    stages = [{**stage, "deviceCount": size} for stage, size in zip(STAGES, sizes, strict=True)]
    return Cluster(job(device={"type": "CPU", "count": 3}, stages=stages, **spec))


def size(cluster: Cluster) -> int:
    """Number of ranks of the current stage."""
    return {stage.name: stage.device_count for stage in cluster.job.spec.stages}[cluster.status.stage]


def check(cluster: Cluster) -> None:
    now = cluster.status
    following = cluster.plan()
    if not (following.create or following.delete or following.events) and following.status == now:
        assert following.wake_seconds != 0, "passes without end that change nothing"
    attempts = [record.attempt for record in now.attempts]
    assert attempts == sorted(set(attempts)), "an attempt was counted twice"
    if now.stage:
        check_size(cluster)
    assert now.restarts_count_towards_max <= now.restarts
    assert now.restarts_count_towards_max <= MAX_RESTARTS, "the budget was overdrawn"
    labels = [pod["metadata"]["labels"] for pod in cluster.pods.values()]
    alive = [
        (label[names.LABEL_ATTEMPT], label[names.LABEL_INDEX])
        for label, pod in zip(labels, cluster.pods.values(), strict=True)
        if is_running(pod) and "deletionTimestamp" not in pod["metadata"]
    ]
    assert len(alive) == len(set(alive)), "a rank runs twice"


def check_size(cluster: Cluster) -> None:
    """A gang has exactly its own stage's ranks, and no completed rank of another stage counts."""
    ranks, places = cluster.status.ranks, range(size(cluster))
    assert ranks.desired == len(places)
    assert status.parse_indexes(ranks.succeeded) <= set(places)
    assert {int(pod["metadata"]["labels"][names.LABEL_INDEX]) for pod in cluster.gang()} <= set(places)


@examples(300)
@given(SIZES, st.lists(cluster_event, max_size=60))
def test_no_random_history_breaks_the_invariants(sizes: tuple[int, int], events: list[tuple[str, object]]) -> None:
    policy = {"maxRestarts": MAX_RESTARTS, "backoffSeconds": 5}
    cluster = staged(sizes, failurePolicy=policy)
    terminal = None
    for what, how in events:
        happen(cluster, what, how)
        check(cluster)
        if terminal is not None:
            assert cluster.status.conditions == terminal, "a finished job changed its mind"
        elif status.is_terminal(cluster.status):
            terminal = cluster.status.conditions


@examples(100)
@given(SIZES, st.lists(cluster_event, max_size=40))
def test_from_every_random_history_a_healthy_cluster_finishes_the_job(
    sizes: tuple[int, int], events: list[tuple[str, object]]
) -> None:
    cluster = staged(sizes, failurePolicy={"maxRestarts": 1000})
    for what, how in events:
        happen(cluster, what, how)
    suspend(cluster, False)
    cluster.nodes.clear()
    cluster.unreachable = False
    for _ in range(120):
        if not live_one_pass(cluster):
            break
    reasons = {condition.reason for condition in cluster.status.conditions if condition.status == "True"}
    assert reasons & {"StagesComplete", "RepeatedFailure"}, cluster.status


def live_one_pass(cluster: Cluster) -> bool:
    """One pass, then what a healthy cluster does next; time advances only to the plan's next wake-up."""
    before = (cluster.status, sorted(cluster.pods))
    wake = cluster.step().wake_seconds
    cluster.finish_deletions()
    cluster.run_all()
    running = [pod for pod in cluster.gang() if is_running(pod)]
    for pod in running if len(cluster.gang()) == size(cluster) else []:
        cluster.exit(int(pod["metadata"]["labels"][names.LABEL_INDEX]), 0)
    cluster.now += wake or 0.0
    return bool(running) or wake is not None or before != (cluster.status, sorted(cluster.pods))


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 13, 14, 15, 16, 137, 143]), st.booleans()), max_size=8)
)
def test_deleted_ranks_never_use_the_budget(ends: list[tuple[int, int, bool]]) -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 3}, failurePolicy={"maxRestarts": 0}))
    for index, code, gone in ends:
        cluster.started()
        delete(cluster, index, code)
        if gone:
            cluster.finish_deletions()
        cluster.settle()
        cluster.now += 700
    assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (len(ends), 0)
    assert not status.is_terminal(cluster.status)


@examples(60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_crashes_between_writes_do_not_change_the_outcome(crashes: list[int]) -> None:
    undisturbed, disturbed = (Cluster(job(failurePolicy={"backoffSeconds": 0})) for _ in range(2))
    for cluster, cuts in ((undisturbed, []), (disturbed, list(crashes))):
        for act in (lambda c: None, fail_rank_1, lambda c: None, succeed):
            for _ in range(12):
                happen(cluster, "pass", cuts.pop() if cuts else None)
                cluster.finish_deletions()
                cluster.run_all()
            act(cluster)
        cluster.settle()
    assert undisturbed.status == disturbed.status
    assert undisturbed.created == disturbed.created
    assert sorted(undisturbed.pods) == sorted(disturbed.pods)


def fail_rank_1(cluster: Cluster) -> None:
    cluster.exit(1, 137)


def succeed(cluster: Cluster) -> None:
    for index in (0, 1):
        cluster.exit(index, 0)
