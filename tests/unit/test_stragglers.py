"""Slow ranks as the trainer finds them: medians over windows, two thresholds, and what is reported."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from resnetboost_trainer.config import Config, environment
from resnetboost_trainer.distributed import ranktable
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.logger import MetricLogger
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.stragglers import MOST, WINDOW_STEPS, Stragglers
from support.steprecords import record
from support.trainerconfig import GOOD

FACTOR = 1.5


def judged(ranks: Stragglers, seconds: Sequence[float]) -> list[int]:
    """The ranks reported after one more window in which each step takes that long."""
    ends = [ranks.add(WINDOW_STEPS * 7 + step, seconds) for step in range(1, WINDOW_STEPS + 1)]
    assert ends == [False] * (WINDOW_STEPS - 1) + [True]
    return [found.rank for found in ranks.found]


def test_the_slow_rank_is_named_with_its_times_and_its_pod() -> None:
    ranks = Stragglers(FACTOR, [2, 0, 1])
    assert judged(ranks, [0.1, 0.2, 0.1]) == [1]
    (found,) = ranks.found
    assert (found.rank, found.index, found.seconds, found.median) == (1, 0, 0.2, 0.1)


def test_of_two_ranks_the_faster_one_sets_the_pace() -> None:
    """The mean of both would be 1.5 times the faster one's: one twice as slow would seem 1.33 times as slow."""
    assert judged(Stragglers(FACTOR, range(2)), [0.2, 0.1]) == [0]


def test_a_uniform_gang_has_no_slow_rank() -> None:
    assert judged(Stragglers(FACTOR, range(4)), [0.1, 0.11, 0.12, 0.1]) == []


def test_single_slow_steps_make_no_slow_rank() -> None:
    """Less than half of a window: a checkpoint, a page cache, a neighbour."""
    ranks = Stragglers(FACTOR, range(2))
    for step in range(WINDOW_STEPS):
        ranks.add(step, [0.1, 9.0 if step % 5 == 0 else 0.1])
    assert ranks.found == ()


def test_the_slowest_are_reported_first_and_no_more_than_a_few() -> None:
    slow = [0.1] * 30 + [0.2 + 0.01 * rank for rank in range(12)]
    assert judged(Stragglers(FACTOR, range(42)), slow) == list(range(41, 41 - MOST, -1))


def test_between_the_thresholds_everybody_stays_what_it_is() -> None:
    ranks = Stragglers(FACTOR, range(4))
    assert judged(ranks, [0.1, 0.1, 0.1, 0.16]) == [3]
    since = ranks.found[0].since_step
    assert judged(ranks, [0.1, 0.1, 0.14, 0.14]) == [3]
    assert ranks.found[0].since_step == since
    assert judged(ranks, [0.1, 0.1, 0.14, 0.12]) == []


@given(st.lists(st.floats(1.0, 3.0), min_size=1, max_size=30), st.floats(1.1, 2.5))
def test_a_rank_is_slow_from_the_upper_threshold_until_below_the_lower_one(ratios: list[float], factor: float) -> None:
    ranks, slow, since = Stragglers(factor, range(3)), False, None
    for number, ratio in enumerate(ratios):
        edges = (factor, (1 + factor) / 2)
        if min(abs(ratio - edge) for edge in edges) < 1e-3:  # rounding decides
            continue
        before, slow = slow, ratio > edges[slow]
        for step in range(WINDOW_STEPS):
            ranks.add(number * WINDOW_STEPS + step, [0.1, 0.1 * ratio, 0.1])
        assert [found.rank for found in ranks.found] == [1] * slow
        if slow and before:
            assert ranks.found[0].since_step == since, "the same time of being slow"
        since = ranks.found[0].since_step if slow else None


@given(st.data())
def test_changes_are_rare_however_the_times_move(data: st.DataObject) -> None:
    """No flapping: within a band as wide as half of the factor's excess, nothing ever changes twice."""
    ranks, seen = Stragglers(FACTOR, range(3)), []
    for number in range(10):
        ratio = data.draw(st.floats(1.26, 1.74))
        for step in range(WINDOW_STEPS):
            ranks.add(number * WINDOW_STEPS + step, [0.1, 0.1 * ratio, 0.1])
        seen.append(ranks.is_slow(1))
    assert seen == sorted(seen)


