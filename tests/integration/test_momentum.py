"""Momentum steps against the formula in float64; MindSpore's own CPU operator ignores Nesterov."""

import contextlib
from collections.abc import Iterator

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from resnetboost_trainer import config
from resnetboost_trainer.kernels import library
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.sgd import Momentum
from support.familygradients import mindspores_operators

OURS, MINDSPORES = "our operators", "MindSpore's operators"


@pytest.fixture(params=[OURS, MINDSPORES])
def operators(request: pytest.FixtureRequest) -> Iterator[str]:
    """Our operators and MindSpore's; where ours are not built, both are MindSpore's."""
    with mindspores_operators() if request.param == MINDSPORES else contextlib.nullcontext():
        yield request.param


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "Nesterov's"])
def test_steps_are_those_of_the_formula_and_only_matrices_decay(nesterov: bool, operators: str) -> None:
    mu, decay, rate = 0.75, 0.125, 0.5
    weight = Parameter(Tensor(np.full((2, 3), 2, np.float32)), name="weight")
    bias = Parameter(Tensor(np.full(3, 2, np.float32)), name="bias")
    optimizer = Momentum([weight, bias], config.Momentum(momentum=mu, weight_decay=decay, nesterov=nesterov))
    assert optimizer.fused == (operators == OURS and library.usable() is not None)
    generator = np.random.default_rng(0)
    w, v, wd = np.full(9, 2.0), np.zeros(9), np.repeat([decay, 0.0], [6, 3])
    for _ in range(4):
        gradient = generator.standard_normal(9).astype(np.float32)
        assert optimizer(Tensor(gradient), Tensor(rate, mindspore.float32)).asnumpy() == rate
        decayed = gradient + wd * w
        v = mu * v + decayed
        w = w - rate * (decayed + mu * v if nesterov else v)
    ours = np.concatenate([weight.asnumpy().reshape(-1), bias.asnumpy()])
    np.testing.assert_allclose(ours, w, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("any_mode", "operators")
@pytest.mark.parametrize("kind", ["Momentum", "clipped", "LARS"])
def test_what_follows_the_gradient_in_a_ranks_buffer_changes_nothing(kind: str) -> None:
    ends = []
    for following in ([], [np.nan, 1e9]):
        weights = [Parameter(Tensor(np.full((2, 3), 2, np.float32)), name=f"w{k}") for k in range(2)]
        settings = config.Momentum(momentum=0.75, weight_decay=0.125, nesterov=False)
        optimizer = Momentum(weights, settings)
        if kind == "LARS":
            optimizer = Lars(weights, settings, config.Lars(trust_coefficient=0.25))
        if kind == "clipped":
            optimizer = Clipped(optimizer, 0.5)
        gradient = np.random.default_rng(0).standard_normal(12)
        flat = Tensor(np.concatenate([gradient, following]).astype(np.float32))
        for _ in range(2):
            optimizer(flat, Tensor(0.5, mindspore.float32))
        ends.append(np.stack([weight.asnumpy() for weight in weights]))
    np.testing.assert_array_equal(*ends)
    assert np.abs(ends[0] - 2).min() > 0
