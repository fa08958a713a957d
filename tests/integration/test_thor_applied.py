"""THOR in a user's script: the weight updates in both of MindSpore's modes against a NumPy reference.

The reference is a network of two dense layers in NumPy and float64: forward, backward, factors, directions.
"""

from pathlib import Path
from typing import Any, NamedTuple

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.optim.thor.training import THOR, TrainingCell
from support import thornetworks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("any_mode")]

Floats = NDArray[np.float32]
Array = NDArray[np.float64]
Batch = tuple[Floats, NDArray[np.int32]]
Matrices = tuple[Array, Array]

SAMPLES, RATE = 16, 0.05  # MindSpore sums 16 losses in a fixed order; with 12 the order varies from call to call
EVERY_TIME = (0.0, 0.0, 0.0)


class Two(nn.Cell):  # type: ignore[misc]
    """(n, 7) -> (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(7, 5, has_bias=False), nn.Dense(5, 3, has_bias=False)
        thornetworks.draw(self)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.tanh(self.first(x)))


class Seen(NamedTuple):
    """One layer at one step: inputs a (n, inputs), gradients d of each sample's loss by its outputs (n, outputs)."""

    a: Array
    d: Array

    @property
    def gradient(self) -> Array:
        return self.d.T @ self.a / len(self.a)

    @property
    def trace(self) -> float:
        return float((self.a**2).sum() * (self.d**2).sum()) / len(self.a) ** 2

    def inverses(self, damping: float) -> Matrices:
        """Inverses of A and G, each with its share of the damping (Martens & Grosse 2015, §6.3)."""
        a, g = self.a.T @ self.a / len(self.a), self.d.T @ self.d / len(self.d)
        ratio = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
        share = np.sqrt(damping)
        return np.linalg.inv(a + ratio * share * np.eye(len(a))), np.linalg.inv(g + share / ratio * np.eye(len(g)))


def seen(weights: Matrices, batch: Batch) -> tuple[Seen, Seen]:
    x, y = batch[0].astype(np.float64), batch[1]
    hidden = np.tanh(x @ weights[0].T)
    powers = np.exp(hidden @ weights[1].T)
    last = powers / powers.sum(1, keepdims=True) - np.eye(3)[y]
    return Seen(x, (last @ weights[1]) * (1 - hidden**2)), Seen(hidden, last)


def batches(count: int) -> list[Batch]:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((count, SAMPLES, 7), np.float32) * generator.uniform(0.5, 2, (count, 1, 1))
    return [(each.astype(np.float32), (np.arange(SAMPLES) % 3).astype(np.int32)) for each in x]


def trainer(**settings: Any) -> TrainingCell:
    plain: dict[str, Any] = {"learning_rate": RATE, "momentum": 0.0, "weight_decay": 0.0, "trace_rule": EVERY_TIME}
    return THOR(Two(), **plain | settings).training_cell(nn.CrossEntropyLoss())


def train(cell: TrainingCell, some: list[Batch]) -> list[float]:
    """Train and return the losses."""
    return [float(cell(Tensor(x), Tensor(y)).asnumpy()) for x, y in some]


def weights(cell: TrainingCell) -> Matrices:
    first, last = (layer.weight.asnumpy().astype(np.float64) for layer in (cell.network.first, cell.network.last))
    return first, last


def state(cell: nn.Cell) -> dict[str, NDArray[Any]]:
    return {parameter.name: parameter.asnumpy().copy() for parameter in cell.get_parameters()}


def differing(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not np.array_equal(value, other[name])]


def close(got: Array, expected: Array, relative: float) -> bool:
    return bool(np.abs(got - expected).max() <= relative * np.abs(expected).max())


def test_every_step_goes_along_the_newest_updates_direction() -> None:
    cell, inverses = trainer(frequency=3, damping=lambda step: 0.1 * 0.9**step), []
    for step, batch in enumerate(batches(11)):
        before = weights(cell)
        layers = seen(before, batch)
        if step % 3 == 0:
            inverses = [layer.inverses(0.1 * 0.9**step) for layer in layers]
        train(cell, [batch])
        for layer, old, new, (a, g) in zip(layers, before, weights(cell), inverses, strict=True):
            assert close((old - new) / RATE, g @ layer.gradient @ a, 1e-3), step


