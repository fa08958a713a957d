"""THOR for any MindSpore script: `THOR(network, ...)` and a training cell; the trainer itself does not use it.

thor = THOR(network, learning_rate=0.02, damping=0.1)
train = thor.training_cell(nn.CrossEntropyLoss())
for images, labels in batches:
    loss = train(images, labels)
"""

import contextlib
import logging
import math
import numbers
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.distributed.reduction import Reduction
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.optim.grad_scaler import MOST_IN_A_ROW
from resnetboost_trainer.optim.sgd import Momentum
from resnetboost_trainer.optim.thor.kfac import KFACPreconditioner
from resnetboost_trainer.optim.thor.report import CurvatureUpdate

# Relative tolerance between a batch's loss and that of the batch taken twice, for a mean; half precision is below it.
MEAN_WITHIN = 0.01

log = logging.getLogger(__name__)

# Or a Tensor, which is untyped here.
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
        """Raises ValueError naming an invalid argument, or if the network has no supported layer."""
        _check(isinstance(network, nn.Cell), "network", network, "the network itself, a mindspore.nn.Cell")
        self.learning_rate = _Schedule("learning_rate", learning_rate, "of at least 0", lambda value: value >= 0)
        self.damping = _Schedule("damping", damping, "above 0", lambda value: value > 0)
        for name, whole in (("frequency", frequency), ("block_size", block_size)):
            _check(
                _is_number(whole) and whole >= 1 and whole == int(whole), name, whole, "a whole number of at least 1"
            )
        _check(_is_number(momentum) and 0 <= momentum < 1, "momentum", momentum, "a number from 0 to below 1")
        _check(_is_number(weight_decay) and weight_decay >= 0, "weight_decay", weight_decay, "a number of at least 0")
        bounded = clip_norm is None or (_is_number(clip_norm) and clip_norm > 0)
        _check(bounded, "clip_norm", clip_norm, "a number above 0, or None")
        _check(_is_number(loss_scale) and loss_scale > 0, "loss_scale", loss_scale, "a number above 0")
        for name, choice in (("pi", pi), ("nesterov", nesterov)):
            _check(isinstance(choice, bool), name, choice, "True or False")
        named = _is_list(exclude) and all(type(each) is str for each in exclude)
        _check(named, "exclude", exclude, "a list of names")
        self.network, self.loss_scale = network, loss_scale
        self.communicator = Communicator.present()
        settings = config.Thor(
            frequency=int(frequency),
            block_size=int(block_size),
            damping=config.Damping(initial=0, decay=1, decay_epochs=1, split="Pi" if pi else "Symmetric"),
            trace_rule=_rule(trace_rule),
            clip_norm=clip_norm,
        )
        self.curvature = KFACPreconditioner(network, network.trainable_params(), settings, self.communicator, exclude)
        sgd = config.Momentum(momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        self.optimizer = self.curvature.optimizer(Momentum(self.curvature.parameters, sgd))

    def training_cell(self, loss: Callable[..., Any]) -> "TrainingCell":
        """Return a cell that trains on a batch per call; `loss` gets the network's output and the batch's last tensor.

        Raises ValueError for a loss whose `reduction` is not a mean over the batch; others are checked at their first
        use.
        """
        _check(callable(loss), "loss", loss, "a loss cell or function of (output, labels)")
        reduction = _reduction(loss)
        remedy = "a mean over the batch, as reduction='mean' makes it"
        _check(reduction not in ("sum", "none"), "reduction of the loss", reduction, remedy)
        return TrainingCell(self, loss)


class TrainingCell(nn.Cell):
    """Training step: (inputs ..., labels) -> mean loss over the ranks. The first axis of all tensors is the batch.

    It works by itself and as the network of a `mindspore.Model` without loss and optimizer (dataset_sink_mode=False).
    `mindspore.save_checkpoint(cell, file)` saves everything that a later process needs to continue.
    """

    def __init__(self, thor: THOR, loss: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        curvature = thor.curvature
        self.network, self.optimizer, self.thor = thor.network, thor.optimizer, thor
        self.traces, self.dampings, self.overdue = curvature.traces, curvature.dampings, curvature.overdue
        self.steps = Parameter(Tensor(0, mindspore.int32), name="thor.steps", requires_grad=False)
        self.loss, self.is_mean = loss, False
        self._compile()
        self._written = list(self.get_parameters())
        self._places: list[int] | None = None
        self.last_update: CurvatureUpdate | None = None
        self.skipped = self._skipped_in_a_row = 0

    def _compile(self) -> None:
        """Create the graphs, which bind to the parameters' memory at their first run."""
        thor, parameters, probes = self.thor, self.thor.curvature.parameters, self.thor.curvature.capture.probes
        self.plain = _Compiled(_Gradient(thor.network, self.loss, parameters, thor.loss_scale))
        self.capturing = _Compiled(_Gradient(thor.network, self.loss, parameters, thor.loss_scale, probes))
        self.reduction = _Compiled(Reduction(parameters, thor.communicator.size))
        self.update = _Compiled(thor.optimizer)

    def _follow(self) -> None:
        """Recompile if parameters were loaded since the last step; `models.assign.write` explains why."""
        places = [parameter.data_ptr() for parameter in self._written]
        if self._places is not None and places != self._places:
            log.info("THOR compiles its graphs again, since parameters were loaded after a step")
            self._compile()

    def __call__(self, *batch: Tensor) -> Tensor:
        """Perform one step; `last_update` is the result of the last curvature update.

        A gradient that is not finite, as in half precision if the loss scale is too large, changes only running
        statistics: it is logged and counted in `skipped`, and its curvature update is postponed to the next step.
        Raises FloatingPointError after more than MOST_IN_A_ROW in a row.
        """
        graph_mode = mindspore.get_context("mode") == mindspore.GRAPH_MODE  # graphs follow new memory by themselves
        if not graph_mode:
            self._follow()
        step = int(self.steps.asnumpy())
        thor, curvature = self.thor, self.thor.curvature
        curvature.forget()  # a script may load what it likes between two steps
        rate, damping = thor.learning_rate.at(step), thor.damping.at(step)
        due = curvature.due(step)
        flat, captured = self._gradient(batch, due)
        gradients, scalars = self.reduction(flat)
        if not np.isfinite(scalars[0].asnumpy()):
            self._skip(step)
            if due:
                curvature.postpone()
        else:
            self._skipped_in_a_row = 0
            if due:
                self.last_update = curvature.update(captured, flat, batch[0].shape[0], thor.loss_scale, damping)
            self.update(gradients, Tensor(rate, mindspore.float32))
        write(self.steps, np.asarray(step + 1))
        self._places = [] if graph_mode else [parameter.data_ptr() for parameter in self._written]
        return scalars[1]

    def _skip(self, step: int) -> None:
        """Count and log a skipped step. Raises FloatingPointError after too many in a row."""
        self.skipped, self._skipped_in_a_row = self.skipped + 1, self._skipped_in_a_row + 1
        scale = self.thor.loss_scale
        if self._skipped_in_a_row > MOST_IN_A_ROW:
            reason = f"no gradient was finite in {self._skipped_in_a_row} steps in a row, the last one step {step}"
            remedy = f"lower loss_scale, now {scale:g}, or learning_rate, or look for such numbers in the batches"
            raise FloatingPointError(f"THOR: {reason}; {remedy}")
        log.warning("THOR leaves step %d out: its gradient is not finite (loss_scale %g)", step, scale)

    def _gradient(self, batch: Sequence[Tensor], due: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        graph = self.capturing if due else self.plain
        with self.thor.curvature.capture.attached() if due else contextlib.nullcontext():
            graph.set_train(True)
            try:
                flat, captured, outputs = graph(*batch)
            except ValueError as error:
                if due and "AddN" in str(error):  # MindSpore's operator that fails to add up gradients
                    remedy = "name it in `exclude`"
                    raise ValueError(f"THOR: a layer has inputs of several shapes in one step; {remedy}") from error
                raise
        if due and not self.is_mean:
            self.is_mean = _check_mean(self.loss, outputs, batch[-1])
        return flat, captured


class _Compiled(nn.Cell):
    """Runs a cell as a compiled graph, also in PyNative mode, MindSpore's default."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    @mindspore.jit
    def construct(self, *arguments: Tensor) -> Any:
        return self.cell(*arguments)


class _Gradient(nn.Cell):
    """Gradient: (inputs ..., labels) -> flat [gradients ..., loss, loss] for `Reduction`, the probes' gradients.

    Third output: the network's output if it is one tensor, else the loss.
    """

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
        self.gradient = ops.value_and_grad(self.forward, None, ParameterTuple([*parameters, *probes]), has_aux=True)

    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled loss and the network's output."""
        outputs = self.network(*batch[:-1])
        loss = self.loss(outputs, batch[-1])
        if loss.size != 1:
            raise ValueError(
                f"THOR: the loss has shape {loss.shape}; use one that is a mean over the batch, one number"
            )
        return loss if self.loss_scale == 1 else loss * self.loss_scale, outputs if isinstance(
            outputs, Tensor
        ) else loss

    def construct(self, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        (loss, outputs), gradients = self.gradient(*batch)
        pieces = [gradient.astype(mindspore.float32).reshape(-1) for gradient in gradients[: self.count]]
        value = loss.astype(mindspore.float32).reshape(1)
        return ops.concat([*pieces, value, value]) / self.loss_scale, gradients[self.count :], outputs


class _Doubled(nn.Cell):
    """Loss of a batch and of the same batch taken twice: (outputs, labels) -> (once, twice)."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.loss = loss

    def construct(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(outputs, labels), self.loss(ops.concat((outputs, outputs)), ops.concat((labels, labels)))


def _check_mean(loss: Callable[..., Any], outputs: Tensor, labels: Tensor) -> bool:
    """Check that the loss is a mean over the batch, since otherwise the curvature is wrong; warn if it is not.

    Returns whether this batch could decide it. Raises ValueError for a sum.
    """
    if outputs.ndim == 0 or labels.ndim == 0 or outputs.shape[0] != labels.shape[0]:
        return False
    once, twice = (float(each.asnumpy()) for each in _Compiled(_Doubled(loss))(outputs, labels))
    if not (math.isfinite(once) and math.isfinite(twice)):
        return False
    if math.isclose(once, twice, rel_tol=MEAN_WITHIN):
        return True
    values = f"{once:.4g} for this batch and {twice:.4g} for the same batch taken twice"
    if math.isclose(2 * once, twice, rel_tol=MEAN_WITHIN):
        raise ValueError(f"THOR: the loss is {values}, a sum; use a mean over the batch, as reduction='mean' makes it")
    log.warning("THOR: the loss is %s; the curvature is right only for a mean over the batch", values)
    return True


def _reduction(loss: Callable[..., Any]) -> object:
    """Return the `reduction` of a MindSpore loss, or None if it has none."""
    if isinstance(loss, nn.LossBase) and not hasattr(loss, "reduction"):
        return "none" if not loss.reduce else "mean" if loss.average else "sum"
    return getattr(loss, "reduction", None)


class _Schedule:
    """A number, one number per step, or a function of the step; values known in advance are checked."""

    def __init__(self, name: str, scheduled: Any, least: str, sound: Callable[[float], bool]) -> None:
        self.name, self.sound = name, sound
        self.remedy = f"a finite number {least}, some of them, or a function of the step"
        self.function = scheduled if callable(scheduled) and not isinstance(scheduled, Tensor) else None
        if self.function is None:
            self.values = _numbers(scheduled)
            _check(bool(self.values) and all(map(self._sound, self.values)), name, scheduled, self.remedy)
        else:
            self.at(0)

    def at(self, step: int) -> float:
        """Return the value at a step (0-based); the last number stays. Raises ValueError for an invalid result."""
        if self.function is None:
            return self.values[min(step, len(self.values) - 1)]
        value = self.function(step)
        (number,) = _numbers(value) or (math.nan,)
        _check(self._sound(number), f"{self.name} at step {step}", value, self.remedy)
        return number

    def _sound(self, number: float) -> bool:
        return math.isfinite(number) and self.sound(number)


def _numbers(given: Any) -> list[float]:
    """Convert a number, sequence, array or Tensor to a list of floats; empty if it is not of real numbers."""
    try:
        array = np.asarray(given.asnumpy() if isinstance(given, Tensor) else given)
    except ValueError:  # lists of several lengths
        return []
    values: list[float] = array.astype(np.float64).reshape(-1).tolist() if array.dtype.kind in "iuf" else []
    return values


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _is_number(value: object) -> bool:
    """Return whether a value is a finite real number and not a bool."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def _check(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"THOR: {name} is {reprlib.repr(value)}; use {remedy}")


def _rule(trace_rule: Sequence[float]) -> config.TraceRule:
    remedy = "(w1, w2, smoothing) with w1 >= w2 >= 0 and smoothing from 0 to below 1"
    given = _is_list(trace_rule) and len(trace_rule) == 3 and all(map(_is_number, trace_rule))
    _check(given and 0 <= trace_rule[1] <= trace_rule[0] and 0 <= trace_rule[2] < 1, "trace_rule", trace_rule, remedy)
    above, below, smoothing = trace_rule
    return config.TraceRule(update_above=above, stop_below=below, smoothing=smoothing)
