"""Tells what training does - to Prometheus, to /progress, to metrics.csv and to the log - and decides nothing."""

import logging
import math
import time

import msgspec

from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.distributed.adasum.adaptive_sum import Summed
from resnetboost_trainer.engine.evaluator import Result
from resnetboost_trainer.metrics import algorithms
from resnetboost_trainer.metrics.csv_log import History
from resnetboost_trainer.metrics.progress import Board, Window
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.optim.pca.descent import Searched
from resnetboost_trainer.optim.thor.curvature import Update

LOG_SECONDS = 5.0
WINDOW_STEPS = 50

log = logging.getLogger(__name__)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step. `step` counts finished steps; times are this rank's, the rest is the gang's mean."""

    step: int
    learning_rate: float
    loss: float
    accuracy: float
    gradient_norm: float
    step_seconds: float
    data_wait_seconds: float
    compute_seconds: float
    collective_seconds: float
    slowest_rank: int | None
    slowest_compute_seconds: float | None
    compiled: bool
    curvature: Update | None
    combined: Summed | Searched | None
    left_out: bool
    loss_scale: float


class Teller:
    """One rank's voice. Rows of metrics.csv wait for `settle`, so that an evaluation can join its step's row."""

    def __init__(
        self, board: Board, metrics: Metrics, history: History, *, total: int, per_epoch: int, batch: int, ranks: int
    ) -> None:
        self.board, self.metrics, self.history = board, metrics, history
        self.total, self.per_epoch, self.batch, self.ranks = total, per_epoch, batch, ranks
        self._window, self._durations = Window(min(WINDOW_STEPS, per_epoch)), Window(min(WINDOW_STEPS, per_epoch))
        self._row: dict[str, float | None] = {}
        self._logged = -math.inf  # the first step is always told: somebody waits to see that it runs
        metrics.total_steps.set(total)
        board.update(total_steps=total)

    def state(self, name: str) -> None:
        """Starting, Compiling, Training, Evaluating or Finished."""
        self.board.update(state=name)

    def resumed(self, step: int) -> None:
        """Training begins after that step."""
        self.board.update(step=step, resumed_step=step, epoch=self._epoch(step), percent=self._percent(step))

    def saves(self, step: int, every_steps: int) -> None:
        """This rank writes checkpoints; training goes on from that step, as it would after a restart."""
        self.metrics.saves(step, every_steps)

    def step(self, step: Step) -> None:
        """A step is done. The one that compiled is no sample of anything and stays out of the histograms."""
        self.settle()
        algorithms.observe(self.metrics, step.curvature, step.compiled)
        algorithms.observe(self.metrics, step.combined, step.compiled)
        if not step.compiled:
            self._observe(step)
            self._durations.add(step.step_seconds)
        self._window.add(step.loss, step.accuracy)
        self._show(step)
        self._row = self._csv(step)
        if time.monotonic() - self._logged >= LOG_SECONDS or step.step == self.total:
            self._log(step)

    def evaluated(self, result: Result, seconds: float) -> None:
        """An evaluation after the last told step is done."""
        self.metrics.evaluation_seconds.observe(seconds)
        self.metrics.top1.set(result.top1)
        self.metrics.top5.set(result.top5)
        self.metrics.test_loss.set(result.loss)
        self.board.update(top1=result.top1, top5=result.top5, test_loss=result.loss)
        self._row |= {"top1": result.top1, "top5": result.top5, "test_loss": result.loss}
        log.info("test: top-1 %.2f %%, top-5 %.2f %%, loss %.4f", result.top1 * 100, result.top5 * 100, result.loss)

    def evaluated_average(self, result: Result) -> None:
        """An evaluation of the averaged weights after the last told step is done."""
        self.metrics.ema_top1.set(result.top1)
        self.metrics.ema_top5.set(result.top5)
        self.metrics.ema_loss.set(result.loss)
        self._row |= {"ema_top1": result.top1, "ema_top5": result.top5, "ema_test_loss": result.loss}
        text = "test of the averaged weights: top-1 %.2f %%, top-5 %.2f %%, loss %.4f"
        log.info(text, result.top1 * 100, result.top5 * 100, result.loss)

    def stalled(self, seconds: float) -> None:
        """Training stood still that long for a checkpoint."""
        self.metrics.checkpoint_stall_seconds.observe(seconds)

    def saved(self, manifest: Manifest, size_bytes: int, seconds: float) -> None:
        """A checkpoint is on disk. Called from the writer's thread."""
        self.metrics.checkpoint_seconds.observe(seconds)
        self.metrics.checkpoint_bytes.set(size_bytes)
        self.metrics.checkpoint_step.set(manifest.step)
        self.metrics.checkpoint_time.set(time.time())
        self.board.update(checkpoint_step=manifest.step)
        log.info("checkpoint of step %d: %.1f MB in %.2f s", manifest.step, size_bytes / 1e6, seconds)

    def snapshot_saved(self, manifest: Manifest, size_bytes: int, seconds: float) -> None:
        """A snapshot is on disk. Called from the writer's thread."""
        self.metrics.snapshot_seconds.observe(seconds)
        self.metrics.snapshot_step.set(manifest.step)
        log.info("snapshot of step %d: %.1f MB in %.2f s", manifest.step, size_bytes / 1e6, seconds)

    def close(self) -> None:
        """Write what is still waiting."""
        self.settle()
        self.history.close()

    def settle(self) -> None:
        """Nothing more belongs to the row of the last step: from its checkpoint on, nobody would tell it again."""
        if self._row:
            self.history.add(**self._row)
            self._row = {}

    def _observe(self, step: Step) -> None:
        self.metrics.step_seconds.observe(step.step_seconds)
        self.metrics.data_wait_seconds.observe(step.data_wait_seconds)
        self.metrics.compute_seconds.observe(step.compute_seconds)
        if self.ranks > 1:  # one rank has no collective: its series stays empty instead of showing zeros
            self.metrics.collective_seconds.observe(step.collective_seconds)

    def _show(self, step: Step) -> None:
        metrics = self.metrics
        metrics.images.inc(self.batch / self.ranks)
        metrics.loss.set(step.loss)
        metrics.accuracy.set(step.accuracy)
        metrics.loss_scale.set(step.loss_scale)
        if step.left_out:
            metrics.steps_left_out.inc()
            log.info("step %d is left out: its gradient overflows at loss scale %g", step.step, step.loss_scale)
        else:
            metrics.gradient_norm.set(step.gradient_norm)
        metrics.learning_rate.set(step.learning_rate)
        metrics.step.set(step.step)
        metrics.epoch.set(step.step / self.per_epoch)
        loss, accuracy = self._window.means()
        self.board.update(
            state="Training",
            step=step.step,
            epoch=self._epoch(step.step),
            percent=self._percent(step.step),
            loss=round(loss, 5),
            accuracy=round(accuracy, 5),
            learning_rate=step.learning_rate,
            slowest_rank=step.slowest_rank,
            slowest_compute_seconds=step.slowest_compute_seconds and round(step.slowest_compute_seconds, 5),
        )
        if not step.compiled:
            (seconds,) = self._durations.means()
            speed, eta = round(self.batch / seconds, 1), round(seconds * (self.total - step.step))
            self.board.update(step_seconds=round(seconds, 5), images_per_second=speed, eta_seconds=eta)
        self.board.beat()

    def _csv(self, step: Step) -> dict[str, float | None]:
        apart = ("compiled", "curvature", "combined")
        row = {name: getattr(step, name) for name in step.__struct_fields__ if name not in apart}
        row |= algorithms.columns(step.curvature) | algorithms.columns(step.combined)
        speed = self.batch / step.step_seconds
        return row | {"epoch": step.step / self.per_epoch, "time": round(time.time(), 3), "images_per_second": speed}

    def _log(self, step: Step) -> None:
        self._logged = time.monotonic()
        loss, accuracy = self._window.means()
        progress = self.board.read()
        text = "step %d/%d, epoch %.2f: loss %.4f, accuracy %.4f, learning rate %.4g, %s images/s"
        speed = progress.images_per_second or "compiled; no"
        log.info(text, step.step, self.total, progress.epoch, loss, accuracy, step.learning_rate, speed)

    def _epoch(self, step: int) -> float:
        return round(step / self.per_epoch, 2)

    def _percent(self, step: int) -> int:
        return 100 * step // self.total
