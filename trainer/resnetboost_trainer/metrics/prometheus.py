"""Prometheus metrics of one rank (base units, `resnetboost_` prefix); it measures nothing itself."""

from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from resnetboost_trainer import __version__
from resnetboost_trainer.config import Config

LABELS = ("job_name", "job_namespace", "stage", "rank")
# From a millisecond (a collective among threads) to minutes (a first step that compiles), factor 2 to 2.5.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

# A second series for each counter and histogram, which nobody asks for.
disable_created_metrics()

# What an update of THOR's curvature does with a layer.
DECISIONS = ("updated", "kept", "stopped", "failed")

# What becomes of a direction within the principal subspace.
OUTCOMES = ("full", "shortened", "rejected")


class Level:
    """A gauge that is not there before it has a value: a loss of 0 would be a lie."""

    def __init__(self, gauge: Gauge, labels: tuple[str, ...]) -> None:
        self._gauge, self._labels = gauge, labels

    def set(self, value: float) -> None:
        """It has that value now."""
        self._gauge.labels(*self._labels).set(value)


class Times:
    """A histogram that is there from `begin` on: a rank that never tells it would have eighteen series of zeros."""

    def __init__(self, histogram: Histogram, labels: tuple[str, ...]) -> None:
        self._histogram, self._labels = histogram, labels

    def begin(self) -> None:
        """This rank will tell it: from zero, or rate() would miss the first."""
        self._histogram.labels(*self._labels)

    def observe(self, seconds: float) -> None:
        """It took so long."""
        self._histogram.labels(*self._labels).observe(seconds)


