"""One training step as the compiled graphs do it, with its parts timed; what comes before and after is the loop's."""

import logging
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.adasum.adaptive_sum import Summed
from resnetboost_trainer.distributed.buckets import Buckets
from resnetboost_trainer.distributed.communicator import Communicator, Floats, lost, of_collective
from resnetboost_trainer.engine import loss
from resnetboost_trainer.engine.accumulation import Accumulation
from resnetboost_trainer.engine.gradient import ACCURACY, LOSS, NORM_SQUARED, TAIL, Batch, Gradient
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.models.layers.running_stats import Statistics
from resnetboost_trainer.optim import grad_scaler, registry
from resnetboost_trainer.optim.pca.descent import Basis, Searched
from resnetboost_trainer.optim.registry import Given
from resnetboost_trainer.optim.schedule import Moment
from resnetboost_trainer.optim.thor.curvature import Update

log = logging.getLogger(__name__)

# What the tail of a flat buffer has: whether somebody was asked to stop, then one compute time per rank.
STOP, SECONDS = TAIL, TAIL + 1

# Times the loss of a network that knows nothing, ln(classes): no spike that training comes back from gets there.
DIVERGED = 1000.0


class Outcome(msgspec.Struct, frozen=True):
    """What a step brought. Means over the gang but for the three times, which are this rank's, in seconds.

    `stop`: somebody was asked to stop, and the whole gang knows it. `slowest_*`: of the step before, by the time
    before the all-reduce; after it all ranks show the same. `curvature`: of a step that THOR updates it at. `combined`:
    how an adaptive sum went, which counts as collective, or a step in the subspace. `compiled`: the first use of a
    graph, no sample of anything. `left_out`: the gradient overflowed at that `loss_scale`, and nothing was updated; the
    norm is then 0.
    """

    loss: float
    accuracy: float
    gradient_norm: float
    stop: bool
    gradient_seconds: float
    collective_seconds: float
    update_seconds: float
    slowest_rank: int | None
    slowest_compute_seconds: float | None
    curvature: Update | None
    combined: Summed | Searched | None
    compiled: bool
    left_out: bool
    loss_scale: float


