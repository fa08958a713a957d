"""THOR for anybody's MindSpore script: `THOR(network, ...)` and a training cell; the trainer itself does not use it.

thor = THOR(network, learning_rate=0.02, damping=0.1)
train = thor.training_cell(nn.CrossEntropyLoss())
for images, labels in batches:
    loss = train(images, labels)
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.optimizers.momentum import Momentum
from resnetboost_trainer.optimizers.thor.curvature import Curvature, Update
from resnetboost_trainer.step import Reduction

log = logging.getLogger(__name__)

# Or a Tensor, which has no type of its own here.
Scheduled = float | Sequence[float] | NDArray[np.floating[Any]] | Callable[[int], float]


class THOR:
    """Second-order optimizer for a network: Chen et al., "THOR" (AAAI 2021), on MindSpore's plain operators.

    Conv2d (any kernel, stride, padding, dilation, groups), Dense, Embedding and LayerNorm are preconditioned, all else
    has momentum SGD. `learning_rate` and `damping` are numbers, one number per step (the last one stays), or functions
    of the step. `frequency`: steps between updates of the curvature. `block_size`: largest diagonal block of a factor.
    `pi`: share damping by the factors' traces (Martens & Grosse 2015); False is MindSpore's convention. `trace_rule`:
    (w1, w2, smoothing) of the paper's rule which layers an update leaves out; zeros update all. `clip_norm`: longest
    direction. `loss_scale`: factor on the loss during the backward pass, for half precision. `exclude`: names of layers
    (as `network.cells_and_names()` has them), or of cells with all their layers, that are to keep their plain gradient.

    The loss has to be a mean over the batch, which is the first axis, of LayerNorm's inputs too. In a process that has
    called `mindspore.communication.init()` gradients and factors are averaged over the ranks, which have to begin with
    the same weights and step together.
    """

    def __init__(
        self,
        network: nn.Cell,
        learning_rate: Scheduled = 0.02,
        damping: Scheduled = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        *,
        frequency: int = 10,
        block_size: int = 128,
        pi: bool = True,
        trace_rule: tuple[float, float, float] = (0.3, 0.0, 0.8),
        clip_norm: float | None = None,
        nesterov: bool = False,
        loss_scale: float = 1.0,
        exclude: Sequence[str] = (),
    ) -> None:
        """Raises ValueError naming the argument for what cannot be, and when the network has no layer it knows."""
        _check_schedule("learning_rate", learning_rate, "of at least 0", lambda value: value >= 0)
        _check_schedule("damping", damping, "above 0", lambda value: value > 0)
        for name, whole in (("frequency", frequency), ("block_size", block_size)):
            _check(whole >= 1 and whole == int(whole), name, whole, "a whole number of at least 1")
        _check(0 <= momentum < 1, "momentum", momentum, "a number from 0 to below 1")
        _check(weight_decay >= 0, "weight_decay", weight_decay, "a number of at least 0")
        _check(clip_norm is None or clip_norm > 0, "clip_norm", clip_norm, "a number above 0, or None")
        _check(0 < loss_scale < math.inf, "loss_scale", loss_scale, "a number above 0")
        _check(not isinstance(exclude, str), "exclude", exclude, "a list of names")
        self.network, self.learning_rate, self.damping, self.loss_scale = network, learning_rate, damping, loss_scale
        self.communicator = Communicator.present()
        settings = config.Thor(
            frequency=frequency,
            block_size=block_size,
            damping=config.Damping(initial=0, decay=1, decay_epochs=1, split="Pi" if pi else "Symmetric"),
            trace_rule=_rule(trace_rule),
            clip_norm=clip_norm,
        )
        self.curvature = Curvature(network, network.trainable_params(), settings, self.communicator, exclude)
        sgd = config.Momentum(momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        self.optimizer = self.curvature.optimizer(Momentum(self.curvature.parameters, sgd))

    def training_cell(self, loss: Callable[..., Any]) -> "TrainingCell":
        """A cell that takes a batch and does a step; `loss` has the network's output and the batch's last tensor."""
        return TrainingCell(self, loss)


class TrainingCell(nn.Cell):
    """(inputs ..., labels) -> mean loss over the ranks, after one step. The first axis of all tensors is the batch.

    It works by itself and as the network of a `mindspore.Model` without loss and optimizer (dataset_sink_mode=False).
    Its parameters - `mindspore.save_checkpoint(cell, file)` - are everything a later process needs to go on.
    """

    def __init__(self, thor: THOR, loss: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        curvature = thor.curvature
        self.network, self.optimizer, self.thor = thor.network, thor.optimizer, thor
        self.traces, self.overdue = curvature.traces, curvature.overdue
        self.steps = Parameter(Tensor(0, mindspore.int32), name="thor.steps", requires_grad=False)
        self.plain = _Compiled(_Gradient(thor.network, loss, curvature.parameters, thor.loss_scale))
        probes = curvature.capture.probes
        self.capturing = _Compiled(_Gradient(thor.network, loss, curvature.parameters, thor.loss_scale, probes))
        self.reduction = _Compiled(Reduction(curvature.parameters, thor.communicator.size))
        self.update = _Compiled(thor.optimizer)
        self.last_update: Update | None = None
        self.skipped = 0

    def __call__(self, *batch: Tensor) -> Tensor:
        """One step; `last_update` says what the newest update of the curvature did.

        A gradient that is not finite, as half precision has them when the loss scale is too large, changes nothing but
        running statistics: it is told in the log and counted in `skipped`, and what it was to update of the curvature
        the next step does.
        """
        step = int(self.steps.asnumpy())
        thor, curvature = self.thor, self.thor.curvature
        rate, damping = _at(thor.learning_rate, step), _at(thor.damping, step)
        due = curvature.due(step)
        flat, captured = self._gradient(batch, due)
        gradients, scalars = self.reduction(flat)
        if not np.isfinite(scalars[0].asnumpy()):
            self.skipped += 1
            if due:
                curvature.postpone()
            log.warning("THOR leaves step %d out: its gradient is not finite (loss_scale %g)", step, thor.loss_scale)
        else:
            if due:
                self.last_update = curvature.update(captured, flat, batch[0].shape[0], thor.loss_scale, damping)
            self.update(gradients, Tensor(rate, mindspore.float32))
        self.steps.set_data(Tensor(step + 1, mindspore.int32))
        return scalars[1]

    def _gradient(self, batch: Sequence[Tensor], due: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        graph = self.capturing if due else self.plain
        with self.thor.curvature.capture.attached() if due else contextlib.nullcontext():
            graph.set_train(True)
            try:
                flat, captured = graph(*batch)
            except ValueError as error:
                if due and "AddN" in str(error):  # MindSpore's word for gradients that cannot be added up
                    remedy = "name it in `exclude`"
                    raise ValueError(f"THOR: a layer has inputs of several shapes in one step; {remedy}") from error
                raise
            return flat, captured


class _Compiled(nn.Cell):
    """A cell as a graph also where the script runs operator by operator, which is MindSpore's default mode."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    @mindspore.jit
    def construct(self, *arguments: Tensor) -> Any:
        return self.cell(*arguments)


