"""Reports what training does to Prometheus, /progress, metrics.csv and the log."""

import logging
import math
import time
from collections.abc import Callable

from resnetboost_api.status import BestCheckpoint
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.progress import ProgressState, Window
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.record import EvaluationRecord, Row, StepRecord
from resnetboost_trainer.metrics.stragglers import Straggler, Stragglers

LOG_SECONDS = 5.0
WINDOW_STEPS = 50

log = logging.getLogger(__name__)


class MetricLogger:
    """Reports the steps of one rank. A row of metrics.csv waits for `settle`, so that an evaluation can join it."""

    def __init__(
        self,
        progress: ProgressState,
        metrics: Metrics,
        csv_log: CsvLog,
        *,
        total: int,
        per_epoch: int,
        batch: int,
        ranks: int,
        stragglers: Stragglers | None = None,
        publish: Callable[[Row], object] = lambda row: None,
    ) -> None:
        """`stragglers` judges the ranks of a gang; None for one rank. `publish` gets each row of metrics.csv too."""
        self.progress, self.metrics, self.csv_log = progress, metrics, csv_log
        self.total, self.per_epoch, self.batch, self.ranks = total, per_epoch, batch, ranks
        self._window, self._durations = Window(min(WINDOW_STEPS, per_epoch)), Window(min(WINDOW_STEPS, per_epoch))
        self.stragglers = stragglers
        self._publish = publish
        self._row: Row | None = None  # of the last step, begun by `_begin_row`
        self._marks: Row = {}  # of the next row alone
        self.skipped_batches = 0
        self._logged = -math.inf  # log the first step at once: users wait to see that it runs
        metrics.total_steps.set(total)
        progress.update(total_steps=total)

    def state(self, name: str) -> None:
        """Enter a state: Starting, Compiling, Training, Evaluating or Finished."""
        self.progress.update(state=name)

    def resumed(self, step: int) -> None:
        """Report the step after which training starts."""
        self.progress.update(step=step, resumed_step=step, epoch=self._epoch(step), percent=self._percent(step))

    def skips(self, batches: int) -> None:
        """Report by how many batches roll-backs put the data order ahead of the steps."""
        self.skipped_batches = batches

    def rolled_back(self, from_step: int, step: int) -> None:
        """Report that the next step is the first one since a roll-back from that step."""
        self._marks = {"rolled_back_from": from_step}
        text = "went back from step %d to step %d; the data order is %d batches ahead of the steps from here on"
        log.warning(text, from_step, step, self.skipped_batches)

    def diverged(self, step: int, learning_rate: float | None) -> None:
        """Mark the row of a step that diverged; if its update was not made, it has none yet."""
        if self._row is None or self._row["step"] != step:
            self.settle()
            self._row = self._begin_row(step) | {"loss": math.nan, "learning_rate": learning_rate}
        self._row |= {"diverged": 1}
        self.settle()

    def saves(self, step: int, every_steps: int) -> None:
        """Report that this rank writes the checkpoints; a restart would resume from that step."""
        self.metrics.saves(step, every_steps)

    def step(self, step: StepRecord) -> None:
        """Report a finished step."""
        self.settle()
        self.metrics.observe_step(step, self.ranks)
        self.metrics.images.inc(self.batch / self.ranks)
        self.metrics.epoch.set(step.step / self.per_epoch)
        if step.left_out:
            log.info("step %d is left out: its gradient overflows at loss scale %g", step.step, step.loss_scale)
        if not step.compiled:
            self._durations.add(step.step_seconds)
        self._window.add(step.loss, step.accuracy)
        self._judge(step)
        self._update_progress(step)
        self._row = self._csv(step)
        if time.monotonic() - self._logged >= LOG_SECONDS or step.step == self.total:
            self._log(step)

    def evaluated(self, result: EvaluationRecord, seconds: float) -> None:
        """Report an evaluation after the last step."""
        self.metrics.observe_evaluation(result, seconds)
        self.progress.update(top1=result.top1, top5=result.top5, test_loss=result.loss)
        self._add(result.row())
        text, step = "test of step %d: top-1 %.2f %%, top-5 %.2f %%, loss %.4f", self.progress.read().step
        log.info(text, step, result.top1 * 100, result.top5 * 100, result.loss)

    def evaluated_average(self, result: EvaluationRecord) -> None:
        """Report an evaluation of the averaged weights after the last step."""
        self.metrics.observe_ema_evaluation(result)
        self._add(result.row("ema_"))
        text = "test of the averaged weights: top-1 %.2f %%, top-5 %.2f %%, loss %.4f"
        log.info(text, result.top1 * 100, result.top5 * 100, result.loss)

    def best(self, found: BestCheckpoint) -> None:
        """Report the best checkpoint on disk. Called from the writer's thread too."""
        if self.progress.read().best != found:
            log.info("best checkpoint: step %d, %s %.6g", found.step, found.metric, found.value)
        self.metrics.observe_best(found)
        self.progress.update(best=found)

    def stalled(self, seconds: float) -> None:
        """Report the seconds that training waited for a checkpoint."""
        self.metrics.checkpoint_stall_seconds.observe(seconds)

    def saved(self, step: int, size_bytes: int, seconds: float) -> None:
        """Report a checkpoint on disk. Called from the writer's thread."""
        self.metrics.checkpoint_seconds.observe(seconds)
        self.metrics.checkpoint_bytes.set(size_bytes)
        self.metrics.checkpoint_step.set(step)
        self.metrics.checkpoint_time.set(time.time())
        self.progress.update(checkpoint_step=step)
        log.info("checkpoint of step %d: %.1f MB in %.2f s", step, size_bytes / 1e6, seconds)

    def snapshot_saved(self, step: int, size_bytes: int, seconds: float) -> None:
        """Report a snapshot on disk. Called from the writer's thread."""
        self.metrics.snapshot_seconds.observe(seconds)
        self.metrics.snapshot_step.set(step)
        log.info("snapshot of step %d: %.1f MB in %.2f s", step, size_bytes / 1e6, seconds)

    def close(self) -> None:
        """Write the last row and close the file."""
        self.settle()
        self.csv_log.close()

    def settle(self) -> None:
        """Write the row of the last step. Call it before its checkpoint: a resumed run does not repeat the step."""
        if self._row is not None:
            self.csv_log.add(**self._row)
            self._publish(self._row)
            self._row = None

    def _begin_row(self, step: int) -> Row:
        """Return the row of a step with what every row has."""
        place: Row = {"step": step, "epoch": step / self.per_epoch, "time": round(time.time(), 3)}
        return place | {"skipped_batches": self.skipped_batches, "ranks": self.ranks}

    def _add(self, columns: Row) -> None:
        """Add columns to the row of the last step; it has none yet in a run that resumed after its last step."""
        self._row = (self._row or self._begin_row(self.progress.read().step)) | columns

    def _judge(self, step: StepRecord) -> None:
        """Report which ranks are slow, at the end of each window of steps."""
        if self.stragglers is None or step.compute_seconds_by_rank is None:
            return
        before = {found.rank for found in self.stragglers.found}
        if not self.stragglers.add(step.step, step.compute_seconds_by_rank):
            return
        self.metrics.observe_ranks(self.stragglers)
        self.progress.update(stragglers=self.stragglers.found)
        for found in self.stragglers.found:
            if found.rank not in before:
                log.warning("%s", _slow(found))

    def _update_progress(self, step: StepRecord) -> None:
        loss, accuracy = self._window.means()
        self.progress.update(
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
            self.progress.update(step_seconds=round(seconds, 5), images_per_second=speed, eta_seconds=eta)
        self.progress.beat()

    def _csv(self, step: StepRecord) -> Row:
        speed: Row = {"images_per_second": self.batch / step.step_seconds}
        marks, self._marks = self._marks, {}
        return self._begin_row(step.step) | step.row() | self.metrics.row(step) | speed | marks

    def _log(self, step: StepRecord) -> None:
        self._logged = time.monotonic()
        loss, accuracy = self._window.means()
        progress = self.progress.read()
        text = "step %d/%d, epoch %.2f: loss %.4f, accuracy %.4f, learning rate %.4g, %s images/s"
        speed = progress.images_per_second or "compiled; no"
        log.info(text, step.step, self.total, progress.epoch, loss, accuracy, step.learning_rate, speed)

    def _epoch(self, step: int) -> float:
        return round(step / self.per_epoch, 2)

    def _percent(self, step: int) -> int:
        return 100 * step // self.total


def _slow(found: Straggler) -> str:
    times = f"{1000 * found.seconds:.4g} ms a step, {found.seconds / found.median:.2f} times the gang's median"
    pod = f" (the pod of index {found.index})" if found.index != found.rank else ""
    return f"rank {found.rank}{pod} is slow: it computes {times}, and all ranks wait for it"
