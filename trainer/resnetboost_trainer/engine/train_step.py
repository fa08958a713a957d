"""One training step: gradient, reduction, finite check and update, with the time of each part."""

import logging
import time
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.buckets import Buckets
from resnetboost_trainer.distributed.communicator import Communicator, Floats, lost, of_collective
from resnetboost_trainer.distributed.reduction import ACCURACY, LOSS, NORM_SQUARED, TAIL
from resnetboost_trainer.engine import loss, noise_scale
from resnetboost_trainer.engine.accumulation import Accumulation
from resnetboost_trainer.engine.divergence import LossWatch
from resnetboost_trainer.engine.gradient import Gradient
from resnetboost_trainer.engine.objective import Objective
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models.drop_path import DropPath
from resnetboost_trainer.models.layers.running_stats import Statistics
from resnetboost_trainer.models.resnet import synchronize
from resnetboost_trainer.optim import grad_scaler, registry
from resnetboost_trainer.optim.algorithm import BuildContext
from resnetboost_trainer.optim.ema import ModelEma
from resnetboost_trainer.optim.schedule import StepSchedule
from resnetboost_trainer.optim.update_rule import Batch

log = logging.getLogger(__name__)

# The tail of a flat buffer: whether a rank was asked to stop, then one compute time per rank, and where the gradient's
# noise is measured the squared norm of the rank's own gradient.
STOP, SECONDS = TAIL, TAIL + 1

# Limit of the loss as a multiple of an untrained network's; above it training cannot recover.
DIVERGED = 1000.0