@pytest.mark.parametrize("seconds", [[0.0, 0.0, 0.0], [float("nan"), 0.1, 0.1], [float("inf"), 0.1, 0.1]])
def test_times_that_are_no_times_say_nothing(seconds: list[float]) -> None:
    ranks = Stragglers(FACTOR, range(3))
    judged(ranks, [0.1, 0.1, 0.3])
    assert judged(ranks, seconds) == [2]


class TestReports:
    """What a rank tells of it: /progress, its log, Prometheus."""

    @staticmethod
    def rank(number: int) -> MetricLogger:
        metrics = Metrics(msgspec.convert(GOOD, Config), number, "GEMM")
        board = ProgressState(Progress(state="Starting", stage="base", attempt=0))
        ranks = Stragglers(FACTOR, range(2))
        return MetricLogger(board, metrics, CsvLog(None), total=400, per_epoch=22, batch=64, ranks=2, stragglers=ranks)

    @staticmethod
    def train(logger: MetricLogger, times: Sequence[float] | None, steps: int = WINDOW_STEPS) -> None:
        first = logger.progress.read().step
        for step in range(first + 1, first + steps + 1):
            seconds = None if times is None else np.asarray(times, np.float32)
            logger.step(record(step, gradient_seconds=0.1, compute_seconds_by_rank=seconds))

    @staticmethod
    def told(logger: MetricLogger) -> dict[str, float]:
        lines = generate_latest(logger.metrics.registry).decode().splitlines()
        return {
            line.partition("{")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if "_straggler{" in line or "_ratio{" in line
        }

    def test_each_rank_exposes_its_own_ratio_so_that_no_label_grows(self) -> None:
        for number, ratio in ((0, 1.0), (1, 2.0)):
            logger = self.rank(number)
            self.train(logger, [0.1, 0.2])
            found = self.told(logger)
            assert found["resnetboost_compute_ratio"] == pytest.approx(ratio)
            assert found["resnetboost_straggler"] == number

    def test_progress_names_the_rank_until_it_keeps_the_pace(self, caplog: pytest.LogCaptureFixture) -> None:
        logger = self.rank(0)
        self.train(logger, [0.1, 0.2])
        self.train(logger, [0.1, 0.2])
        (found,) = msgspec.json.decode(msgspec.json.encode(logger.progress.read()))["stragglers"]
        assert found == {"rank": 1, "index": 1, "seconds": 0.2, "median": 0.1, "sinceStep": WINDOW_STEPS}
        assert caplog.text.count("rank 1 is slow: it computes 200 ms a step, 2.00 times the gang's median") == 1
        self.train(logger, [0.1, 0.1])
        assert logger.progress.read().stragglers == ()

    def test_steps_that_are_no_samples_are_not_counted(self) -> None:
        """Compiled ones, and those whose ranks wait for each other while they compute."""
        logger = self.rank(1)
        self.train(logger, None, 3 * WINDOW_STEPS)
        assert not {"resnetboost_compute_ratio", "resnetboost_straggler"} & self.told(logger).keys()


def test_a_rank_table_says_which_pod_a_rank_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods 0, 1 and 2 have ranks 2, 0 and 1: so ranks 0, 1 and 2 are of pods 1, 2 and 0."""
    table = b'{"version":"1.0","status":"completed"}'
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / ranktable.TABLE).write_bytes(table)
    told = {"sha256": hashlib.sha256(table).hexdigest(), "ranks": [2, 0, 1]}
    (tmp_path / ranktable.RANKS).write_text(json.dumps(told))
    variables = {"RESNETBOOST_INDEX": "1", "RESNETBOOST_WORLD_SIZE": "3", "RESNETBOOST_RANK_TABLE": str(tmp_path)}
    placed = ranktable.place(environment({"RESNETBOOST_CONFIG": "/config", **variables}))
    assert (placed.rank, placed.leader, placed.indexes) == (0, 2, (1, 2, 0))
    found = Stragglers(FACTOR, placed.indexes)
    judged(found, [0.1, 0.1, 0.3])
    assert (found.found[0].rank, found.found[0].index) == (2, 0)