class Metrics:
    """Every series a rank exposes, in a registry of its own. Label `rank` lets the slowest one be found."""

    def __init__(self, config: Config, rank: int, convolution: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = (config.job.name, config.job.namespace, config.stage, str(rank))
        self.step_seconds = self._histogram("step_seconds", "A whole training step.")
        self.data_wait_seconds = self._histogram("data_wait_seconds", "Waiting for the next batch.")
        self.compute_seconds = self._histogram(
            "compute_seconds", "Forward, backward and update of this rank, with the all-reduces of buckets."
        )
        self.collective_seconds = self._histogram("collective_seconds", "The gradients' all-reduce, with its wait.")
        self.checkpoint_seconds = self._times("checkpoint_seconds", "Writing a checkpoint, in the background.")
        self.checkpoint_stall_seconds = self._histogram(
            "checkpoint_stall_seconds", "Training stopped for a checkpoint."
        )
        self.evaluation_seconds = self._histogram("evaluation_seconds", "An evaluation of the whole test set.")
        self.checkpoint_bytes = self._gauge("checkpoint_bytes", "Size of the newest checkpoint.")
        text = "Step of the newest checkpoint, from which a restart would go on."
        self.checkpoint_step = self._gauge("checkpoint_step", text)
        self.checkpoint_time = self._gauge("checkpoint_timestamp_seconds", "When the newest checkpoint was complete.")
        self.checkpoint_every = self._gauge("checkpoint_every_steps", "Steps from one checkpoint to the next.")
        self.loss = self._gauge("loss", "Training loss, mean over the gang.")
        self.accuracy = self._gauge("accuracy_ratio", "Training top-1 accuracy, mean over the gang.")
        self.gradient_norm = self._gauge("gradient_norm", "Euclidean norm of the mean gradient.")
        self.learning_rate = self._gauge("learning_rate", "Learning rate of the last step.")
        self.epoch = self._gauge("epoch", "Epochs done, as a fraction.")
        self.step = self._gauge("step", "Steps done.")
        self.total_steps = self._gauge("steps_planned", "Steps the stage has.")
        self.top1 = self._gauge("test_top1_ratio", "Top-1 accuracy on the test set.")
        self.top5 = self._gauge("test_top5_ratio", "Top-5 accuracy on the test set.")
        self.test_loss = self._gauge("test_loss", "Cross entropy on the test set.")
        images = Counter("resnetboost_images", "Images this rank has trained on.", LABELS, registry=self.registry)
        self.images = images.labels(*self._labels)
        text = "Images this rank skipped because they cannot be used, each once."
        corrupt = Counter("resnetboost_corrupt_images", text, LABELS, registry=self.registry)
        self.corrupt_images = corrupt.labels(*self._labels)
        self.loss_scale = self._gauge("loss_scale", "Factor on the loss in the backward pass.")
        text = "Steps left out because the gradient overflowed at the loss scale they had, the same on every rank."
        left_out = Counter("resnetboost_steps_left_out", text, LABELS, registry=self.registry)
        self.steps_left_out = left_out.labels(*self._labels)
        if config.thor is not None:
            self._thor()
        if config.adasum is not None:
            self._adasum()
        if config.pca is not None:
            self._pca()
        if config.ema is not None:
            self._ema()
        self._takes_snapshots = config.snapshots is not None
        if self._takes_snapshots:
            self.snapshot_seconds = self._times("snapshot_seconds", "Writing a snapshot, in the background.")
            self.snapshot_step = self._gauge("snapshot_step", "Step of the newest snapshot.")
        self._build_info(convolution)

    def _thor(self) -> None:
        """What only a THOR stage has; other stages do not show it at all."""
        self.thor_update_seconds = self._histogram("thor_update_seconds", "An update of the curvature.")
        self.thor_damping = self._gauge("thor_damping", "Damping of the last update.")
        labels, registry = (*LABELS, "decision"), self.registry
        text = "Layers by what the last update of the curvature did with them, the same on every rank."
        layers = Gauge("resnetboost_thor_layers", text, labels, registry=registry)
        text = "Layers updated, kept and failed by all updates of the curvature, the same on every rank."
        decisions = Counter("resnetboost_thor_layer_decisions", text, labels, registry=registry)
        self.thor_layers = {decision: layers.labels(*self._labels, decision) for decision in DECISIONS}
        events = [decision for decision in DECISIONS if decision != "stopped"]  # being stopped is no event
        self.thor_decisions = {decision: decisions.labels(*self._labels, decision) for decision in events}

    def _adasum(self) -> None:
        """What only a stage of Adasum has."""
        text = "Cosine of the angle between summed vectors, by tensor: the mean of a step."
        self.adasum_cosine = self._gauge("adasum_cosine", text)
        self.adasum_cosine_min = self._gauge("adasum_cosine_min", "The least such cosine of a step.")
        text = "Norm of the adaptive sum over that of the mean: 1 is what averaging does, the number of nodes a sum."
        self.adasum_gain = self._gauge("adasum_gain", text)
        text = "A level of an adaptive sum, with its wait: node, fold, 1, 2, ..., gather."
        self.adasum_level_seconds = Histogram(
            "resnetboost_adasum_level_seconds", text, (*LABELS, "level"), registry=self.registry, buckets=SECONDS
        )

    def _pca(self) -> None:
        """What only a stage in the principal subspace has."""
        text = "Share of the snapshots' variance that the components explain."
        self.pca_explained_variance = self._gauge("pca_explained_variance_ratio", text)
        text = "Accepted length of the last step's direction: 1 is all of it, 0 none."
        self.pca_step_length = self._gauge("pca_step_length", text)
        text = "Share of the squared gradient of the last step that lies within the subspace."
        self.pca_gradient_share = self._gauge("pca_gradient_share_ratio", text)
        self.pca_seconds = self._histogram("pca_seconds", "Projection, line search and step of this rank.")
        text = "Evaluations of the loss by line searches."
        evaluations = Counter("resnetboost_pca_evaluations", text, LABELS, registry=self.registry)
        self.pca_evaluations = evaluations.labels(*self._labels)
        text = "Steps by what the line search did with their direction."
        steps = Counter("resnetboost_pca_steps", text, (*LABELS, "outcome"), registry=self.registry)
        self.pca_steps = {outcome: steps.labels(*self._labels, outcome) for outcome in OUTCOMES}

    def _ema(self) -> None:
        """What only a stage that averages its weights has."""
        self.ema_top1 = self._gauge("test_ema_top1_ratio", "Top-1 accuracy of the averaged weights on the test set.")
        self.ema_top5 = self._gauge("test_ema_top5_ratio", "Top-5 accuracy of the averaged weights on the test set.")
        self.ema_loss = self._gauge("test_ema_loss", "Cross entropy of the averaged weights on the test set.")

    def saves(self, step: int, every_steps: int) -> None:
        """This rank writes what is kept; a restart would go on from that step."""
        self.checkpoint_step.set(step)
        self.checkpoint_every.set(every_steps)
        self.checkpoint_seconds.begin()
        if self._takes_snapshots:
            self.snapshot_seconds.begin()

    def adasum_level(self, level: str, seconds: float) -> None:
        """That level of an adaptive sum took so long."""
        self.adasum_level_seconds.labels(*self._labels, level).observe(seconds)

    def _histogram(self, name: str, text: str) -> Histogram:
        return self._family(name, text).labels(*self._labels)

    def _times(self, name: str, text: str) -> Times:
        return Times(self._family(name, text), self._labels)

    def _family(self, name: str, text: str) -> Histogram:
        return Histogram(f"resnetboost_{name}", text, LABELS, registry=self.registry, buckets=SECONDS)

    def _gauge(self, name: str, text: str) -> Level:
        return Level(Gauge(f"resnetboost_{name}", text, LABELS, registry=self.registry), self._labels)

    def _build_info(self, convolution: str) -> None:
        names = (*LABELS, "version", "mindspore", "convolution")
        info = Gauge("resnetboost_trainer_build_info", "Versions; always 1.", names, registry=self.registry)
        info.labels(*self._labels, __version__, metadata.version("mindspore"), convolution).set(1)
