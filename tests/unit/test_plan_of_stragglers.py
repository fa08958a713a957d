"""Slow ranks in the plan: since when, the condition Straggling, its events, and the replacement of a node."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resnetboost_api.status import Condition, Progress, Straggler
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests.pod import TERMINATION_GRACE_SECONDS
from resnetboost_operator.observed.pods import timestamp
from support.simulation import START, Cluster, job

FOR_SECONDS = 300


def gang(count: int = 3, **policy: Any) -> Cluster:
    """A gang that trains, each rank on a node of its own."""
    return Cluster(job(device={"type": "CPU", "count": count}, failurePolicy={"straggler": policy})).started()


def slow(rank: int, index: int | None = None, since_step: int = 20, ratio: float = 2.0) -> Straggler:
    """What rank 0 reports."""
    place = rank if index is None else index
    return Straggler(rank=rank, index=place, seconds=0.1 * ratio, median=0.1, since_step=since_step)


def train(cluster: Cluster, seconds: float, *found: Straggler) -> None:
    """The gang trains so long, while rank 0 reports these ranks; polled every 15 s."""
    end = cluster.now + seconds
    while cluster.now < end:
        cluster.now = min(cluster.now + 15, end)
        step = cluster.progress.step + 10 if cluster.progress is not None else 1
        cluster.train_to(step, checkpoint_step=step)
        assert cluster.progress is not None
        cluster.progress = replace(cluster.progress, stragglers=found)
        cluster.step()


def straggling(cluster: Cluster) -> Condition | None:
    return statuses.condition(cluster.status, "Straggling")


def is_straggling(cluster: Cluster) -> bool:
    return statuses.is_true(cluster.status, "Straggling")


class TestCondition:
    def test_a_job_that_never_had_a_slow_rank_has_no_condition(self) -> None:
        cluster = gang()
        train(cluster, 2 * FOR_SECONDS)
        assert straggling(cluster) is None

    def test_a_rank_that_is_slow_for_long_is_named_with_pod_node_and_time(self) -> None:
        cluster = gang()
        begun = cluster.now + 15
        train(cluster, FOR_SECONDS, slow(1))
        assert straggling(cluster) is None, "the first report came 15 s after the beginning"
        train(cluster, 15, slow(1))
        found = straggling(cluster)
        assert found is not None
        assert (found.status, found.reason) == ("True", "SlowRank")
        assert found.message == (
            f"rank 1 (digits-base-0-1 on node-1) is slow since {timestamp(begun)}, and every step waits for it"
        )
        assert cluster.status.phase == "Running"

    def test_a_rank_that_a_table_placed_elsewhere_is_named_by_its_pod(self) -> None:
        cluster = gang()
        train(cluster, FOR_SECONDS + 15, slow(1, index=2))
        found = straggling(cluster)
        assert found is not None
        assert found.message.startswith("rank 1 (digits-base-0-2 on node-2) is slow since")

    def test_the_device_is_named_where_the_plugin_tells_it(self) -> None:
        cluster = gang()
        cluster.allocate(1, 5, "10.0.0.5")
        train(cluster, FOR_SECONDS + 15, slow(1))
        assert "(digits-base-0-1 on node-1, device 5)" in getattr(straggling(cluster), "message", "")

    def test_one_event_for_each_change(self) -> None:
        cluster = gang()
        train(cluster, 3 * FOR_SECONDS, slow(1))
        assert cluster.events.count("Straggling") == 1
        cluster.job = replace(cluster.job, generation=2)
        train(cluster, FOR_SECONDS, slow(1), slow(2))
        train(cluster, FOR_SECONDS, slow(1), slow(2))
        assert cluster.events.count("Straggling") == 2, "another rank is slow too"
        train(cluster, FOR_SECONDS)
        assert cluster.events.count("NotStraggling") == 1
        assert not is_straggling(cluster)

    def test_the_condition_does_not_change_with_the_numbers(self) -> None:
        cluster = gang()
        train(cluster, FOR_SECONDS + 15, slow(1, ratio=2.0))
        before = straggling(cluster)
        train(cluster, 60, slow(1, ratio=2.6))
        assert straggling(cluster) == before

    def test_a_rank_that_was_well_in_between_begins_anew(self) -> None:
        """Also if no poll saw it: the trainer says since which step."""
        cluster = gang()
        train(cluster, FOR_SECONDS - 30, slow(1, since_step=20))
        train(cluster, FOR_SECONDS - 30, slow(1, since_step=2000))
        assert not is_straggling(cluster)

    def test_another_operator_goes_on_counting(self) -> None:
        cluster = gang()
        train(cluster, FOR_SECONDS - 60, slow(1))
        cluster.status = statuses.from_dict(statuses.to_dict(cluster.status))  # all that outlives an operator
        train(cluster, 75, slow(1))
        assert is_straggling(cluster)

    def test_silence_is_no_slowness(self) -> None:
        """A hung gang, or a rank 0 out of reach: the last report says nothing about the time after it."""
        cluster = gang()
        train(cluster, 30, slow(1))
        cluster.now += FOR_SECONDS
        cluster.step()
        assert straggling(cluster) is None

    def test_it_is_over_with_the_gang(self) -> None:
        cluster = gang()
        train(cluster, FOR_SECONDS + 15, slow(1))
        cluster.exit(2, 1)
        cluster.settle()
        assert cluster.status.phase == "Restarting"
        assert not is_straggling(cluster)

    def test_it_is_over_with_the_job(self) -> None:
        cluster = gang()
        train(cluster, FOR_SECONDS + 15, slow(1))
        for index in range(3):
            cluster.exit(index, 0, "Completed", report={"class": "Succeeded"})
        cluster.settle()
        assert cluster.status.phase == "Complete"
        assert not is_straggling(cluster)

    def test_ranks_without_a_pod_are_ignored(self) -> None:
        """A trainer says what it likes: indexes of no pod, a rank twice, a median of nothing, times and places."""
        cluster = gang()
        lies = {"since": "then", "node": "\x1b[31m", "device": 3}
        told = [slow(7), slow(1), slow(1, index=2), replace(slow(2), median=0.0)]
        found = msgspec.convert([msgspec.to_builtins(one) | lies for one in told], tuple[Straggler, ...])
        train(cluster, FOR_SECONDS + 15, *found)
        progress = cluster.status.progress
        assert progress is not None
        assert [(one.rank, one.index, one.node, one.device) for one in progress.stragglers] == [(1, 1, "node-1", None)]
        assert is_straggling(cluster)


class TestReplace:
    def replaced(self, cluster: Cluster) -> bool:
        return any(record.reason == "Straggler" for record in cluster.status.attempts)

    def test_the_gang_starts_again_without_the_node_of_the_slowest_rank(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS + 15, slow(1, ratio=1.6), slow(2, ratio=3.0))
        (record,) = cluster.status.attempts
        assert (record.reason, record.rank, record.node, record.exit_code) == ("Straggler", 2, "node-2", None)
        assert "rank 2 (digits-base-0-2 on node-2) is slow since" in record.message
        assert record.message.endswith("300 ms to compute a step, 3.00 times the gang's median; node-2 is replaced")
        assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (1, 0)
        assert [found.node for found in cluster.status.excluded_nodes] == ["node-2"]
        assert not is_straggling(cluster)

    def test_its_ranks_have_the_time_to_save_a_checkpoint(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS, slow(1))
        cluster.now += 15
        cluster.train_to(1000)
        assert cluster.progress is not None
        cluster.progress = replace(cluster.progress, stragglers=(slow(1),))
        assert [found.grace_seconds for found in cluster.plan().delete] == 3 * [TERMINATION_GRACE_SECONDS]

    def test_new_pods_avoid_the_node(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS + 15, slow(1))
        self.again(cluster)
        assert "node-1" in str(cluster.rank(0)["spec"]["affinity"])

    def test_report_replaces_nothing(self) -> None:
        cluster = gang(action="Report")
        train(cluster, 3 * FOR_SECONDS, slow(1))
        assert not self.replaced(cluster)

    def test_no_more_than_once_an_hour(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS + 15, slow(1))
        replaced_at = cluster.now
        self.again(cluster)
        train(cluster, 3500 - (cluster.now - replaced_at), slow(2))
        assert cluster.status.restarts == 1
        due = timestamp(replaced_at + 3600)
        assert f"; node-2 is not replaced before {due}, once an hour" in getattr(straggling(cluster), "message", "")
        assert cluster.events.count("Straggling") == 1
        train(cluster, 130, slow(2))
        assert cluster.status.restarts == 2

    def test_a_gang_on_one_node_is_only_reported_and_says_so_once(self) -> None:
        cluster = gang(action="Replace")
        for index in range(3):
            cluster.bind(index, "node-0")
        train(cluster, 3 * FOR_SECONDS, slow(1))
        assert not self.replaced(cluster)
        assert "; node-0 is not replaced, because the whole gang is on it" in getattr(
            straggling(cluster), "message", ""
        )
        assert cluster.events.count("Straggling") == 1

    def test_ranks_without_nodes_are_only_reported(self) -> None:
        """On one machine."""
        cluster = gang(action="Replace")
        for index in range(3):
            cluster.bind(index, "")
        train(cluster, 2 * FOR_SECONDS, slow(1))
        assert not self.replaced(cluster)
        assert "rank 1 (digits-base-0-1) is slow" in getattr(straggling(cluster), "message", "")
        assert "the ranks have no nodes here" in getattr(straggling(cluster), "message", "")

    def test_without_a_claim_nothing_is_replaced(self) -> None:
        """It would lose more than it gains."""
        wanted = job(
            device={"type": "CPU", "count": 3}, checkpoint={}, failurePolicy={"straggler": {"action": "Replace"}}
        )
        cluster = Cluster(wanted).started()
        train(cluster, 2 * FOR_SECONDS, slow(1))
        assert not self.replaced(cluster)
        assert "without checkpoint.claimName or url the training would begin again" in getattr(
            straggling(cluster), "message", ""
        )

    def test_a_gang_of_which_a_rank_is_done_is_left_alone(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS, slow(1))
        cluster.exit(2, 0, "Completed", report={"class": "Succeeded"})
        train(cluster, 60, slow(1))
        assert not self.replaced(cluster)

    def test_a_failure_explains_more_than_slowness(self) -> None:
        cluster = gang(action="Replace")
        train(cluster, FOR_SECONDS, slow(1))
        cluster.exit(1, 137)
        train(cluster, 15, slow(1))
        assert [record.reason for record in cluster.status.attempts] == ["Killed"]

    @staticmethod
    def again(cluster: Cluster) -> None:
        cluster.progress = None
        cluster.finish_deletions()
        cluster.now = max(cluster.now, START + 1)
        cluster.settle()
        cluster.run_all()
        cluster.train_to(1)
        cluster.settle()


@pytest.mark.parametrize("action", ["Report", "Replace"])
@settings(max_examples=20)
@given(reports=st.lists(st.sets(st.sampled_from([0, 1, 2])), max_size=60))
def test_whatever_is_reported_the_condition_changes_rarely(action: str, reports: list[set[int]]) -> None:
    """Each rank needs forSeconds for the condition, so that no series of reports writes more than so many events."""
    cluster = gang(action=action, forSeconds=60)
    for ranks in reports:
        train(cluster, 15, *[slow(rank) for rank in sorted(ranks)])
    assert cluster.events.count("Straggling") <= 1 + len(reports) * 15 * 3 / 60
    assert cluster.status.restarts <= 1
    assert len(getattr(straggling(cluster), "message", "")) < 1024


def test_progress_keeps_what_is_known_between_polls() -> None:
    """A plan without news of rank 0 changes nothing."""
    cluster = gang()
    train(cluster, 60, slow(1))
    before = cluster.status
    cluster.now += 5
    cluster.step()
    assert cluster.status == before
    assert isinstance(cluster.progress, Progress)
