"""A rank's Prometheus metrics before its first step, and those of checkpoints."""

from collections.abc import Mapping

import msgspec
from prometheus_client import generate_latest

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.logger import MetricLogger
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.prometheus import Metrics
from support.trainerconfig import GOOD


def started(config: Mapping[str, object] = GOOD) -> tuple[Metrics, MetricLogger]:
    metrics = Metrics(msgspec.convert(config, Config), 0, "GEMM")
    board = ProgressState(Progress(state="Starting", stage="base", attempt=0))
    return metrics, MetricLogger(board, metrics, CsvLog(None), total=66, per_epoch=22, batch=64, ranks=2)


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