class _Gradient(nn.Cell):
    """(inputs ..., labels) -> flat [gradients ..., loss, loss] as `Reduction` takes it, gradients by the probes."""

    def __init__(
        self,
        network: nn.Cell,
        loss: Callable[..., Any],
        parameters: Sequence[Parameter],
        loss_scale: float,
        probes: Sequence[Parameter] = (),
    ) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss, self.loss_scale, self.count = network, loss, loss_scale, len(parameters)
        self.gradient = ops.value_and_grad(self.forward, None, ParameterTuple([*parameters, *probes]))

    def forward(self, *batch: Tensor) -> Tensor:
        """The scaled loss."""
        loss = self.loss(self.network(*batch[:-1]), batch[-1])
        return loss if self.loss_scale == 1 else loss * self.loss_scale

    def construct(self, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss, gradients = self.gradient(*batch)
        pieces = [gradient.astype(mindspore.float32).reshape(-1) for gradient in gradients[: self.count]]
        value = loss.astype(mindspore.float32).reshape(1)
        return ops.concat([*pieces, value, value]) / self.loss_scale, gradients[self.count :]


def _at(scheduled: Scheduled, step: int) -> float:
    if callable(scheduled) and not isinstance(scheduled, Tensor):
        return float(scheduled(step))
    values = np.asarray(scheduled.asnumpy() if isinstance(scheduled, Tensor) else scheduled, np.float64).reshape(-1)
    return float(values[min(step, len(values) - 1)])


def _check(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"THOR: {name} is {value!r}; use {remedy}")


def _check_schedule(name: str, scheduled: Scheduled, least: str, sound: Callable[[float], bool]) -> None:
    """Every value that is known beforehand; a function's first."""
    remedy = f"a finite number {least}, some of them, or a function of the step"
    if callable(scheduled) and not isinstance(scheduled, Tensor):
        values = [float(scheduled(0))]
    else:
        array = scheduled.asnumpy() if isinstance(scheduled, Tensor) else scheduled
        values = np.asarray(array, np.float64).reshape(-1).tolist()
    _check(bool(values) and all(math.isfinite(value) and sound(value) for value in values), name, scheduled, remedy)


def _rule(trace_rule: Sequence[float]) -> config.TraceRule:
    remedy = "(w1, w2, smoothing) with w1 >= w2 >= 0 and smoothing from 0 to below 1"
    sound = len(trace_rule) == 3 and 0 <= trace_rule[1] <= trace_rule[0] and 0 <= trace_rule[2] < 1
    _check(sound, "trace_rule", trace_rule, remedy)
    above, below, smoothing = trace_rule
    return config.TraceRule(update_above=above, stop_below=below, smoothing=smoothing)
