"""What a rank reports: its Prometheus metrics, and the rows of metrics.csv that its trackers get too."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.logger import MetricLogger
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.record import EvaluationRecord, Row
from support.steprecords import record
from support.trainerconfig import GOOD

AVERAGED = GOOD | {"ema": {"decay": 0.9}}


def started(
    config: Mapping[str, object] = GOOD, path: Path | None = None, publish: Callable[[Row], object] = lambda row: None
) -> tuple[Metrics, MetricLogger]:
    metrics = Metrics(msgspec.convert(config, Config), 0, "GEMM")
    board, log = ProgressState(Progress(state="Starting", stage="base", attempt=0)), CsvLog(path)
    return metrics, MetricLogger(board, metrics, log, total=66, per_epoch=22, batch=64, ranks=2, publish=publish)


def series(metrics: Metrics) -> dict[str, float]:
    """Value of each exposed series by name."""
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_no_loss_is_exposed_before_the_first_step() -> None:
    metrics, _ = started()
    found = series(metrics)
    assert not {"resnetboost_loss", "resnetboost_test_top1_ratio", "resnetboost_checkpoint_step"} & found.keys()
    assert found["resnetboost_steps_planned"] == 66
    assert found["resnetboost_images_total"] == 0, "a counter that begins with its first image hides it from rate()"
    metrics.loss.set(2.5)
    assert series(metrics)["resnetboost_loss"] == 2.5


def test_the_resume_step_is_exposed_before_the_first_checkpoint() -> None:
    metrics, logger = started()
    logger.saves(44, every_steps=20)
    found = series(metrics)
    assert (found["resnetboost_checkpoint_step"], found["resnetboost_checkpoint_every_steps"]) == (44, 20)
    assert found["resnetboost_checkpoint_seconds_count"] == 0, "rate() would miss the first checkpoint"
    assert "resnetboost_checkpoint_timestamp_seconds" not in found


def test_without_checkpoints_no_save_times_are_exposed() -> None:
    metrics, logger = started(GOOD | {"snapshots": {"everyEpochs": 1, "from": 0, "keep": 5}})
    written = [f"resnetboost_{what}_seconds_{part}" for what in ("checkpoint", "snapshot") for part in ("sum", "count")]
    assert not series(metrics).keys() & {*written, "resnetboost_checkpoint_seconds_bucket"}
    logger.saves(0, every_steps=20)
    assert set(written) <= series(metrics).keys()


def test_no_created_timestamps_are_exposed() -> None:
    assert not [name for name in series(started()[0]) if name.endswith("_created")]


def skip_steps(logger: MetricLogger) -> None:
    logger.resumed(66)
    logger.evaluated(EvaluationRecord(0.9, 1.0, 0.25), 1.0)
    logger.evaluated_average(EvaluationRecord(0.95, 1.0, 0.2))


def make_steps(logger: MetricLogger) -> None:
    logger.step(record(65))
    logger.step(record(66))
    logger.evaluated(EvaluationRecord(0.9, 1.0, 0.25), 1.0)


def diverge(logger: MetricLogger) -> None:
    logger.step(record(65))
    logger.diverged(65, 0.1)
    logger.diverged(66, 0.1)


@pytest.mark.parametrize("happens", [skip_steps, make_steps, diverge])
def test_each_row_has_its_step_epoch_time_and_ranks_whatever_happened(
    happens: Callable[[MetricLogger], None], tmp_path: Path
) -> None:
    """Also one that holds an evaluation alone: a run that resumes after its last step makes no other."""
    published: list[Row] = []
    _, logger = started(AVERAGED, tmp_path / "metrics.csv", published.append)
    happens(logger)
    logger.close()
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows][-1] == 66
    for row, sent in zip(rows, published, strict=True):
        assert float(row["epoch"]) == pytest.approx(int(row["step"]) / 22)
        assert float(row["time"]) > 0
        assert row["ranks"] == "2"
        assert (sent["step"], sent["time"]) == (int(row["step"]), float(row["time"]))


def test_a_run_that_resumes_after_its_last_step_records_its_evaluation(tmp_path: Path) -> None:
    _, logger = started(AVERAGED, tmp_path / "metrics.csv")
    skip_steps(logger)
    logger.close()
    with (tmp_path / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["top1"], row["ema_top1"], row["ema_test_loss"], row["loss"]) == ("0.9", "0.95", "0.2", "")


def test_the_row_of_a_step_that_diverged_says_so(tmp_path: Path) -> None:
    _, logger = started(AVERAGED, tmp_path / "metrics.csv")
    diverge(logger)
    logger.close()
    with (tmp_path / "metrics.csv").open() as file:
        known, unknown = csv.DictReader(file)
    assert (known["diverged"], float(known["loss"])) == ("1", 1.0)
    assert unknown["diverged"] == "1" and math.isnan(float(unknown["loss"]))
