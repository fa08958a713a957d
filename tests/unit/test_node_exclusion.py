"""Exclusion of nodes: points that decay, what the next attempts avoid, and that no exclusion keeps a gang waiting."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api.policies import NodeExclusion
from resnetboost_api.status import Attempt, Status
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.manifests.pod import pod
from resnetboost_operator.observed.pods import seconds, timestamp, view
from resnetboost_operator.observed.state import Obstacle
from resnetboost_operator.planning import exclusion
from resnetboost_operator.status import from_dict, to_dict
from support.simulation import START, Cluster, job

HALF_LIFE = 3600
EXCLUDING = {"nodeExclusion": {"afterFailures": 2, "halfLifeSeconds": HALF_LIFE}}


def training(policy: dict[str, Any] | None = None, **spec: Any) -> Cluster:
    """A gang of two that trains on node-0 and node-1."""
    return Cluster(job(failurePolicy=EXCLUDING if policy is None else policy, **spec)).started()


def fail(cluster: Cluster, code: int = 1, index: int = 1, after: float = 60.0) -> None:
    """A rank fails some time later, at a step of its own, and its gang goes; no new one is scheduled yet."""
    cluster.now += after
    cluster.train_to(cluster.status.attempt + 2)
    cluster.settle()
    cluster.exit(index, code)
    cluster.settle()


def again(cluster: Cluster) -> None:
    """The next attempt trains on the same nodes after the back-off."""
    wait(cluster)
    cluster.run_all()
    cluster.train_to(1)
    cluster.settle()


def wait(cluster: Cluster) -> None:
    """The pods of the next attempt are created."""
    cluster.progress = None
    cluster.now = max(cluster.now, seconds(cluster.status.restart_time))
    cluster.settle()


def unschedulable(cluster: Cluster) -> None:
    """The scheduler finds no node for any pod."""
    for found in cluster.gang():
        found["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    cluster.settle()


def excluded(cluster: Cluster) -> list[str]:
    return [found.node for found in cluster.status.excluded_nodes]


def avoided(cluster: Cluster) -> list[tuple[str, ...]]:
    """The nodes that each pod of the gang avoids."""
    return [view(found).avoids for found in cluster.gang()]


class TestPoints:
    def test_a_node_that_fails_twice_is_avoided_by_the_whole_gang(self) -> None:
        cluster = training()
        fail(cluster)
        again(cluster)
        assert excluded(cluster) == []
        fail(cluster)
        wait(cluster)
        assert excluded(cluster) == ["node-1"]
        assert avoided(cluster) == [("node-1",), ("node-1",)]
        assert cluster.events.count("NodeExcluded") == 1

    def test_without_the_block_no_node_is_avoided(self) -> None:
        cluster = training({})
        for _ in range(4):
            fail(cluster)
            again(cluster)
        assert excluded(cluster) == []
        assert all("affinity" not in found["spec"] for found in cluster.gang())

    def test_two_failures_far_apart_are_forgiven(self) -> None:
        cluster = training()
        fail(cluster)
        again(cluster)
        fail(cluster, after=2 * HALF_LIFE)
        assert excluded(cluster) == []

    @pytest.mark.parametrize("code", [14, 16], ids=["communication", "interrupted"])
    def test_victims_are_not_blamed(self, code: int) -> None:
        cluster = training()
        for _ in range(3):
            fail(cluster, code=code)
            cluster.now += 61
            cluster.settle()
            again(cluster)
        assert (cluster.status.restarts, excluded(cluster)) == (3, [])

    def test_lost_pods_are_not_blamed(self) -> None:
        cluster = training()
        for _ in range(3):
            cluster.vanish(1)
            cluster.settle()
            again(cluster)
        assert (cluster.status.restarts, excluded(cluster)) == (3, [])

    def test_another_operator_goes_on_from_the_status(self) -> None:
        cluster = training()
        fail(cluster)
        again(cluster)
        cluster.status = from_dict(to_dict(cluster.status))
        fail(cluster)
        cluster.status = from_dict(to_dict(cluster.status))
        wait(cluster)
        assert avoided(cluster) == [("node-1",), ("node-1",)]

    def test_an_exclusion_ends_when_half_of_the_points_is_left(self) -> None:
        cluster = training()
        fail(cluster)
        again(cluster)
        fail(cluster)
        (found,) = cluster.status.excluded_nodes
        assert seconds(found.until) - cluster.now == pytest.approx(HALF_LIFE, rel=0.02)
        again(cluster)
        assert (cluster.plan().wake_seconds or 1e9) <= HALF_LIFE
        for early in (1, 0):
            cluster.now = seconds(found.until) - early
            cluster.train_to(99 - early)
            cluster.settle()
            assert excluded(cluster) == ["node-1"] * early
        assert (cluster.events.count("NodeReadmitted"), cluster.status.phase) == (1, "Running")

    def test_a_node_that_fails_again_after_its_exclusion_is_excluded_at_once(self) -> None:
        cluster = training()
        fail(cluster)
        again(cluster)
        fail(cluster)
        again(cluster)
        fail(cluster, after=1.01 * HALF_LIFE)
        assert excluded(cluster) == ["node-1"]
        assert cluster.events.count("NodeExcluded") == 2


class TestRule:
    RULES = ({"name": "xid", "onExitCodes": [79], "action": "ExcludeNode"},)

    def test_excludes_the_node_after_one_failure_and_counts_the_restart(self) -> None:
        cluster = training({"rules": list(self.RULES)})
        fail(cluster, code=79)
        assert excluded(cluster) == ["node-1"]
        assert (cluster.status.restarts_count_towards_max, cluster.status.attempts[-1].rule) == (1, "xid")

    def test_an_error_that_follows_the_gang_ends_the_job(self) -> None:
        cluster = training({"rules": [{"onClasses": ["InternalError"], "action": "ExcludeNode"}]})
        for _ in range(2):
            cluster.train_to(50)
            cluster.settle()
            cluster.exit(1, 1)
            cluster.settle()
            if cluster.status.phase != "Failed":
                again(cluster)
        assert cluster.status.phase == "Failed"

    def test_of_an_unknown_node_says_so(self) -> None:
        cluster = training({"rules": [{"onClasses": ["PodLost"], "action": "ExcludeNode"}]})
        cluster.vanish(1)
        cluster.now += 1
        said = [event.message for event in cluster.plan().events]
        assert excluded(cluster) == []
        assert any("nobody knows which failed" in message for message in said)


class TestLift:
    def excluding(self) -> Cluster:
        """A gang that may not use node-1 and node-0, in this order."""
        rules = [{"onExitCodes": [79], "action": "ExcludeNode"}]
        cluster = training({"rules": rules, "backoffSeconds": 1})
        fail(cluster, code=79, index=1)
        again(cluster)
        fail(cluster, code=79, index=0)
        wait(cluster)
        assert avoided(cluster) == [("node-1", "node-0")] * 2
        return cluster

    def test_a_quota_that_lets_no_pod_exist_lifts_no_exclusion(self) -> None:
        policy = {"rules": [{"onExitCodes": [79], "action": "ExcludeNode"}]}
        cluster = training(policy, runPolicy={"startupDeadlineSeconds": 60})
        fail(cluster, code=79, index=1)
        cluster.finish_deletions()
        cluster.now = seconds(cluster.status.restart_time)
        cluster.step()
        cluster.obstacle = Obstacle("exceeded quota")
        cluster.pods.popitem()
        cluster.now += 60
        cluster.step()
        assert cluster.status.attempts[-1].reason == "NotScheduled"
        assert excluded(cluster) == ["node-1"]

    def test_the_oldest_exclusion_is_lifted_when_pods_stay_unschedulable(self) -> None:
        cluster = self.excluding()
        unschedulable(cluster)
        running = next(found for found in cluster.status.conditions if found.type == "Running")
        assert running.message.endswith("; the pods avoid node-0 and node-1 (status.excludedNodes)")
        assert cluster.plan().wake_seconds == pytest.approx(exclusion.LIFT_SECONDS)
        cluster.now += exclusion.LIFT_SECONDS - 1
        cluster.settle()
        assert excluded(cluster) == ["node-1", "node-0"]
        cluster.now += 1
        cluster.settle()
        assert excluded(cluster) == ["node-0"]
        assert cluster.events[-2:] == ["NodeReadmitted", "GangStarting"], "at once, without a back-off"
        record = cluster.status.attempts[-1]
        assert (record.reason, record.message) == (
            "NotScheduled",
            "0/2 ranks could be scheduled without node-0 and node-1; node-1 is used again",
        )
        wait(cluster)
        assert avoided(cluster) == [("node-0",)] * 2

    def test_all_are_lifted_one_after_another_and_none_counts(self) -> None:
        cluster = self.excluding()
        counted = cluster.status.restarts_count_towards_max
        for _ in range(2):
            unschedulable(cluster)
            cluster.now += exclusion.LIFT_SECONDS
            cluster.settle()
            wait(cluster)
        assert (excluded(cluster), avoided(cluster)) == ([], [(), ()])
        assert cluster.status.restarts_count_towards_max == counted
        unschedulable(cluster)
        before = cluster.status.attempt
        cluster.now += exclusion.LIFT_SECONDS
        cluster.settle()
        assert cluster.status.attempt == before, "a gang that avoids nothing waits for nodes as always"

    def test_pods_that_nobody_has_looked_at_prove_nothing(self) -> None:
        cluster = self.excluding()
        cluster.now += 2 * exclusion.LIFT_SECONDS
        cluster.settle()
        assert excluded(cluster) == ["node-1", "node-0"]

    def test_pods_made_before_the_end_of_an_exclusion_are_replaced_too(self) -> None:
        """The affinity of a pod cannot change: it would wait for ever."""
        cluster = self.excluding()
        unschedulable(cluster)
        cluster.now += exclusion.LIFT_SECONDS
        cluster.status = to_status(cluster.status, excluded_nodes=())
        cluster.settle()
        wait(cluster)
        assert avoided(cluster) == [(), ()]

    def test_survives_a_crash_between_any_two_writes(self) -> None:
        for writes in range(4):
            cluster = self.excluding()
            unschedulable(cluster)
            cluster.now += exclusion.LIFT_SECONDS
            try:
                cluster.step(crash_after=writes)
            except Exception as error:
                assert type(error).__name__ == "Crash"
            cluster.settle()
            wait(cluster)
            assert (excluded(cluster), avoided(cluster)) == (["node-0"], [("node-0",)] * 2)


def to_status(status: Status, **changes: Any) -> Status:
    return from_dict({**to_dict(status), **{"excludedNodes": list(changes["excluded_nodes"])}})


class TestPods:
    def test_node_affinity_joins_the_pods_own_affinity(self) -> None:
        """Each name needs a selector of its own: Kubernetes takes one value for each."""
        wanted = job(device={"type": "GPU", "count": 4, "perNode": 2})
        (stage,) = wanted.spec.stages
        made = pod(wanted, stage, 0, 1, Placement(excluded_nodes=("a", "b"), topology_key="example.com/rack"))
        affinity = made["spec"]["affinity"]
        (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term == {
            "matchFields": [
                {"key": "metadata.name", "operator": "NotIn", "values": ["a"]},
                {"key": "metadata.name", "operator": "NotIn", "values": ["b"]},
            ]
        }
        before = pod(wanted, stage, 0, 1, Placement(topology_key="example.com/rack"))["spec"]["affinity"]
        assert {name: affinity[name] for name in before} == before

    def test_a_pod_whose_node_the_queue_has_chosen_avoids_none(self) -> None:
        wanted = job()
        (stage,) = wanted.spec.stages
        placement = Placement(excluded_nodes=("a",), node_selector_of={1: {"kubernetes.io/hostname": "a"}})
        made = [view(pod(wanted, stage, 0, index, placement)).avoids for index in (0, 1)]
        assert made == [("a",), ()]


FAILURES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", ""]),
        st.sampled_from(["Killed", "PodLost", "CommunicationError", "Hang", "Unheard"]),
        st.integers(0, 10 * HALF_LIFE),
    ),
    max_size=20,
)


def records(given: list[tuple[str, str, int]]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(attempt=number, stage="base", reason=reason, node=node or None, end_time=timestamp(START + at))
        for number, (node, reason, at) in enumerate(sorted(given, key=lambda found: found[2]))
    )


def test_the_list_is_bounded() -> None:
    status = Status()
    for number in range(exclusion.MOST + 2):
        status = exclusion.exclude(status, f"node-{number}", "it is slow", START + number)
    assert (len(status.excluded_nodes), status.excluded_nodes[0].node) == (exclusion.MOST, "node-2")


class TestProperties:
    @given(FAILURES, st.integers(0, 20 * HALF_LIFE))
    def test_points_never_exceed_the_failures_and_halve_in_time(
        self, given: list[tuple[str, str, int]], later: int
    ) -> None:
        found, now = records(given), START + 10 * HALF_LIFE
        points = exclusion.points_of("a", found, HALF_LIFE, now)
        assert 0 <= points <= sum(node == "a" and reason in ("Killed", "Hang") for node, reason, _ in given)
        after = exclusion.points_of("a", found, HALF_LIFE, now + later)
        assert after == pytest.approx(points * 0.5 ** (later / HALF_LIFE), abs=1e-9)

    @given(FAILURES, st.integers(1, 20), st.integers(60, 31536000))
    def test_what_is_excluded_ends_and_is_bounded(
        self, given: list[tuple[str, str, int]], after: int, half_life: int
    ) -> None:
        settings, status = NodeExclusion(after_failures=after, half_life_seconds=half_life), Status()
        for ended in records(given):
            now = seconds(ended.end_time)
            status = exclusion.after_failure(
                Status(attempts=(*status.attempts, ended), excluded_nodes=status.excluded_nodes), settings, ended, now
            )
        for found in status.excluded_nodes:
            assert found.points >= after - 0.5
            assert seconds(found.since) <= seconds(found.until) <= seconds(found.since) + half_life * 5
        ends = max((seconds(found.until) for found in status.excluded_nodes), default=0.0)
        assert exclusion.without_expired(status, ends).excluded_nodes == ()

    @given(st.lists(st.sampled_from([f"node-{number}" for number in range(40)]), max_size=60))
    def test_a_node_stands_in_the_list_once_and_the_newest_stay(self, names: list[str]) -> None:
        status = Status()
        for second, name in enumerate(names):
            status = exclusion.exclude(status, name, "it is slow", START + second)
        kept = [found.node for found in status.excluded_nodes]
        newest = list(dict.fromkeys(reversed(names)))[: exclusion.MOST]
        assert kept == newest[::-1]


class TestMetric:
    def scraped(self, points: dict[str, float]) -> list[str]:
        metrics = Metrics()
        metrics.watch_nodes(lambda: points)
        lines = metrics.text().decode().splitlines()
        return [line for line in lines if line.startswith("resnetboost_operator_node_failure_points")]

    def test_sums_over_jobs_and_leaves_out_the_innocent(self) -> None:
        first = records([("a", "Killed", 0), ("b", "PodLost", 0)])
        second = records([("a", "Hang", 0), ("c", "Hang", 0)])
        found = exclusion.points_by_node([first, second], HALF_LIFE, START)
        assert found == {"a": 2.0, "c": 1.0}
        assert self.scraped(found) == [
            'resnetboost_operator_node_failure_points{node_name="a"} 2.0',
            'resnetboost_operator_node_failure_points{node_name="c"} 1.0',
        ]

    def test_mistakes_of_a_jobs_author_blame_no_node_for_other_jobs(self) -> None:
        mistaken = records([("a", "ImageError", 0), ("a", "ConfigError", 0)])
        assert exclusion.points_of("a", mistaken, HALF_LIFE, START) == 2.0, "within the job they count"
        assert exclusion.points_by_node([mistaken], HALF_LIFE, START) == {}

    def test_series_end_when_the_points_have_decayed(self) -> None:
        found = exclusion.points_by_node([records([("a", "Killed", 0)])], HALF_LIFE, START + 4 * HALF_LIFE)
        assert self.scraped(found) == []

    def test_series_are_bounded(self) -> None:
        assert len(self.scraped({f"node-{number}": 1.0 for number in range(5000)})) == 100