class Program:
    """A network, its loss, its optimizer and the graphs over them. Ranks differ only in BN's running statistics."""

    def __init__(
        self, config: Config, network: nn.Cell, communicator: Communicator, basis: Basis | None = None
    ) -> None:
        """`basis` is what a PCA stage trains in. A collective."""
        self.communicator, self.classes, self.network = communicator, config.model.num_classes, network
        self.loss_scale, self.precision = config.loss_scale, config.precision
        entropy = loss.CrossEntropy(config.label_smoothing, config.label_smoothing_over)
        if communicator.leads:
            log.info(loss.told(config.label_smoothing, config.label_smoothing_over, self.classes))
        parts = registry.parts(Given(config, network, entropy, communicator, basis))
        self.combination, self.state, self.curvature = parts.combination, parts.state, parts.curvature
        self.remedy = parts.remedy
        self.average = None if config.ema is None else self.state.keep_average(config.ema.decay)
        self.scaling = grad_scaler.of(config)
        self.statistics = None if self.scaling is None else Statistics(network)
        self.state.add([] if self.scaling is None else self.scaling.parameters)
        scale = config.loss_scale if self.scaling is None else self.scaling.factor
        probes = self.curvature.capture.probes if self.curvature is not None else ()
        sizes = [parameter.size for parameter in parts.parameters]
        buckets = _buckets(config, sizes, scale) if communicator.size > 1 else None
        self.gradient = Gradient(network, entropy, parts.parameters, scale, buckets=buckets)
        self.capturing = Gradient(network, entropy, parts.parameters, scale, probes)
        self.accumulation = Accumulation(sum(sizes) + 2, config.accumulation_steps)
        self._compiled: set[bool] = set()
        self._compiling = False
        self._accumulated_seconds = self._seconds = 0.0

    def accumulate(self, images: Tensor, labels: Tensor) -> None:
        """Take in a micro batch of a step that has several; `step` is given the last one. Not a collective."""
        begun = time.perf_counter()
        self._keep_statistics()
        self.gradient.set_train(True)
        flat, _ = self.gradient(images, labels, Tensor(np.zeros(1 + self.communicator.size, np.float32)))
        self.accumulation.add(flat)
        self._compiling |= self._first_use(False)
        self._accumulated_seconds += time.perf_counter() - begun

    def step(self, images: Tensor, labels: Tensor, moment: Moment, stop: bool) -> Outcome:
        """Gradient, reduction, finite check, update. A collective. THOR's factors are those of this last micro batch.

        A step that is left out changes nothing but the loss scale, and has THOR's update made at the next one.
        Raises NumericsError before a bad gradient can reach the weights, CommunicationError when the gang is broken.
        """
        begun = time.perf_counter() - self._accumulated_seconds
        due = self.curvature is not None and self.curvature.due(moment.step)
        self._keep_statistics()
        flat, captured = self._gradient(images, labels, Tensor(self._tail(stop)), due)
        whole = self.accumulation.mean(flat)
        computed = time.perf_counter()
        gradients, scalars = self.combination.reduce(whole)
        reduced = time.perf_counter()
        scale = self.scaling.now if self.scaling is not None else self.loss_scale
        left_out = self._leaves_out(scalars, scale)
        update, combined = None, None
        if left_out:
            self._undo(due)
        else:
            _check_numbers(scalars, self.classes, self._remedy(moment))
            if self.curvature is not None and due:
                update = self.curvature.update(captured, flat, len(images), scale, moment.damping)
            batch = Batch(images, labels, float(scalars[LOSS]))
            combined = self.combination.update(gradients, batch, moment.learning_rate)
            if self.average is not None:
                self.average.update(moment.step)
        updated = time.perf_counter()
        across = combined.across_seconds if isinstance(combined, Summed) else 0.0
        self._accumulated_seconds, self._seconds = 0.0, computed - begun
        compiled, self._compiling = self._first_use(due) or self._compiling, False
        slowest_rank, slowest_seconds = self._slowest(scalars)
        return Outcome(
            loss=float(scalars[LOSS]),
            accuracy=float(scalars[ACCURACY]),
            gradient_norm=0.0 if left_out else float(np.sqrt(scalars[NORM_SQUARED])),
            stop=bool(scalars[STOP] > 0),
            gradient_seconds=computed - begun,
            collective_seconds=reduced - computed + across,
            update_seconds=updated - reduced - across,
            slowest_rank=slowest_rank,
            slowest_compute_seconds=slowest_seconds,
            curvature=update,
            combined=combined,
            compiled=compiled,
            left_out=left_out,
            loss_scale=scale,
        )

    def _gradient(self, images: Tensor, labels: Tensor, tail: Tensor, due: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The flat buffer and, at an update of the curvature, what it is made from: a graph of its own."""
        if self.curvature is None or not due:
            return self._plain_gradient(images, labels, tail), ()
        with self.curvature.capture.attached():
            self.capturing.set_train(True)
            flat, captured = self.capturing(images, labels, tail)
            return flat, captured

    def _plain_gradient(self, images: Tensor, labels: Tensor, tail: Tensor) -> Tensor:
        self.gradient.set_train(True)
        try:
            flat, _ = self.gradient(images, labels, tail)
        except RuntimeError as error:
            if of_collective(error):
                raise lost(error) from error
            raise
        return flat

    def _keep_statistics(self) -> None:
        """Before the first forward pass of a step that may be left out."""
        if self.statistics is not None and not self.accumulation.begun:
            self.statistics.keep()

    def _undo(self, due: bool) -> None:
        """What the forward pass of a step has changed, and that it was to update the curvature."""
        if self.statistics is not None:
            self.statistics.restore()
        if self.curvature is not None and due:
            self.curvature.postpone()

    def _slowest(self, scalars: Floats) -> tuple[int | None, float | None]:
        """Rank and seconds; nobody, where all ranks wait for the slowest inside of their gradient."""
        if self.gradient.buckets is not None:
            return None, None
        rank = int(scalars[SECONDS:].argmax())
        return rank, float(scalars[SECONDS + rank])

    def _leaves_out(self, scalars: Floats, scale: float) -> bool:
        """Whether this step is left out because its gradient overflowed; all ranks have the same numbers."""
        if self.scaling is None or not np.isfinite(scalars[LOSS]):
            return False
        return self.scaling.leaves_out(bool(np.isfinite(scalars[NORM_SQUARED])), scale)

    def _remedy(self, moment: Moment) -> str:
        """What helps against numbers that are not finite."""
        text = self.remedy(moment) + ("" if self.precision != "Float16" else ", or use another precision than Float16")
        if self.loss_scale == 1:
            return text
        return f"{text}, or lower lossScale, now {self.loss_scale:g}, or use dynamicLossScale"

    def _first_use(self, graph: bool) -> bool:
        first = graph not in self._compiled
        self._compiled.add(graph)
        return first

    def _tail(self, stop: bool) -> Floats:
        """What this rank tells the others in passing: [stop, its last compute time in a place of its own]."""
        tail = np.zeros(1 + self.communicator.size, np.float32)
        tail[0] = stop
        tail[1 + self.communicator.rank] = self._seconds
        return tail


def _buckets(config: Config, sizes: Sequence[int], scale: float | Parameter) -> Buckets | None:
    """Where the job wants them; `sizes` are numbers by parameter."""
    if config.all_reduce_fusion is None:
        return None
    limit = config.all_reduce_fusion.bucket_bytes
    buckets = Buckets(sizes, limit, scale)
    log.info("gradients are summed while they are made, in %d buckets of at most %d bytes", len(buckets.plan), limit)
    return buckets


def _check_numbers(scalars: Floats, classes: int, remedy: str) -> None:
    """Refuse what is not finite, and a loss that has left for good: with BN it may grow for ever and stay finite."""
    if not np.isfinite(scalars[LOSS]):
        raise NumericsError(f"the loss is not finite {remedy}")
    if not np.isfinite(scalars[NORM_SQUARED]):
        raise NumericsError(f"a gradient is not finite {remedy}")
    if scalars[LOSS] > DIVERGED * np.log(classes):
        raise NumericsError(f"training has diverged to a loss of {scalars[LOSS]:.3g} {remedy}")