def test_a_checkpoint_goes_on_to_the_same_bits_in_another_process_and_in_a_cell_that_has_run(tmp_path: Path) -> None:
    settings = {"frequency": 2, "momentum": 0.9, "trace_rule": (0.1, 0.0, 0.5), "damping": lambda step: 0.1 * 0.9**step}
    some = batches(30)
    undisturbed = trainer(**settings)
    train(undisturbed, some[:11])
    mindspore.save_checkpoint(undisturbed, str(tmp_path / "cell.ckpt"))
    expected = train(undisturbed, some[11:])
    used = trainer(**settings)
    train(used, some[20:25])
    for later in (trainer(**settings), used, undisturbed):  # the last restores its earlier state
        mindspore.load_checkpoint(str(tmp_path / "cell.ckpt"), later)
        assert train(later, some[11:]) == expected
        assert differing(state(later), state(undisturbed)) == []


def damping_of(cell: TrainingCell, layers: tuple[Seen, Seen]) -> list[float]:
    """The damping in each layer's inverses, computed from its factors."""
    found = []
    for layer, stack in zip(layers, cell.thor.curvature.preconditioner.stacks, strict=True):
        inverted = stack.inverses[1].asnumpy()[0].astype(np.float64)
        g = layer.d.T @ layer.d / len(layer.d)
        a = layer.a.T @ layer.a / len(layer.a)
        ratio = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
        share = np.trace(np.linalg.inv(inverted) - g) / len(g) * ratio
        found.append(float(share**2))
    return found


@pytest.mark.parametrize("stop_below", [0.0, 0.2], ids=["kept", "stopped"])
def test_layers_that_the_trace_rule_spares_follow_the_damping_down_and_up(stop_below: float) -> None:
    """Weights stay fixed and the batch is always the same, so no trace changes."""
    rates = [0.1 * 0.93**step for step in range(30)] + [0.012 * 1.07**step for step in range(20)]
    cell = trainer(learning_rate=0.0, frequency=1, trace_rule=(0.3, stop_below, 0.8), damping=rates)
    (batch,) = batches(1)
    layers, updated = seen(weights(cell), batch), 0
    for rate in rates:
        train(cell, [batch])
        assert cell.last_update is not None
        told = cell.last_update
        updated += told.updated
        assert told.damping == rate
        assert (told.kept, told.stopped) == ((0, 2 - told.updated) if stop_below else (2 - told.updated, 0))
        for damping in damping_of(cell, layers):
            assert 0.7 - 1e-3 <= damping / rate <= 1 / 0.7 + 1e-3, rate
    assert updated <= 2 * 12, "the rule spares nothing"


def test_a_noisy_trace_without_a_trend_leaves_no_layer_with_an_old_damping() -> None:
    rates = [0.1 * 0.5 ** (step / 15) for step in range(90)]
    cell, told = trainer(learning_rate=0.0, frequency=1, trace_rule=(0.3, 0.0, 0.8), damping=rates), []
    generator = np.random.default_rng(0)
    (x, y), first = batches(1)[0], weights(cell)
    last: dict[int, tuple[Seen, Seen]] = {}
    for rate in rates:
        batch = (x * np.float32(np.sqrt(generator.uniform(0.5, 1.5))), y)
        before = [stack.inverses[1].asnumpy().copy() for stack in cell.thor.curvature.preconditioner.stacks]
        train(cell, [batch])
        assert cell.last_update is not None
        told.append(cell.last_update.updated)
        stacks = cell.thor.curvature.preconditioner.stacks
        for place, (stack, old) in enumerate(zip(stacks, before, strict=True)):
            if not np.array_equal(stack.inverses[1].asnumpy(), old):
                last[place] = seen(first, batch)
        for place in range(2):
            assert 0.69 <= damping_of(cell, last[place])[place] / rate <= 1.45
    assert sum(told) < 2 * 45, "the rule spares nothing"


def test_a_checkpoint_of_an_earlier_release_goes_on_with_inverses_of_the_present_damping(tmp_path: Path) -> None:
    """The checkpoint does not contain the damping of its inverses, so the next candidate recomputes them once."""
    settings = {"frequency": 2, "trace_rule": (1000.0, 0.0, 0.0)}
    some = batches(7)
    earlier, later = trainer(**settings), trainer(**settings)
    train(earlier, some[:2])
    named = [{"name": name, "data": Tensor(value)} for name, value in state(earlier).items() if name != "thor.damping"]
    mindspore.save_checkpoint(named, str(tmp_path / "cell.ckpt"))
    mindspore.load_checkpoint(str(tmp_path / "cell.ckpt"), later)
    assert differing(state(later), state(earlier)) == ["thor.damping"]
    told = []
    for batch in some[2:]:
        layers = seen(weights(later), batch)
        train(later, [batch])
        assert later.last_update is not None
        told.append((later.last_update.updated, later.last_update.kept))
        if len(told) == 1:
            assert damping_of(later, layers) == pytest.approx([0.1, 0.1], rel=1e-2)
    assert told == [(2, 0), (2, 0), (0, 2), (0, 2), (0, 2)]