class Program:
    """A network, its loss, its optimizer and their graphs. Virtual ranks differ in BN's running statistics alone.

    The micro batches of a step are those of each of this rank's virtual ranks, one virtual rank after another.
    """

    def __init__(
        self,
        config: Config,
        network: nn.Cell,
        communicator: Communicator,
        prepared: object = None,
        objective: Objective | None = None,
    ) -> None:
        """`prepared` is what `registry.prepare` returned for the stage. A collective.

        The objective may only be left out where it needs neither the training data nor a teacher.
        """
        self.communicator, self.classes, self.network = communicator, config.model.num_classes, network
        self.loss_scale, self.precision = config.loss_scale, config.precision
        self.objective = objective or Objective(config)
        criterion, self.teacher = self.objective.loss, self.objective.teacher
        if communicator.leads:
            log.info(loss.described(config.label_smoothing, config.label_smoothing_over, self.classes))
        self.virtual = virtual_ranks.of(config, communicator.size)
        self.drop_path = _drop_path(config, network)
        if config.sync_batch_norm and communicator.size > 1:
            synchronize(network, communicator.size)
        context = BuildContext(config, network, criterion, communicator, prepared)
        parts, self.state = registry.build(context)
        self.of_each = self.state.become_virtual(self.virtual.each) if self.virtual.each > 1 else None
        self.update_rule, self.curvature, self.advice = parts.update_rule, parts.curvature, parts.advice
        self.average = self._average(config)
        self.watch: LossWatch | None = None
        if config.divergence is not None:
            self.watch = self.state.watch = LossWatch(config.divergence, self.objective.untrained, communicator)
        self.scaler = grad_scaler.of(config)
        self.statistics = None if self.scaler is None else self.of_each or Statistics(network)
        self.state.add([] if self.scaler is None else self.scaler.parameters)
        scale = config.loss_scale if self.scaler is None else self.scaler.factor
        probes = self.curvature.capture.probes if self.curvature is not None else ()
        sizes = [parameter.size for parameter in parts.parameters]
        buckets = _buckets(config, sizes, scale) if context.summed and communicator.size > 1 else None
        self.noise = noise_scale.of(config, self.virtual.count)
        measured = self.noise is not None
        self.gradient = Gradient(network, criterion, parts.parameters, scale, buckets=buckets, norm=measured)
        self.capturing = Gradient(network, criterion, parts.parameters, scale, probes, norm=measured)
        for graph in (self.gradient, self.capturing):
            # Compiled graphs that are kept find only parameters of their own cell.
            graph.branch_factors = None if self.drop_path is None else self.drop_path.factors
        self.micro_batches = config.accumulation_steps  # of each virtual rank
        self.accumulation = Accumulation(sum(sizes) + 2, self.micro_batches * self.virtual.each, measured)
        self._place = 0  # of the next micro batch in its step
        self._evaluates_again = parts.evaluates_again
        self._batches: list[tuple[Tensor, Tensor]] = []  # of the virtual ranks before this one
        self._compiled: set[bool] = set()
        self._compiling = False
        self._sampled = False  # whether the step before was timed without compiling
        self._accumulated_seconds = self._seconds = 0.0

    def _average(self, config: Config) -> ModelEma | None:
        """The averaged weights of a stage that has them, as a part of its state."""
        if config.ema is None:
            return None
        weights, statistics = self.state.weights, self.state.statistics
        average = ModelEma(weights, statistics, config.ema.decay, self.communicator, self.of_each)
        self.state.average = average
        return average

    def accumulate(self, images: Tensor, labels: Tensor, now: StepSchedule) -> None:
        """Add the gradient of a micro batch before the step's last one, which `step` takes. Not a collective."""
        begun = time.perf_counter()
        labels = self.objective.labels(images, labels)
        last = (self._place + 1) % self.micro_batches == 0  # of its virtual rank
        due = last and self._is_due(now)
        tail = Tensor(np.zeros(1 + self.communicator.size, np.float32))
        flat, captured = self._micro_batch(images, labels, tail, now.step, due)
        self.accumulation.add(flat)
        if self.curvature is not None and due:
            self.curvature.observe(captured, flat, len(images), self._scale())
        if last and self._evaluates_again:
            self._batches.append((images, labels))
        self._compiling |= self._first_use(due)
        self._accumulated_seconds += time.perf_counter() - begun

    def step(
        self,
        images: Tensor,
        labels: Tensor,
        now: StepSchedule,
        stop: bool,
        started: float | None = None,
        data_wait_seconds: float = 0.0,
    ) -> StepRecord:
        """Gradient, reduction, finite check, update. A collective. THOR's factors are those of each virtual rank's last
        micro batch.

        The whole step began at `started` (of `time.perf_counter`) and waited so long for its batches. A step that is
        left out changes the loss scale alone, and postpones an update of the curvature to the next one.
        Raises NumericsError or Diverged before a bad gradient can reach the weights, CommunicationError when the gang
        is broken.
        """
        begun = time.perf_counter() - self._accumulated_seconds
        labels = self.objective.labels(images, labels)
        due = self._is_due(now)
        flat, captured = self._micro_batch(images, labels, Tensor(self._tail(stop)), now.step, due)
        batches, self._batches, self._place = [*self._batches, (images, labels)], [], 0
        whole = self.accumulation.mean(flat)
        computed = time.perf_counter()
        gradients, scalars = self.update_rule.reduce(whole)
        reduced = time.perf_counter()
        scale = self._scale()
        left_out = self._leaves_out(scalars, scale)
        curvature, update, across = None, None, 0.0
        if left_out:
            self._undo(due)
        else:
            self._check(scalars, now)
            if self.curvature is not None and due:
                curvature = self.curvature.update(captured, flat, len(images), scale, now.damping)
            batch = Batch(batches, float(scalars[LOSS]))
            update = self.update_rule.update(gradients, batch, now.learning_rate)
            across = self.update_rule.collective_seconds
            if self.average is not None:
                self.average.update(now.step)
        updated = time.perf_counter()
        self._accumulated_seconds, self._seconds = 0.0, computed - begun
        compiled, self._compiling = self._first_use(due) or self._compiling, False
        slowest_rank, slowest_seconds = self._slowest(scalars)
        by_rank = self._seconds_of(scalars) if self._sampled and slowest_rank is not None else None
        self._sampled = not compiled
        return StepRecord(
            step=now.step + 1,
            learning_rate=now.learning_rate,
            loss=float(scalars[LOSS]),
            accuracy=float(scalars[ACCURACY]),
            gradient_norm=0.0 if left_out else float(np.sqrt(scalars[NORM_SQUARED])),
            loss_scale=scale,
            step_seconds=time.perf_counter() - (begun if started is None else started),
            data_wait_seconds=data_wait_seconds,
            gradient_seconds=computed - begun,
            collective_seconds=reduced - computed + across,
            update_seconds=updated - reduced - across,
            update_collective_seconds=across,
            slowest_rank=slowest_rank,
            slowest_compute_seconds=slowest_seconds,
            compute_seconds_by_rank=by_rank,
            compiled=compiled,
            left_out=left_out,
            stop=bool(scalars[STOP] > 0),
            curvature=curvature,
            update=update,
            noise=None if left_out else self._noise(scalars),
        )

    def _is_due(self, now: StepSchedule) -> bool:
        return self.curvature is not None and self.curvature.due(now.step)

    def _scale(self) -> float:
        return self.scaler.now if self.scaler is not None else self.loss_scale

    def _micro_batch(
        self, images: Tensor, labels: Tensor, tail: Tensor, step: int, due: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the next micro batch's flat buffer, with the BN statistics of its virtual rank."""
        self._keep_statistics()
        virtual, place = divmod(self._place, self.micro_batches)
        if self.drop_path is not None:
            self.drop_path.draw(step, self.communicator.rank * self.virtual.each + virtual, place)
        self._place += 1
        if self.of_each is not None and place == 0:
            self.of_each.enter(virtual)
        found = self._gradient(images, labels, tail, due)
        if self.of_each is not None and place == self.micro_batches - 1:
            self.of_each.leave(virtual)
        return found

    def _gradient(self, images: Tensor, labels: Tensor, tail: Tensor, due: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the flat buffer; if a curvature update is due, another graph also captures its tensors."""
        if self.curvature is None or not due:
            return self._plain_gradient(images, labels, tail), ()
        with self.curvature.capture.attached():
            self._train(self.capturing)
            flat, captured = self.capturing(images, labels, tail)
            return flat, captured

    def _plain_gradient(self, images: Tensor, labels: Tensor, tail: Tensor) -> Tensor:
        self._train(self.gradient)
        try:
            flat, _ = self.gradient(images, labels, tail)
        except RuntimeError as error:
            if of_collective(error):
                raise lost(error) from error
            raise
        return flat

    def _train(self, graph: nn.Cell) -> None:
        """Set training mode if an evaluation has changed it: to visit every cell takes a third of a millisecond."""
        if not (graph.training and self.network.training):
            graph.set_train(True)

    def _keep_statistics(self) -> None:
        """Save BN's statistics before the first forward pass of a step that may be left out."""
        if self.statistics is not None and not self.accumulation.begun:
            self.statistics.keep()

    def _undo(self, due: bool) -> None:
        """Undo what the forward pass of a step has changed, and postpone a due update of the curvature."""
        if self.statistics is not None:
            self.statistics.restore()
        if self.curvature is not None and due:
            self.curvature.postpone()

    def _slowest(self, scalars: Floats) -> tuple[int | None, float | None]:
        """Return the slowest rank and its seconds, or None with buckets: all ranks wait within their gradient."""
        if self.gradient.buckets is not None:
            return None, None
        rank = int(self._seconds_of(scalars).argmax())
        return rank, float(scalars[SECONDS + rank])

    def _seconds_of(self, scalars: Floats) -> Floats:
        """Compute times of the ranks."""
        return scalars[SECONDS : SECONDS + self.communicator.size]

    def _noise(self, scalars: Floats) -> noise_scale.NoiseRecord | None:
        """What the step says about the gradient's noise; the ranks' squared norms stand behind their times."""
        if self.noise is None:
            return None
        size = self.communicator.size
        return self.noise.add(float(scalars[SECONDS + size]) / size, float(scalars[NORM_SQUARED]))

    def _leaves_out(self, scalars: Floats, scale: float) -> bool:
        """True if this step is left out because its gradient overflowed; equal on all ranks."""
        if self.scaler is None or not np.isfinite(scalars[LOSS]):
            return False
        return self.scaler.leaves_out(bool(np.isfinite(scalars[NORM_SQUARED])), scale)

    def _check(self, scalars: Floats, now: StepSchedule) -> None:
        """Raise NumericsError or Diverged for numbers that must not reach the weights."""
        _check_numbers(scalars, self.objective.untrained, self._advice(now))
        if self.watch is not None:
            self.watch.check(now.step + 1, float(scalars[LOSS]), self._advice(now))

    def _advice(self, now: StepSchedule) -> str:
        """Suggest remedies against values that are not finite."""
        text = self.advice(now) + ("" if self.precision != "Float16" else ", or use another precision than Float16")
        if self.loss_scale == 1:
            return text
        return f"{text}, or lower lossScale, now {self.loss_scale:g}, or use dynamicLossScale"

    def _first_use(self, graph: bool) -> bool:
        first = graph not in self._compiled
        self._compiled.add(graph)
        return first

    def _tail(self, stop: bool) -> Floats:
        """Return this rank's addition to the buffer's tail: [stop, its last compute time at the rank's index]."""
        tail = np.zeros(1 + self.communicator.size, np.float32)
        tail[0] = stop
        tail[1 + self.communicator.rank] = self._seconds
        return tail


def _drop_path(config: Config, network: nn.Cell) -> DropPath | None:
    """The stochastic depth of a stage that has it."""
    if config.drop_path == 0:
        return None
    return DropPath(network, config.drop_path, config.local_batch_size, config.seed, config.stage)


def _buckets(config: Config, sizes: Sequence[int], scale: float | Parameter) -> Buckets | None:
    """Create the all-reduce buckets if the job has them; `sizes` are elements by parameter."""
    if config.all_reduce_fusion is None:
        return None
    limit = config.all_reduce_fusion.bucket_bytes
    buckets = Buckets(sizes, limit, scale)
    text = "gradients are summed while they are computed, in %d buckets of at most %d bytes"
    log.info(text, len(buckets.plan), limit)
    return buckets


def _check_numbers(scalars: Floats, untrained: float, remedy: str) -> None:
    """Raise NumericsError for values that are not finite and for a diverged loss, which may stay finite with BN."""
    if not np.isfinite(scalars[LOSS]):
        raise NumericsError(f"the loss is not finite {remedy}")
    if not np.isfinite(scalars[NORM_SQUARED]):
        raise NumericsError(f"a gradient is not finite {remedy}")
    if float(scalars[LOSS]) > DIVERGED * untrained:
        raise NumericsError(f"training has diverged to a loss of {scalars[LOSS]:.3g} {remedy}")
