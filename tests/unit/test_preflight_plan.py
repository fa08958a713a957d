"""The preflight in the plan: its result in the status, its events, and what follows when the gang ends by it."""

from typing import Any

import msgspec

from resnetboost_api.status import PolledProgress, PreflightResult, Suspect
from resnetboost_operator.cli.status import job_facts
from resnetboost_operator.observed.pods import seconds
from resnetboost_operator.status import from_dict, to_dict
from support.simulation import Cluster, job

EXCLUDING = {"preflight": {"action": "Exclude"}}
SLOW = Suspect(index=1, rank=1, reason="SlowCompute", percent=62)
FOUND = PreflightResult(seconds=4.5, compute_median=17.2, compute_lowest=16.0, slowest_rank=0, collective_rate=55.5)


def whole(**spec: Any) -> Cluster:
    """A gang of two whose pods run on node-0 and node-1."""
    cluster = Cluster(job(**(spec or {"preflight": {}})))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def report(cluster: Cluster, found: PreflightResult, heartbeat: int = 0) -> None:
    """Rank 0 answers with the result of its preflight."""
    stage, attempt = cluster.status.stage, cluster.status.attempt
    cluster.progress = PolledProgress(
        state="Compiling",
        stage=stage,
        attempt=attempt,
        heartbeat=heartbeat,
        preflight=found,
        preflight_seconds=found.seconds,
    )
    cluster.settle()


def end(cluster: Cluster, *suspects: Suspect) -> None:
    """All ranks end with the failure of the preflight."""
    found = msgspec.structs.replace(FOUND, suspects=suspects, suspect_count=len(suspects))
    message = {
        "class": "PreflightFailed",
        "message": "the preflight named ...",
        "preflight": msgspec.to_builtins(found),
    }
    for index in (0, 1):
        cluster.exit(index, 18, report=message)
    cluster.settle()


class TestReport:
    def test_the_result_stands_in_the_status_with_the_nodes_of_the_named(self) -> None:
        cluster = whole()
        report(cluster, msgspec.structs.replace(FOUND, suspects=(SLOW,), suspect_count=1))
        found = cluster.status.preflight
        assert found is not None and found.attempt == 0 and found.time is not None
        assert [(one.index, one.node, one.reason) for one in found.suspects] == [(1, "node-1", "SlowCompute")]
        assert cluster.status.progress is not None and cluster.status.progress.preflight_seconds == 4.5
        assert "preflight" not in to_dict(cluster.status)["progress"]
        assert cluster.events.count("PreflightSuspects") == 1
        assert cluster.status.excluded_nodes == () and cluster.status.restarts == 0

    def test_a_preflight_that_names_nobody_is_told_once_and_is_no_warning(self) -> None:
        cluster = whole()
        report(cluster, FOUND)
        report(cluster, FOUND, heartbeat=1)
        assert cluster.events.count("PreflightPassed") == 1
        assert "PreflightSuspects" not in cluster.events

    def test_it_outlives_the_attempt_and_an_operator(self) -> None:
        cluster = whole()
        report(cluster, FOUND, heartbeat=1)
        cluster.exit(1, 1)
        cluster.settle()
        assert cluster.status.attempt == 1
        assert from_dict(to_dict(cluster.status)).preflight == cluster.status.preflight is not None

    def test_of_strangers_and_ranks_beyond_the_gang_nothing_is_taken(self) -> None:
        cluster = whole()
        stranger = Suspect(index=77, rank=77, node="node-of-another", reason="SlowCompute")
        lying = msgspec.structs.replace(SLOW, node="node-of-another")
        report(cluster, msgspec.structs.replace(FOUND, suspects=(stranger, lying), suspect_count=2**40))
        found = cluster.status.preflight
        assert found is not None
        assert [one.node for one in found.suspects] == ["node-1"]
        assert found.suspect_count == 2

    def test_the_status_command_names_the_ranks(self) -> None:
        cluster = whole()
        report(cluster, msgspec.structs.replace(FOUND, suspects=(SLOW,), suspect_count=3))
        assert cluster.status.preflight is not None
        line = job_facts._preflight(cluster.status.preflight)
        assert "rank 1 on node-1 (SlowCompute, 62 % of the median)" in line
        assert "4.5 s" in line


class TestExclude:
    def test_the_next_attempt_avoids_the_node_of_the_named_rank(self) -> None:
        cluster = whole(**EXCLUDING)
        end(cluster, SLOW)
        ended = cluster.status.attempts[-1]
        assert (ended.reason, ended.rank, ended.node, ended.exit_code) == ("PreflightFailed", 1, "node-1", 18)
        assert [found.node for found in cluster.status.excluded_nodes] == ["node-1"]
        assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (1, 1)
        assert {"GangRestart", "NodeExcluded", "PreflightSuspects"} <= set(cluster.events)

    def test_two_that_disagree_are_both_avoided(self) -> None:
        cluster = whole(**EXCLUDING)
        end(cluster, *(Suspect(index=index, rank=index, reason="DisagreeingResult") for index in (0, 1)))
        assert [found.node for found in cluster.status.excluded_nodes] == ["node-0", "node-1"]

    def test_without_a_word_of_whom_it_named_the_gang_restarts_and_no_node_is_avoided(self) -> None:
        cluster = whole(**EXCLUDING)
        cluster.exit(0, 18)
        cluster.settle()
        assert cluster.status.attempts[-1].reason == "PreflightFailed"
        assert cluster.status.excluded_nodes == ()

    def test_it_does_not_restart_for_ever(self) -> None:
        cluster = whole(**EXCLUDING, failurePolicy={"maxRestarts": 1, "backoffSeconds": 1})
        end(cluster, SLOW)
        cluster.now = seconds(cluster.status.restart_time)
        cluster.settle()
        cluster.run_all()
        cluster.settle()
        end(cluster, SLOW)
        assert cluster.status.phase == "Failed"


class TestDeadlines:
    def test_the_startup_deadline_waits_for_the_preflight(self) -> None:
        cluster = whole(preflight={"seconds": 100}, runPolicy={"startupDeadlineSeconds": 60})
        report(cluster, FOUND)
        cluster.now += 100
        cluster.settle()
        assert cluster.status.attempt == 0
        cluster.now += 100
        cluster.settle()
        assert cluster.status.attempts[-1].reason == "StartupDeadlineExceeded"

    def test_a_preflight_longer_than_the_hang_timeout_is_no_hang(self) -> None:
        cluster = whole(preflight={"seconds": 600}, failurePolicy={"hangTimeoutSeconds": 10})
        cluster.progress = PolledProgress(state="Preflight", stage=cluster.status.stage, attempt=0)
        cluster.settle()
        cluster.now += 500
        cluster.settle()
        assert cluster.status.attempts == ()
