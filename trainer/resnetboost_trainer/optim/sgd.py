"""Momentum SGD (Polyak 1964; Nesterov's form as an option: Sutskever et al. 2013), in one graph."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import signature as sig

from resnetboost_trainer.config import Momentum as Settings
from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.groups import Groups


class Momentum(nn.Cell):
    """v <- mu v + (g + wd w);  w <- w - lr v,  for every parameter of a network at once.

    By Nesterov's form w <- w - lr (g + wd w + mu v), with the new v.

    Weight decay `wd` is coupled (it passes through the momentum); without groups it applies to convolution and dense
    weights only. A group's factor is on `lr`.
    `velocity` is the only state. On CPUs it is one C++ operator where there is one (kernels/momentum.cpp).
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings, own: Groups | None = None) -> None:
        """`own`: the group of each parameter."""
        super().__init__()
        self.parameters = ParameterTuple(parameters)
        self.velocity = self.parameters.clone(prefix="velocity", init="zeros")
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)
        self.decay = groups.decays(parameters, settings.weight_decay, own)
        self.rates = groups.rates(parameters, own)
        self.momentum, self.nesterov = settings.momentum, settings.nesterov
        self.apply, self.subtract = ops.ApplyMomentum(), ops.AssignSub()
        operators = library.usable() if mindspore.get_context("device_target") == "CPU" else None
        self.fused = False
        if operators is not None and all(parameter.dtype == mindspore.float32 for parameter in parameters):
            self.fused = True
            self.settings = Tensor([self.momentum, float(self.nesterov), *self.decay, *self.rates], mindspore.float32)
            self.step = _step(operators, "momentum_step", len(self.sizes))
            self.step_of_buffer = _step(operators, "momentum_step_of_buffer", len(self.sizes))

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (sum of sizes,), in the order of the parameters, and what follows it."""
        if self.fused:
            if gradients.shape[0] > self.count:
                return self.step_of_buffer(gradients, learning_rate, self.settings, *self.parameters, *self.velocity)
            return self.step(gradients, learning_rate, self.settings, *self.parameters, *self.velocity)
        parts = ops.split(gradients[: self.count], self.sizes)
        for k in range(len(self.sizes)):
            rate = learning_rate if self.rates[k] == 1 else learning_rate * self.rates[k]
            if self.nesterov:  # ApplyMomentum(use_nesterov=True) does without it on the CPU (MindSpore 2.10)
                self.subtract(self.parameters[k], rate * self.direction(k, parts[k]))
            else:
                gradient = self.decayed(k, parts[k])
                self.apply(self.parameters[k], self.velocity[k], rate, gradient, self.momentum)
        return learning_rate

    def decayed(self, k: int, gradient: Tensor) -> Tensor:
        """The gradient of a parameter in its shape, with weight decay."""
        gradient = gradient.reshape(self.shapes[k])
        return gradient + self.decay[k] * self.parameters[k] if self.decay[k] > 0 else gradient

    def direction(self, k: int, gradient: Tensor) -> Tensor:
        """What a step takes from a parameter, times the learning rate; its velocity goes on."""
        gradient = self.decayed(k, gradient)
        velocity = self.momentum * self.velocity[k] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        ops.assign(self.velocity[k], velocity)
        return direction

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        return list(self.velocity)


def _step(operators: Path, name: str, count: int) -> ops.Custom:
    """(flat gradient, rate, settings, weights ..., velocities ...) -> rate; weights and velocities change in place."""

    def second(*given: Any) -> Any:
        return given[1]

    step = primitive(operators, name, second, second)
    modes = [sig.sig_rw.RW_READ] * 3 + [sig.sig_rw.RW_WRITE] * (2 * count)
    step.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
    step.add_prim_attr("side_effect_mem", True)
    return step
