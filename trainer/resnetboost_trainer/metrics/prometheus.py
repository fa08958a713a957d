"""Prometheus metrics of one rank that every algorithm has, and those of its algorithm."""

from collections.abc import Sequence
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter

from resnetboost_api.status import BestCheckpoint, PreflightResult
from resnetboost_trainer import __version__
from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import EvaluationRecord, StepRecord
from resnetboost_trainer.metrics.series import LateGauge, SeriesFactory
from resnetboost_trainer.metrics.stragglers import Stragglers


class Metrics:
    """All series of a rank, in its own registry. The label `rank` shows which rank is the slowest."""

    def __init__(
        self, config: Config, rank: int, convolution: str, algorithms: Sequence[type[AlgorithmMetrics]] = ()
    ) -> None:
        """`algorithms` add series if they apply to the stage's configuration."""
        self.registry = CollectorRegistry()
        self._rank = rank
        labels = (config.job.name, config.job.namespace, config.stage, str(rank))
        self._series = series = SeriesFactory(self.registry, labels)
        self._step_times()
        self._checkpoints(config)
        self._evaluations(config)
        self._training(config)
        self._ranks()
        self._algorithms = {each.REPORT: each(series) for each in algorithms if each.applies(config)}
        if config.preflight is not None:
            self._preflight()
        series.info(
            "trainer_build_info",
            "Versions; always 1.",
            version=__version__,
            mindspore=metadata.version("mindspore"),
            convolution=convolution,
        )

    def _step_times(self) -> None:
        """Create the series of where the time of a step goes."""
        series = self._series
        self.step_seconds = series.histogram("step_seconds", "A whole training step.")
        self.data_wait_seconds = series.histogram("data_wait_seconds", "Waiting for the next batch.")
        self.compute_seconds = series.histogram(
            "compute_seconds", "Forward, backward and update of this rank, with the all-reduces of buckets."
        )
        self.collective_seconds = series.histogram("collective_seconds", "The gradients' all-reduce, with its wait.")

    def _checkpoints(self, config: Config) -> None:
        """Create the series of checkpoints, of the best one and of snapshots."""
        series = self._series
        self.checkpoint_seconds = series.late_histogram(
            "checkpoint_seconds", "Writing a checkpoint, in the background."
        )
        self.checkpoint_stall_seconds = series.histogram(
            "checkpoint_stall_seconds", "Training stopped for a checkpoint."
        )
        self.checkpoint_bytes = series.gauge("checkpoint_bytes", "Size of the newest checkpoint.")
        self.checkpoint_step = series.gauge(
            "checkpoint_step", "Step of the newest checkpoint, from which a restart would go on."
        )
        self.checkpoint_time = series.gauge("checkpoint_timestamp_seconds", "When the newest checkpoint was complete.")
        self.checkpoint_every = series.gauge("checkpoint_every_steps", "Steps from one checkpoint to the next.")
        if config.checkpoint.best is not None:
            self.best_step = series.gauge("best_checkpoint_step", "Step of the best checkpoint.")
        self._takes_snapshots = config.snapshots is not None
        if self._takes_snapshots:
            self.snapshot_seconds = series.late_histogram("snapshot_seconds", "Writing a snapshot, in the background.")
            self.snapshot_step = series.gauge("snapshot_step", "Step of the newest snapshot.")

    def _evaluations(self, config: Config) -> None:
        """Create the series of evaluations, also of the averaged weights."""
        series = self._series
        self.evaluation_seconds = series.histogram("evaluation_seconds", "An evaluation of the whole test set.")
        self.top1 = series.gauge("test_top1_ratio", "Top-1 accuracy on the test set.")
        self.top5 = series.gauge("test_top5_ratio", "Top-5 accuracy on the test set.")
        self.test_loss = series.gauge("test_loss", "Cross entropy on the test set.")
        if config.ema is not None:
            self._ema()

    def _training(self, config: Config) -> None:
        """Create the series of what training does: how far it is, how well it learns, what it leaves out."""
        series = self._series
        self.loss = series.gauge("loss", "Training loss, mean over the gang.")
        self.accuracy = series.gauge("accuracy_ratio", "Training top-1 accuracy, mean over the gang.")
        self.gradient_norm = series.gauge("gradient_norm", "Euclidean norm of the mean gradient.")
        self.learning_rate = series.gauge("learning_rate", "Learning rate of the last step.")
        self.epoch = series.gauge("epoch", "Epochs done, as a fraction.")
        self.step = series.gauge("step", "Steps done.")
        self.total_steps = series.gauge("steps_planned", "Steps the stage has.")
        self.images = series.counter("images", "Images this rank has trained on.")
        self.corrupt_images = series.counter(
            "corrupt_images", "Images this rank skipped because they cannot be used, each once."
        )
        self.loss_scale = series.gauge("loss_scale", "Factor on the loss in the backward pass.")
        self.steps_left_out = series.counter(
            "steps_left_out",
            "Steps left out because the gradient overflowed at the loss scale they had, the same on every rank.",
        )
        self.noise_scale = None
        if config.gradient_noise:
            self.noise_scale = series.gauge(
                "gradient_noise_scale_images",
                "Gradient noise scale: the global batch from which images are worth less.",
            )

    def _ranks(self) -> None:
        """Create the series of this rank among the others."""
        series = self._series
        self.compute_ratio = series.gauge(
            "compute_ratio", "This rank's median compute time in the last window of steps, over the gang's."
        )
        self.straggler = series.gauge("straggler", "1 while this rank counts as slow, else 0.")

    def _preflight(self) -> None:
        """Create the series of a stage that begins with a preflight."""
        series = self._series
        self.preflight_seconds = series.gauge("preflight_seconds", "Duration of the attempt's preflight.")
        self.preflight_compute = series.gauge(
            "preflight_compute_flops", "Floating-point operations per second of this rank in the preflight."
        )
        self.preflight_link = series.gauge(
            "preflight_link_bytes_per_second", "Rate of this rank's best all-reduce with a neighbour in the preflight."
        )
        self.preflight_suspects = series.gauge("preflight_suspects", "Ranks that the preflight named.")

    def observe_best(self, found: BestCheckpoint) -> None:
        """Observe the best checkpoint."""
        self.best_step.set(found.step)

    def observe_preflight(self, result: PreflightResult, compute: float, link: float) -> None:
        """Observe the preflight; this rank's rates in GFLOP/s and MB/s, `link` 0 where it has no neighbour."""
        self.preflight_seconds.set(result.seconds)
        self.preflight_suspects.set(result.suspect_count)
        self.preflight_compute.set(compute * 1e9)
        if link:
            self.preflight_link.set(link * 1e6)

    def tracking(self, trackers: tuple[str, ...]) -> dict[str, Counter]:
        """Create the series of the rank that has trackers, and return the counter of each."""
        text = "Points that a tracker of experiments did not get: its queue was full, or it refused them."
        return self._series.counters("tracker", trackers, "tracker_dropped_points", text)

    def _ema(self) -> None:
        """Create the series of a stage that averages its weights."""
        series = self._series
        self.ema_top1 = series.gauge("test_ema_top1_ratio", "Top-1 accuracy of the averaged weights on the test set.")
        self.ema_top5 = series.gauge("test_ema_top5_ratio", "Top-5 accuracy of the averaged weights on the test set.")
        self.ema_loss = series.gauge("test_ema_loss", "Cross entropy of the averaged weights on the test set.")

    def observe_step(self, record: StepRecord, ranks: int) -> None:
        """Observe a finished step of a gang. One that compiled is not added to the histograms."""
        for report in record.reports:
            self._algorithms[type(report)].observe(report, record.compiled)
        if not record.compiled:
            self.step_seconds.observe(record.step_seconds)
            self.data_wait_seconds.observe(record.data_wait_seconds)
            self.compute_seconds.observe(record.compute_seconds)
            if ranks > 1:  # one rank has no collective: its series stays empty instead of showing zeros
                self.collective_seconds.observe(record.collective_seconds)
        self.loss.set(record.loss)
        self.accuracy.set(record.accuracy)
        self.loss_scale.set(record.loss_scale)
        if record.left_out:
            self.steps_left_out.inc()
        else:
            self.gradient_norm.set(record.gradient_norm)
        if self.noise_scale is not None and record.noise is not None:
            self._observe_noise(self.noise_scale, record.noise.scale)
        self.learning_rate.set(record.learning_rate)
        self.step.set(record.step)

    @staticmethod
    def _observe_noise(gauge: LateGauge, scale: float | None) -> None:
        """Show the scale; an earlier one would be wrong where there is none."""
        if scale is None:
            gauge.clear()
        else:
            gauge.set(scale)

    def observe_ranks(self, judged: Stragglers) -> None:
        """Observe what a window of steps says about this rank among the others."""
        if judged.ratios:
            self.compute_ratio.set(judged.ratios[self._rank])
            self.straggler.set(judged.is_slow(self._rank))

    def row(self, record: StepRecord) -> dict[str, float | None]:
        """The algorithm's columns of a step's row in metrics.csv."""
        found: dict[str, float | None] = {}
        for report in record.reports:
            found |= self._algorithms[type(report)].row(report)
        return found

    def observe_evaluation(self, result: EvaluationRecord, seconds: float) -> None:
        """Observe an evaluation."""
        self.evaluation_seconds.observe(seconds)
        self.top1.set(result.top1)
        self.top5.set(result.top5)
        self.test_loss.set(result.loss)

    def observe_ema_evaluation(self, result: EvaluationRecord) -> None:
        """Observe an evaluation of the averaged weights."""
        self.ema_top1.set(result.top1)
        self.ema_top5.set(result.top5)
        self.ema_loss.set(result.loss)

    def saves(self, step: int, every_steps: int) -> None:
        """Expose the checkpoint series, on the rank that writes them; a restart would resume from that step."""
        self.checkpoint_step.set(step)
        self.checkpoint_every.set(every_steps)
        self.checkpoint_seconds.begin()
        if self._takes_snapshots:
            self.snapshot_seconds.begin()
