"""THOR for anybody's MindSpore script: `THOR(network, ...)` and a training cell; the trainer itself does not use it.

thor = THOR(network, learning_rate=0.01, damping=0.03)
train = thor.training_cell(nn.CrossEntropyLoss())
for images, labels in batches:
    loss = train(images, labels)
"""

import contextlib
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

Scheduled = float | Sequence[float] | NDArray[np.floating[Any]] | Callable[[int], float]


class THOR:
    """Second-order optimizer for a network: Chen et al., "THOR" (AAAI 2021), on MindSpore's plain operators.

    Conv2d (any kernel, stride, padding, dilation, groups), Dense, Embedding and LayerNorm are preconditioned, all else
    has momentum SGD. `learning_rate` and `damping` are numbers, one number per step (the last one stays), or functions
    of the step. `frequency`: steps between updates of the curvature. `block_size`: largest diagonal block of a factor.
    `pi`: share damping by the factors' traces (Martens & Grosse 2015); False is MindSpore's convention. `trace_rule`:
    (w1, w2, smoothing) of the paper's rule which layers an update leaves out; zeros update all. `clip_norm`: longest
    direction. `loss_scale`: factor on the loss during the backward pass, for half precision. `exclude`: names of layers
    (as `network.cells_and_names()` has them) that are to keep their plain gradient.

    In a process that has called `mindspore.communication.init()` gradients and factors are averaged over the ranks.
    """

    def __init__(
        self,
        network: nn.Cell,
        learning_rate: Scheduled = 0.01,
        damping: Scheduled = 0.03,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        *,
        frequency: int = 10,
        block_size: int = 128,
        pi: bool = True,
        trace_rule: tuple[float, float, float] = (0.1, 0.0, 0.5),
        clip_norm: float | None = None,
        nesterov: bool = False,
        loss_scale: float = 1.0,
        exclude: Sequence[str] = (),
    ) -> None:
        """Raises ValueError naming the argument for what cannot be, and when the network has no layer it knows."""
        _check(frequency=frequency, block_size=block_size, clip_norm=clip_norm, loss_scale=loss_scale)
        _check(damping=_at(damping, 0))
        self.network, self.learning_rate, self.damping, self.loss_scale = network, learning_rate, damping, loss_scale
        self.communicator = Communicator.present()
        settings = config.Thor(
            frequency=frequency,
            block_size=block_size,
            damping=config.Damping(initial=0, decay=1, decay_epochs=1, split="Pi" if pi else "Symmetric"),
            trace_rule=config.TraceRule(update_above=trace_rule[0], stop_below=trace_rule[1], smoothing=trace_rule[2]),
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
        self.traces = curvature.traces
        self.steps = Parameter(Tensor(0, mindspore.int32), name="thor.steps", requires_grad=False)
        self.plain = _Compiled(_Gradient(thor.network, loss, curvature.parameters, thor.loss_scale))
        probes = curvature.capture.probes
        self.capturing = _Compiled(_Gradient(thor.network, loss, curvature.parameters, thor.loss_scale, probes))
        self.reduction = _Compiled(Reduction(curvature.parameters, thor.communicator.size))
        self.update = _Compiled(thor.optimizer)
        self.last_update: Update | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        """One step; `last_update` says what the newest update of the curvature did.

        An update is left out when the gradient is not finite; the weights then are not either.
        """
        step = int(self.steps.asnumpy())
        thor, curvature = self.thor, self.thor.curvature
        due = curvature.due(step)
        flat, captured = self._gradient(batch, due)
        gradients, scalars = self.reduction(flat)
        if due and np.isfinite(scalars[0].asnumpy()):
            samples, damping = batch[0].shape[0], _at(thor.damping, step)
            self.last_update = curvature.update(captured, flat, samples, thor.loss_scale, damping)
        self.update(gradients, Tensor(_at(thor.learning_rate, step), mindspore.float32))
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
    if callable(scheduled):
        return float(scheduled(step))
    if isinstance(scheduled, Sequence | np.ndarray):
        return float(scheduled[min(step, len(scheduled) - 1)])
    return float(scheduled)


def _check(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"THOR: {name} is {value}; use a number above 0")
