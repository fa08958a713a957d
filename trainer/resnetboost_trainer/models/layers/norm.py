"""Batch normalization, optionally fused with the addition of a shortcut and relu.

On CPUs with the C++ operators all of it is one pass over memory, forward and backward (kernels/normalization.cpp).
Elsewhere MindSpore's operators compute the same values up to rounding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import signature as sig

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.models.amp import operable, single
from resnetboost_trainer.models.layers.sync_norm import Synchronized

EPSILON = 1e-5
KEPT = 0.9  # share of the running statistics kept at each step: torchvision's momentum of 0.1


class BatchNorm(nn.BatchNorm2d):
    """nn.BatchNorm2d with torchvision's constants, (n, c, h, w) -> (n, c, h, w), and fused forms with relu.

    Parameters are MindSpore's: gamma, beta, moving_mean, moving_variance; float32, even if x has half precision.
    """

    def __init__(self, channels: int, rectifies: bool = False) -> None:
        """`rectifies`: relu follows where it is called as a cell, as one of a sequence."""
        super().__init__(channels, eps=EPSILON, momentum=KEPT)
        self.rectifies, self.synchronized = rectifies, False
        self.begin, self.gathered = Tensor([0.0], ms.float32), Synchronized(1, EPSILON)
        operators = library.usable() if ms.get_context("device_target") == "CPU" else None
        self.fused = operators is not None
        if operators is not None:
            self.plain = _Fused(operators, rectify=False, add=False)
            self.rectifying = _Fused(operators, rectify=True, add=False)
            self.adding = _Fused(operators, rectify=True, add=True)

    def construct(self, x: Tensor) -> Tensor:
        """Return the normalized x."""
        if self.rectifies:
            return self.rectified(x)
        if self.synchronized and self.of_batch():
            return self.across(x, self.begin)[0]
        return self.alone(x)

    def alone(self, x: Tensor) -> Tensor:
        """Return x normalized on this rank alone."""
        if self.fused:
            return self.plain(x, x, self.gamma, self.beta, self.moving_mean, self.moving_variance, self.of_batch())
        return super().construct(operable(x)).astype(x.dtype)

    def rectified(self, x: Tensor) -> Tensor:
        """Return relu(normalized x)."""
        if self.synchronized and self.of_batch():
            return ops.relu(self.across(x, self.begin)[0])
        if self.fused:
            return self.rectifying(x, x, self.gamma, self.beta, self.moving_mean, self.moving_variance, self.of_batch())
        return ops.relu(super().construct(operable(x))).astype(x.dtype)

    def added(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Return relu(normalized x + shortcut); the shortcut has the shape of x."""
        if self.fused:
            statistics = self.moving_mean, self.moving_variance
            return self.adding(x, shortcut, self.gamma, self.beta, *statistics, self.of_batch())
        return ops.relu(super().construct(operable(x)) + operable(shortcut)).astype(x.dtype)

    def synchronize(self, ranks: int) -> None:
        """Take the statistics of a batch over that many ranks from now on, all of them; call it before compiling."""
        self.synchronized, self.gathered = True, Synchronized(ranks, EPSILON)

    def across(self, x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return x normalized over all ranks, and a token: what is given it gathers later. A collective in training."""
        if not self.of_batch():
            return self.alone(x), token
        y, token, mean, _, variance = self.gathered(single(x), self.gamma, self.beta, token)
        ops.assign(self.moving_mean, KEPT * self.moving_mean + (1 - KEPT) * mean)
        ops.assign(self.moving_variance, KEPT * self.moving_variance + (1 - KEPT) * variance)
        return y.astype(x.dtype), token

    def of_batch(self) -> bool:
        """True if the batch's statistics are used: in training, unless `use_batch_statistics` overrides it."""
        return self.training if self.use_batch_statistics is None else bool(self.use_batch_statistics)


class _Fused(nn.Cell):
    """relu(BN(x) + shortcut), each of relu and shortcut optional, with the batch's or the running statistics.

    The operators support float32 only; half precision is cast to float32 before and back after them.
    """

    def __init__(self, operators: Path, rectify: bool, add: bool) -> None:
        super().__init__()
        self.settings, self.add = Tensor([EPSILON, KEPT, float(rectify)], ms.float32), add
        name = "normalization_added" if add else "normalization"
        self.training_operator = _of_batch(operators, name, add)
        self.inference_operator = _of_running(operators, name, rectify, add)

    def construct(
        self,
        x: Tensor,
        shortcut: Tensor,
        gamma: Parameter,
        beta: Parameter,
        mean: Parameter,
        variance: Parameter,
        of_batch: bool,
    ) -> Tensor:
        kept = gamma, beta, mean, variance, self.settings
        given = (single(x), *kept, single(shortcut)) if self.add else (single(x), *kept)
        y = self.training_operator(*given)[0] if of_batch else self.inference_operator(*given)
        return y.astype(x.dtype)


def _of_batch(operators: Path, name: str, add: bool) -> ops.Custom:
    """Training operator: (x, gamma, beta, running mean, running variance, settings [, shortcut]) -> y, means, 1 / std.

    `std` are the batch's standard deviations.
    """

    def results(x: Sequence[int], gamma: Sequence[int], *others: Sequence[int]) -> tuple[Sequence[int], ...]:
        return x, gamma, gamma

    def result_types(x: Any, *others: Any) -> tuple[Any, ...]:
        return x, x, x

    def differentials(x: Sequence[int], gamma: Sequence[int], *others: Sequence[int]) -> tuple[Sequence[int], ...]:
        return (x, gamma, gamma, x) if add else (x, gamma, gamma)

    def differential_types(x: Any, *others: Any) -> tuple[Any, ...]:
        return (x, x, x, x) if add else (x, x, x)

    backward = primitive(operators, f"{name}_gradients", differentials, differential_types, add=add)

    def plain(
        x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, settings: Tensor, out: Any, dout: Any
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = backward(x, gamma, out[1], out[2], out[0], dout[0], settings)
        return dx, dgamma, dbeta, ops.zeros_like(mean), ops.zeros_like(variance), ops.zeros_like(settings)

    def with_shortcut(
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        variance: Tensor,
        settings: Tensor,
        shortcut: Tensor,
        out: Any,
        dout: Any,
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta, dshortcut = backward(x, gamma, out[1], out[2], out[0], dout[0], settings)
        nothing = ops.zeros_like(mean), ops.zeros_like(variance), ops.zeros_like(settings)
        return dx, dgamma, dbeta, *nothing, dshortcut

    forward = primitive(operators, name, results, result_types, with_shortcut if add else plain, add=add)
    # The running statistics change in place: the compiler must not drop the operator or run it twice.
    read, written = sig.sig_rw.RW_READ, sig.sig_rw.RW_WRITE
    modes = [read, read, read, written, written, read, *([read] if add else [])]
    forward.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
    forward.add_prim_attr("side_effect_mem", True)
    return forward


def _of_running(operators: Path, name: str, rectify: bool, add: bool) -> ops.Custom:
    """Inference operator: (x, gamma, beta, running mean, running variance, settings [, shortcut]) -> y.

    Its gradient, needed only by frozen parts of a network, uses MindSpore's operators.
    """

    def first(*given: Any) -> Any:
        return given[0]

    def passed(out: Tensor, dout: Tensor) -> Tensor:
        return dout * (out > 0).astype(dout.dtype) if rectify else dout

    def of_parameters(
        x: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, dz: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        inverse = ops.rsqrt(variance + EPSILON)
        by_scale = (dz * (x - mean.reshape(1, -1, 1, 1))).sum((0, 2, 3)) * inverse
        return dz * (gamma * inverse).reshape(1, -1, 1, 1), by_scale, dz.sum((0, 2, 3))

    def plain(
        x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, settings: Tensor, out: Any, dout: Any
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = of_parameters(x, gamma, mean, variance, passed(out, dout))
        return dx, dgamma, dbeta, ops.zeros_like(mean), ops.zeros_like(variance), ops.zeros_like(settings)

    def with_shortcut(
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        variance: Tensor,
        settings: Tensor,
        shortcut: Tensor,
        out: Any,
        dout: Any,
    ) -> tuple[Tensor, ...]:
        dz = passed(out, dout)
        dx, dgamma, dbeta = of_parameters(x, gamma, mean, variance, dz)
        nothing = ops.zeros_like(mean), ops.zeros_like(variance), ops.zeros_like(settings)
        return dx, dgamma, dbeta, *nothing, dz

    gradients = with_shortcut if add else plain
    return primitive(operators, f"{name}_inference", first, first, gradients, rectify=rectify, add=add)
