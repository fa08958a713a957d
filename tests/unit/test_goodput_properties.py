"""Every device-second of a job is counted once: over failures, queues, suspensions, crashes and bad clocks."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Goodput, Loss, Status
from resnetboost_operator import lost_time, status
from resnetboost_operator.job import Job
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import seconds
from resnetboost_operator.observed.state import Obstacle
from resnetboost_operator.planning.actions import Plan
from support.examples import examples
from support.simulation import Cluster, Crash, job

RANKS = 3
STAGES = [
    {"name": name, "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8, "deviceCount": RANKS}
    for name in ("base", "fine")
]
INDEX = st.integers(0, RANKS - 1)
OBSTACLE = Obstacle("exceeded quota: pods")
event = st.one_of(
    # Three passes for each other event: a history without passes tests nothing.
    *[st.tuples(st.just("pass"), st.none() | st.integers(0, 5))] * 3,
    st.tuples(st.just("live"), st.integers(1, 300)),
    st.tuples(st.just("live"), st.integers(1, 300)),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("kubelet"), st.none()),
    st.tuples(st.just("time"), st.integers(1, 700)),
    st.tuples(
        st.just("train"), st.tuples(st.integers(1, 90), st.none() | st.floats(0, 9), st.none() | st.integers(0, 90))
    ),
    st.tuples(st.just("exit"), st.tuples(INDEX, st.sampled_from([0, 0, 1, 13, 14, 16, 137]))),
    st.tuples(st.just("finish"), st.none()),
    st.tuples(st.just("vanish"), INDEX),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("node"), st.tuples(INDEX, st.booleans())),
    st.tuples(st.just("refuse"), st.booleans()),
    st.tuples(st.just("unreachable"), st.booleans()),
    st.tuples(st.sampled_from(["admit", "evict"]), st.none()),
)
histories = st.lists(event, min_size=15, max_size=40)
clock = st.tuples(st.just("time"), st.integers(-5000, 5000))


class Watched(Cluster):
    """A cluster that adds up by the clock alone, while the job should run, what goodput must have counted."""

    def __init__(self, wanted: Job) -> None:
        super().__init__(wanted)
        self.wanted = self.forward = 0.0
        self.planned: float | None = None

    def advance(self, wait: int) -> None:
        self.now += wait
        self.forward += max(0, wait)

    def step(self, crash_after: int | None = None) -> Plan:
        before = self.status
        try:
            return super().step(crash_after)
        finally:
            # The next operator has nothing but what the API server keeps.
            self.status = status.from_dict(status.to_dict(self.status))
            if self.status != before:
                self.wanted += self.now - self.planned if self.planned is not None and is_wanted(before) else 0
                self.planned = self.now


def begun(*, queued: bool) -> Watched:
    wanted = job(
        device={"type": "CPU", "count": RANKS}, stages=STAGES, failurePolicy={"maxRestarts": 8, "backoffSeconds": 5}
    )
    cluster = Watched(replace(wanted, queue="team-a" if queued else ""))
    cluster.capabilities = Capabilities(kueue=queued, kueue_enabled=queued)
    cluster.flavors = {"spot": Flavor({"example.com/kind": "spot"})}
    return cluster


def happen(cluster: Watched, what: str, how: Any) -> None:
    if what == "pass":
        with contextlib.suppress(Crash):
            cluster.step(crash_after=how)
    elif what == "live":
        live(cluster, how)
    elif what == "run":
        cluster.run_all()
    elif what == "kubelet":
        cluster.finish_deletions()
    elif what == "time":
        cluster.advance(how)
    elif what == "train":
        train(cluster, *how)
    elif what == "suspend":
        policy = replace(cluster.job.spec.run_policy, suspend=how)
        cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
    elif what == "node":
        name = f"node-{how[0]}"
        cluster.nodes[name] = NodeView(name, how[1], silent_since=cluster.now)
    elif what == "refuse":
        cluster.obstacle = OBSTACLE if how else None
    elif what == "unreachable":
        cluster.unreachable = how
    elif what in ("admit", "evict"):
        getattr(cluster.kueue, what)()
    else:
        happen_to_pods(cluster, what, how)


def live(cluster: Watched, wait: int) -> None:
    """Everything goes well for a while, so that most histories get to train."""
    cluster.kueue.admit()
    for _ in range(4):
        happen(cluster, "pass", None)
        cluster.finish_deletions()
        cluster.run_all()
        cluster.advance(wait)
    train(cluster, 3, 0.5, 0)
    happen(cluster, "pass", None)


def train(cluster: Watched, step: int, step_seconds: float | None, resumed_step: int | None) -> None:
    cluster.train_to(step, checkpoint_step=step // 2)
    assert cluster.progress is not None
    cluster.progress = replace(cluster.progress, step_seconds=step_seconds, resumed_step=resumed_step)


def happen_to_pods(cluster: Watched, what: str, how: Any) -> None:
    alive = [pod for pod in cluster.gang() if pod["status"]["phase"] == "Running"]
    running = {int(pod["metadata"]["labels"][names.LABEL_INDEX]) for pod in alive}
    if what == "finish":
        for index in running:
            cluster.exit(index, 0)
    elif what == "exit" and how[0] in running:
        cluster.exit(*how)
    elif what == "vanish" and how in running:
        cluster.vanish(how)


def is_wanted(found: Status) -> bool:
    return bool(found.stage) and not status.is_terminal(found) and not status.is_true(found, "Suspended")


def counted(found: Goodput | None) -> int:
    return found.productive_device_seconds + sum(loss.device_seconds for loss in found.lost) if found else 0


def in_progress(found: Status, now: float) -> float:
    """Seconds of the attempt or the wait that has not ended."""
    if not is_wanted(found):
        return 0
    return now - seconds(found.attempt_creation_time or found.waiting_time)


@examples(100)
@given(st.booleans(), histories)
def test_no_second_is_lost_or_counted_twice(queued: bool, events: list[tuple[str, Any]]) -> None:
    cluster = begun(queued=queued)
    for what, how in events:
        happen(cluster, what, how)
        now = cluster.planned if cluster.planned is not None else cluster.now
        assert counted(cluster.status.goodput) == RANKS * (cluster.wanted - in_progress(cluster.status, now))


@examples(100)
@given(st.booleans(), st.lists(event | clock, min_size=15, max_size=40))
def test_whatever_the_clock_does_nothing_is_negative_or_taken_back(queued: bool, events: list[tuple[str, Any]]) -> None:
    cluster = begun(queued=queued)
    for what, how in events:
        before = cluster.status.goodput or Goodput()
        happen(cluster, what, how)
        after = cluster.status.goodput or Goodput()
        assert counted(before) <= counted(after) <= RANKS * cluster.forward
        assert before.attempt_seconds <= after.attempt_seconds <= cluster.forward
        assert 0 <= after.productive_seconds <= after.attempt_seconds
        assert after.productive_device_seconds == RANKS * after.productive_seconds
        assert all(loss.device_seconds > 0 for loss in after.lost)
        assert 0 <= after.percent <= 100
        assert sum(lost_time.shares(after).values()) in (0, 100 - after.percent)


reasons = st.sampled_from(["Killed", "Hang", "Overhead", "Evicted"])


@examples(100)
@given(
    st.integers(0, 9000),
    st.integers(0, 9000),
    st.dictionaries(reasons, st.integers(1, 9000)),
    histories,
)
def test_what_an_older_operator_counted_stays(
    productive: int, more: int, lost: dict[str, int], events: list[tuple[str, Any]]
) -> None:
    """As it wrote it: without productiveDeviceSeconds and without the failure of a loss."""
    cluster = begun(queued=False)
    written = {
        "attemptSeconds": productive + more,
        "productiveSeconds": productive,
        "lost": [{"reason": reason, "deviceSeconds": amount} for reason, amount in lost.items()],
    }
    cluster.status = status.from_dict({"goodput": written})
    for what, how in events:
        happen(cluster, what, how)
    found = cluster.status.goodput
    assert found is not None
    assert found.attempt_seconds >= productive + more
    assert counted(found) >= sum(lost.values())
    now = {(loss.reason, loss.failure): loss.device_seconds for loss in found.lost}
    if found.productive_seconds <= productive:
        assert all(now.get((reason, ""), 0) >= amount for reason, amount in lost.items())


@examples(50)
@given(st.lists(st.tuples(st.sampled_from(lost_time.CAUSES), st.integers(1, 10**7)), unique_by=lambda pair: pair[0]))
def test_the_shares_and_the_goodput_are_a_hundred_percent(lost: list[tuple[str, int]]) -> None:
    losses = tuple(Loss(cause, amount) for cause, amount in lost)
    found = lost_time.with_percent(Goodput(productive_device_seconds=12345, lost=losses))
    assert found.percent + sum(lost_time.shares(found).values()) == 100 or not lost_time.shares(found)
