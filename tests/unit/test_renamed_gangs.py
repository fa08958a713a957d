"""A gang that an operator began which names its config map otherwise, and that this operator finds half done."""

import contextlib
import itertools
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_operator.status import is_true
from support.simulation import Cluster, Crash, job

ASCEND = {"type": "Ascend", "count": 2, "chip": "910A"}


@pytest.fixture
def earlier_names(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The names of 0.1.0, until it is undone."""
    monkeypatch.setattr(names, "config_map", lambda job, uid, stage, attempt: names.gang(job, stage, attempt))
    monkeypatch.setattr(
        names, "rank_table", lambda job, uid, stage, attempt: f"{names.gang(job, stage, attempt)}-ranks"
    )
    return monkeypatch


def config_maps(cluster: Cluster) -> set[str]:
    """Those that pods of the current attempt mount and need."""
    volumes = [volume for pod in cluster.gang() for volume in pod["spec"]["volumes"]]
    found = (volume.get("configMap", {}) for volume in volumes)
    return {one["name"] for one in found if one and not one.get("optional")}


def begun(*, pods: int, **spec: Any) -> Cluster:
    """A job whose operator was killed when its gang had that many pods."""
    for writes in itertools.count():
        cluster = Cluster(job(failurePolicy={"maxRestarts": 0}, **spec))
        with contextlib.suppress(Crash):
            cluster.step(crash_after=writes)
        if len(cluster.pods) == pods:
            break
    return cluster


@pytest.mark.parametrize("pods", [1, 2, 3])
def test_a_gang_that_is_not_whole_begins_anew_and_trains(pods: int, earlier_names: pytest.MonkeyPatch) -> None:
    cluster = begun(pods=pods, device={"type": "CPU", "count": 4})
    earlier_names.undo()
    cluster.started()
    assert cluster.status.phase == "Running"
    assert config_maps(cluster) <= set(cluster.config_maps)
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.attempts) == (1, 0, ())
    assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in cluster.pods.values()} == {"1"}


def test_the_time_of_its_attempt_is_counted(earlier_names: pytest.MonkeyPatch) -> None:
    cluster = begun(pods=1, device={"type": "CPU", "count": 4})
    earlier_names.undo()
    cluster.now += 40
    cluster.settle()
    assert cluster.status.attempt == 1
    assert cluster.status.goodput is not None
    assert cluster.status.goodput.attempt_seconds == 40


def test_a_gang_that_is_whole_goes_on(earlier_names: pytest.MonkeyPatch) -> None:
    cluster = Cluster(job()).started()
    before = set(cluster.pods)
    earlier_names.undo()
    cluster.settle()
    assert (set(cluster.pods), cluster.status.attempt, cluster.status.phase) == (before, 0, "Running")


def placed(cluster: Cluster) -> None:
    """Bind the pods of the gang and run them."""
    cluster.settle()
    cluster.run_all()
    cluster.settle()


def allocated(cluster: Cluster) -> None:
    """Give each of them its device."""
    for index in (0, 1):
        cluster.allocate(index, index, f"10.0.0.{index + 1}")
    cluster.settle()


def test_a_gang_that_waits_for_its_rank_table_begins_anew(earlier_names: pytest.MonkeyPatch) -> None:
    cluster = Cluster(job(device=ASCEND, failurePolicy={"maxRestarts": 0}))
    placed(cluster)
    earlier_names.undo()
    allocated(cluster)
    placed(cluster)
    allocated(cluster)
    assert is_true(cluster.status, "RankTableReady")
    assert (cluster.status.attempt, cluster.status.restarts_count_towards_max) == (1, 0)
    assert names.rank_table("digits", cluster.job.uid, "base", 1) in cluster.config_maps


def test_a_gang_that_has_its_rank_table_goes_on(earlier_names: pytest.MonkeyPatch) -> None:
    cluster = Cluster(job(device=ASCEND))
    placed(cluster)
    allocated(cluster)
    assert is_true(cluster.status, "RankTableReady")
    earlier_names.undo()
    cluster.settle()
    assert cluster.status.attempt == 0
