"""THOR's public interface for scripts: `THOR(network, ...)` and its training cell, in both of MindSpore's modes."""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from numpy.typing import NDArray

import support.thornetworks as networks
from resnetboost_trainer.optim.thor.training import THOR, TrainingCell

pytestmark = pytest.mark.slow

Floats = NDArray[np.float32]
Batch = tuple[NDArray[Any], NDArray[np.int32]]
State = dict[str, NDArray[Any]]

EVERY_TIME = (0.0, 0.0, 0.0)
PLAIN = {"momentum": 0.0, "weight_decay": 0.0}


@pytest.fixture(autouse=True)
def graph_mode() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")


class Small(nn.Cell):  # type: ignore[misc]
    """A convolution with BN and a dense layer: (n, 2, 5, 4) -> (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Conv2d(2, 4, 3, has_bias=True), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Dense(80, 3)
        networks.draw(self.layers)
        networks.draw(self.head)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


def batches(count: int, size: int = 16) -> list[Batch]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, size, 2, 5, 4), np.float32)
    return [(each, (np.arange(size) % 3).astype(np.int32)) for each in x]


def trainer(network: nn.Cell | None = None, **settings: Any) -> TrainingCell:
    defaults: dict[str, Any] = {"learning_rate": 0.02, "trace_rule": EVERY_TIME}
    return THOR(network or Small(), **defaults | settings).training_cell(nn.CrossEntropyLoss())


def train(cell: TrainingCell, some: list[Batch]) -> list[float]:
    """Train and return the losses."""
    return [float(cell(Tensor(x), Tensor(y)).asnumpy()) for x, y in some]


def nothing(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss without a gradient."""
    return logits.mean() * 0


def little(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss whose gradient depends on no weight of the last layer."""
    return logits.mean() * 1e-6


def state(cell: nn.Cell) -> State:
    return {parameter.name: parameter.asnumpy().copy() for parameter in cell.get_parameters()}


def inverses(cell: TrainingCell) -> State:
    return {name: value for name, value in state(cell).items() if name.startswith("thor.inverse")}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


# A second network on real data.


class Tokens(nn.Cell):  # type: ignore[misc]
    """Embedding, dense layers and a layer normalisation: tokens (n, 30) -> (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(480, 16)
        self.mix = nn.Dense(16, 32)
        self.norm = nn.LayerNorm((32,))
        self.head = nn.Dense(32, 2)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(ops.relu(self.norm(self.mix(self.embedding(tokens)))).mean(1))


class Tumours(NamedTuple):
    """scikit-learn's breast cancer data, each of 30 measurements in 16 bins: a token of its own for every bin."""

    train: Batch
    test: Batch


@pytest.fixture(scope="module")
def tumours() -> Tumours:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    bins = [np.searchsorted(np.quantile(column, np.linspace(0, 1, 17)[1:-1]), column) for column in x.T]
    tokens, labels = (np.stack(bins, 1) + 16 * np.arange(30)).astype(np.int32), y.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(y))
    first, last = order[:448], order[448:]
    return Tumours((tokens[first], labels[first]), (tokens[last], labels[last]))


def test_it_learns_to_tell_tumours_apart(any_mode: None, tumours: Tumours) -> None:
    mindspore.set_seed(0)
    network = Tokens()
    cell = trainer(network, frequency=5, damping=0.03)
    x, y = tumours.train
    generator = np.random.default_rng(1)
    for _ in range(8):
        order = generator.permutation(len(y)).reshape(-1, 64)
        train(cell, [(x[some], y[some]) for some in order])
    assert cell.last_update is not None
    assert cell.last_update.updated == 4
    network.set_train(False)
    assert (network(Tensor(tumours.test[0])).asnumpy().argmax(1) == tumours.test[1]).mean() > 0.9


# A training cell combined with MindSpore's own features.


def test_a_model_trains_it_to_the_same_bits(any_mode: None) -> None:
    some = batches(4)
    by_hand, cell = trainer(frequency=3), trainer(frequency=3)
    train(by_hand, some * 2)
    columns = {"x": np.concatenate([x for x, _ in some]), "y": np.concatenate([y for _, y in some])}
    data = NumpySlicesDataset(columns, shuffle=False).batch(16)
    mindspore.Model(cell).train(2, data, dataset_sink_mode=False)
    assert same(state(cell), state(by_hand))


def test_names_and_values_of_the_network_stay_what_they_are() -> None:
    network = Small()
    before = state(network)
    assert list(before) == list(network.parameters_dict())
    cell = trainer(network, frequency=2)
    assert same(state(network), before)
    train(cell, batches(3))
    assert list(network.parameters_dict()) == list(before)
    assert [name for name, _ in network.parameters_and_names()] == list(before)


def test_where_parameters_lie_is_looked_up_only_where_graphs_need_it(
    any_mode: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = trainer()
    (batch,) = batches(1)
    train(cell, [batch])
    looked: list[str] = []
    data_ptr = Tensor.data_ptr

    def noted(tensor: Tensor) -> Any:
        looked.append(str(tensor.name))
        return data_ptr(tensor)

    monkeypatch.setattr(Tensor, "data_ptr", noted)
    train(cell, [batch])
    assert bool(looked) == (mindspore.get_context("mode") == mindspore.PYNATIVE_MODE)


def test_the_networks_own_checkpoint_is_as_if_there_were_no_thor(tmp_path: Path) -> None:
    network, other = Small(), Small()
    train(trainer(network), batches(2))
    mindspore.save_checkpoint(network, str(tmp_path / "network.ckpt"))
    assert list(mindspore.load_checkpoint(str(tmp_path / "network.ckpt"), other)) == list(state(other))
    assert same(state(other), state(network))


def test_a_network_can_be_used_between_the_steps_and_in_evaluation() -> None:
    network, undisturbed = Small(), trainer(frequency=2)
    cell = trainer(network, frequency=2)
    for batch in batches(4):
        train(cell, [batch])
        network.set_train(False)
        network(Tensor(batch[0]))
    train(undisturbed, batches(4))
    assert same(state(cell), state(undisturbed))


@pytest.mark.parametrize("steps", [1, 2, 3, 4], ids=["after an update", "between", "before an update", "after another"])
def test_a_checkpoint_goes_on_to_the_same_bits(steps: int, any_mode: None, tmp_path: Path) -> None:
    rule = {"frequency": 3, "trace_rule": (0.2, 0.1, 0.5), "learning_rate": [0.03, 0.02, 0.01]}
    some = batches(7)
    undisturbed = trainer(**rule)
    train(undisturbed, some[:steps])
    mindspore.save_checkpoint(undisturbed, str(tmp_path / "cell.ckpt"))
    expected = train(undisturbed, some[steps:])
    later = trainer(_elsewhere(Small()), **rule)
    loaded = mindspore.load_checkpoint(str(tmp_path / "cell.ckpt"), later)
    assert set(loaded) == set(state(later))
    assert train(later, some[steps:]) == expected
    assert same(state(later), state(undisturbed))


def _elsewhere(network: nn.Cell) -> nn.Cell:
    networks.draw(network, seed=99)
    return network


# Layers that THOR leaves alone.


class Odd(nn.Cell):  # type: ignore[misc]
    """Layers that THOR does not support, and two that it does, `first` and `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(6, 6)
        self.activated = nn.Dense(6, 6, activation="tanh")
        self.twice = nn.Dense(6, 6)
        self.half = nn.Dense(6, 6)
        self.frozen = nn.Dense(6, 6)
        self.never = nn.Dense(6, 6)
        self.excluded = nn.Dense(6, 6)
        self.last = nn.Dense(6, 3)
        networks.draw(self)
        for parameter in self.frozen.get_parameters():
            parameter.requires_grad = False

    def construct(self, x: Tensor) -> Tensor:
        y = self.activated(ops.tanh(self.first(x)))
        y = self.twice(ops.tanh(self.twice(y)))
        y = y + ops.concat((self.half(y[:4]), y[4:]), 0)
        return self.last(ops.tanh(self.excluded(ops.tanh(self.frozen(y)))))


def test_what_it_cannot_take_keeps_its_plain_gradient(any_mode: None, caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.random.default_rng(0).standard_normal((9, 6), np.float32), (np.arange(9) % 3).astype(np.int32)
    network, loss = Odd(), nn.CrossEntropyLoss()
    weights = network.trainable_params()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return loss(network(x), y)

    parts = mindspore.grad(forward, None, weights)(Tensor(x), Tensor(y))
    plain = {weight.name: part.asnumpy() for weight, part in zip(weights, parts, strict=True)}
    before = state(network)
    cell = trainer(network, learning_rate=0.1, exclude=["excluded"], **PLAIN)
    train(cell, [(x, y)])
    steps = {name: (before[name] - value) / np.float32(0.1) for name, value in state(network).items()}
    thors = {"first.weight", "last.weight"}
    for name, step in steps.items():
        expected = plain.get(name, np.zeros_like(step))
        assert np.allclose(step, expected, rtol=1e-4, atol=1e-5) == (name not in thors), name
    assert not steps["frozen.weight"].any()
    assert not plain["never.weight"].any()
    for name in ("activated", "twice", "half", "never"):
        assert f"THOR leaves {name} its plain gradient" in caplog.text
    for name in ("first", "last", "frozen", "excluded"):
        assert f"leaves {name}" not in caplog.text
    assert cell.last_update is not None
    assert (cell.last_update.updated, cell.last_update.kept + cell.last_update.stopped) == (2, 0)


class Pyramid(nn.Cell):  # type: ignore[misc]
    """One layer used on images of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(2, 3, 3)
        self.head = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.shared(x).sum((2, 3)) + self.shared(x[:, :, ::2, ::2]).sum((2, 3)))


def test_a_layer_with_inputs_of_several_shapes_has_to_be_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes a file if a graph cannot be compiled
    with pytest.raises(ValueError, match=r"THOR: .* several shapes .* `exclude`"):
        train(trainer(Pyramid()), batches(1))
    train(trainer(Pyramid(), exclude=["shared"]), batches(2))


@pytest.mark.parametrize("network", [nn.Dense(4, 3), nn.BatchNorm1d(3), nn.SequentialCell(nn.ReLU())], ids=str)
def test_a_network_without_a_layer_it_knows_is_refused(network: nn.Cell) -> None:
    with pytest.raises(ValueError, match="THOR found no layer it knows"):
        THOR(network)


@pytest.mark.parametrize(
    "settings",
    [{"frequency": 0}, {"block_size": 0}, {"damping": 0}, {"clip_norm": -1}, {"loss_scale": 0}, {"exclude": ["tail"]}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"THOR: {next(iter(settings))} "):
        THOR(Small(), **settings)


WRONG: list[tuple[str, Any]] = [
    ("learning_rate", "0.1"),
    ("learning_rate", ["0.1", "0.2"]),
    ("learning_rate", True),
    ("learning_rate", [0.1, float("nan")]),
    ("learning_rate", []),
    ("learning_rate", {"peak": 0.1}),
    ("learning_rate", lambda step: "0.1"),
    ("damping", "0.1"),
    ("damping", None),
    ("momentum", "0.9"),
    ("weight_decay", [1e-4]),
    ("frequency", "10"),
    ("frequency", 2.5),
    ("block_size", float("inf")),
    ("pi", "Symmetric"),
    ("trace_rule", 0.3),
    ("trace_rule", ("0.3", "0", "0.8")),
    ("trace_rule", "abc"),
    ("clip_norm", "1"),
    ("clip_norm", float("nan")),
    ("nesterov", "no"),
    ("loss_scale", float("inf")),
    ("exclude", "head"),
    ("exclude", [3]),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(value)[:20])
def test_a_value_of_another_kind_is_refused_in_one_sentence_with_name_value_and_remedy(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^THOR: {name}( at step 0)? is .+; use .+$") as caught:
        THOR(Small(), **{name: value})
    told = value(0) if callable(value) else value
    assert repr(told)[:20] in str(caught.value)


@pytest.mark.parametrize(
    "network", [lambda small: small.trainable_params(), lambda small: Small], ids=["list", "class"]
)
def test_what_is_no_network_is_refused(network: Callable[[nn.Cell], Any]) -> None:
    with pytest.raises(ValueError, match=r"^THOR: network is .{3,300}; use the network itself"):
        THOR(network(Small()))


def test_numbers_of_numpy_are_as_good() -> None:
    numbers: dict[str, Any] = {
        "learning_rate": np.float32(0.1),
        "damping": Tensor([0.1, 0.2]),
        "momentum": np.float64(0.9),
        "frequency": np.int64(3),
        "clip_norm": np.float32(1),
    }
    thor = THOR(Small(), **numbers)
    assert [thor.damping.at(step) for step in (0, 1, 5)] == pytest.approx([0.1, 0.2, 0.2])
    assert [thor.curvature.due(step) for step in range(4)] == [True, False, False, True]


def test_a_schedule_that_goes_wrong_later_is_told_with_its_step_before_it_does_harm() -> None:
    network = Small()
    cell = THOR(network, learning_rate=lambda step: 0.1 / (1 - step) if step < 1 else float("nan")).training_cell(
        nn.CrossEntropyLoss()
    )
    train(cell, batches(1))
    before = state(network)
    with pytest.raises(ValueError, match=r"THOR: learning_rate at step 1 is nan; use a finite number of at least 0"):
        train(cell, batches(1))
    assert same(state(network), before)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(logits, labels, reduction="sum")


def by_sample(logits: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(logits, labels, reduction="none")


def pairs(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss that is neither a mean nor a sum over the batch."""
    return ops.cross_entropy(logits, labels) * ops.sqrt(ops.ones_like(logits).sum())


class Weighted(nn.Cell):  # type: ignore[misc]
    """A mean of the losses, with a penalty independent of the batch."""

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 0.1 * ops.cross_entropy(logits, labels) + 3.0


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(reduction="none"), nn.MSELoss("sum"), nn.SmoothL1Loss()],
    ids=["sum", "none", "sum of MSELoss", "none of SmoothL1Loss"],
)
def test_a_loss_that_says_of_itself_that_it_is_no_mean_is_refused(loss: nn.Cell) -> None:
    with pytest.raises(ValueError, match=r"^THOR: reduction of the loss is '(sum|none)'; use a mean over the batch"):
        THOR(Small()).training_cell(loss)


def test_a_loss_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^THOR: loss is 'mean'; use a loss cell or function"):
        THOR(Small()).training_cell("mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "told"), [(summed, r"THOR: the loss is .* a sum; use a mean"), (by_sample, r"THOR: the loss has shape")]
)
def test_a_loss_that_turns_out_to_be_no_mean_is_refused_before_it_changes_anything(
    loss: Callable[..., Tensor], told: str, any_mode: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes a file if a graph cannot be compiled
    network = Small()
    before = {name: value for name, value in state(network).items() if "moving" not in name}
    with pytest.raises(ValueError, match=told):
        train(THOR(network).training_cell(loss), batches(1))
    assert same({name: value for name, value in state(network).items() if "moving" not in name}, before)


def test_a_loss_of_another_kind_is_told_of_once_and_means_are_not(
    any_mode: None, caplog: pytest.LogCaptureFixture
) -> None:
    train(THOR(Small()).training_cell(Weighted()), batches(1))
    assert "the loss is" not in caplog.text
    train(THOR(Small(), frequency=1).training_cell(pairs), batches(3))
    assert caplog.text.count("the curvature is right only for a mean over the batch") == 1


def test_a_sum_is_found_out_after_a_batch_that_could_not_tell(any_mode: None) -> None:
    network = nn.SequentialCell(nn.Flatten(), nn.Dense(40, 3))
    networks.draw(network)
    cell = THOR(network, frequency=1).training_cell(summed)
    (x, y), fine = batches(2)
    train(cell, [(np.full_like(x, np.inf), y)])
    with pytest.raises(ValueError, match=r"THOR: the loss is .* a sum; use a mean"):
        train(cell, [fine])


# Updates: when and how.


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_inverses_change_at_every_so_manieth_step_and_at_no_other(frequency: int) -> None:
    cell = trainer(frequency=frequency)
    before = inverses(cell)
    for step, batch in enumerate(batches(7)):
        train(cell, [batch])
        after = inverses(cell)
        unchanged = [name for name, value in after.items() if np.array_equal(value, before[name])]
        assert unchanged == ([] if step % frequency == 0 else list(after)), step
        before = after


def test_the_trace_rule_spares_layers_and_those_it_spares_keep_their_inverses() -> None:
    cell = trainer(frequency=1, trace_rule=(1e9, 0.0, 0.0))
    train(cell, batches(1))
    first = inverses(cell)
    train(cell, batches(3))
    assert cell.last_update is not None
    assert (cell.last_update.updated, cell.last_update.kept) == (0, 2)
    assert same(inverses(cell), first)


def test_without_a_gradient_weights_only_decay() -> None:
    network = Small()
    before = state(network)
    thor = THOR(network, learning_rate=0.5, weight_decay=0.1)
    train(thor.training_cell(nothing), batches(1))
    for parameter in network.trainable_params():
        factor = 1 - 0.5 * 0.1 if parameter.ndim > 1 else 1
        np.testing.assert_allclose(parameter.asnumpy(), before[parameter.name] * factor, rtol=1e-6, atol=0)


def steps(network: nn.Cell, batch: Batch, **settings: Any) -> Floats:
    """Change of all trained weights in one step, at learning rate 1 and without momentum."""
    before = {parameter.name: parameter.asnumpy().copy() for parameter in network.trainable_params()}
    train(trainer(network, learning_rate=1.0, **PLAIN, **settings), [batch])
    return np.concatenate([(p.asnumpy() - before[p.name]).reshape(-1) for p in network.trainable_params()])


def test_a_direction_is_cut_to_the_longest_allowed_and_left_alone_below() -> None:
    (batch,) = batches(1)
    free = steps(Small(), batch)
    length = float(np.linalg.norm(free))
    assert steps(Small(), batch, clip_norm=length / 10) == pytest.approx(free / 10, rel=1e-4, abs=1e-5 * length)
    assert np.array_equal(steps(Small(), batch, clip_norm=length * 10), free)


def test_a_loss_scale_changes_nothing() -> None:
    (batch,) = batches(1)
    free, scaled = steps(Small(), batch), steps(Small(), batch, loss_scale=1024.0)
    assert np.abs(scaled - free).max() <= 1e-4 * np.abs(free).max()


def test_half_precision() -> None:
    network = nn.SequentialCell(nn.Flatten(), nn.Dense(40, 8), nn.Tanh(), nn.Dense(8, 3))
    networks.draw(network)
    network.to_float(mindspore.float16)
    cell = trainer(network, loss_scale=256.0, frequency=2)
    losses = train(cell, batches(1) * 20)
    assert cell.last_update is not None
    assert (cell.last_update.updated, cell.last_update.stopped, cell.last_update.failed) == (2, 0, 0)
    assert losses[-1] < losses[0] / 4


def test_an_update_that_falls_on_a_step_that_is_left_out_is_made_at_the_next() -> None:
    cell = trainer(frequency=3)
    (x, y), *others = batches(5)
    before = inverses(cell)
    train(cell, [(np.full_like(x, np.inf), y)] * 2)
    assert (cell.skipped, cell.last_update) == (2, None)
    assert same(inverses(cell), before)
    made = []
    for batch in others:
        cell.last_update = None
        train(cell, [batch])
        made.append(cell.last_update is not None)
    assert made == [True, True, False, False], "the one that was due at step 0, that of step 3, and no other"


def test_gradients_that_will_never_be_finite_end_the_training_with_a_remedy() -> None:
    cell = trainer(loss_scale=2.0)
    (x, y), fine = batches(2)
    bad = (np.full_like(x, np.inf), y)
    train(cell, [bad] * 20 + [fine] + [bad] * 24)
    assert cell.skipped == 44
    with pytest.raises(FloatingPointError, match=r"25 steps in a row, the last one step 45; lower loss_scale, now 2,"):
        train(cell, [bad])


RATES: list[Callable[[], Any]] = [
    lambda: [0.0, 0.1, 0.2],
    lambda: (0.0, 0.1, 0.2),
    lambda: np.array([0.0, 0.1, 0.2]),
    lambda: lambda step: 0.1 * min(step, 2),
]


@pytest.mark.parametrize("make", RATES, ids=["list", "tuple", "array", "function"])
def test_rates_are_by_the_step_and_the_last_one_stays(make: Callable[[], Any]) -> None:
    network = nn.SequentialCell(nn.Flatten(), nn.Dense(40, 3, weight_init="zeros", has_bias=False))
    thor = THOR(network, learning_rate=make(), damping=0.03, momentum=0.0, weight_decay=0.0)
    cell = thor.training_cell(little)
    weights = [state(network)["1.weight"]]
    for batch in batches(1) * 5:
        train(cell, [batch])
        weights.append(state(network)["1.weight"])
    lengths = [float(np.linalg.norm(after - before)) for before, after in itertools.pairwise(weights)]
    assert lengths[0] == 0
    assert np.array(lengths[1:]) / lengths[1] == pytest.approx([1, 2, 2, 2], rel=1e-3)


def test_damping_is_by_the_step_and_the_last_one_stays() -> None:
    cell = trainer(frequency=2, damping=np.array([0.5, 0.4, 0.3]))
    seen = []
    for batch in batches(5):
        train(cell, [batch])
        assert cell.last_update is not None
        seen.append(cell.last_update.damping)
    assert seen == [0.5, 0.5, 0.3, 0.3, 0.3]


# Factors that cannot be inverted.


class Wide(nn.Cell):  # type: ignore[misc]
    """`wide` has large inputs of a rank far below their number, and a small share of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.last = nn.Dense(6, 6), nn.Dense(120, 6), nn.Dense(6, 3)
        networks.draw(self)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.tanh(self.first(x[:, :6])) + ops.tanh(self.wide(x) / 10))


def test_a_layer_whose_factors_are_not_positive_definite_keeps_its_inverses_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rounding of the products leaves eigenvalues below zero, and the damping is too small to lift them."""
    x, y = np.random.default_rng(0).standard_normal((32, 120), np.float32), (np.arange(32) % 3).astype(np.int32)
    x[:, 6:] *= 30
    cell = trainer(Wide(), damping=[0.1, 1e-12], frequency=2, pi=False, learning_rate=0.01, clip_norm=1.0)
    train(cell, [(x, y)] * 2)
    before = inverses(cell)
    assert cell.last_update is not None
    assert (cell.last_update.updated, cell.last_update.failed) == (3, 0)
    caplog.clear()
    caplog.set_level(logging.WARNING)
    losses = train(cell, [(x, y)] * 6)
    assert (cell.last_update.updated, cell.last_update.failed) == (2, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "THOR: a factor of wide is not positive definite; it keeps its old ones"
    ] * 3
    kept = {f"thor.inverse.wide.{factor}" for factor in (0, 1)}
    assert {name for name, value in inverses(cell).items() if np.array_equal(value, before[name])} == kept
    assert np.isfinite(losses).all()
    assert all(np.isfinite(value).all() for value in state(cell).values())


class Huge(nn.Cell):  # type: ignore[misc]
    """Only the squares of `huge`'s inputs exceed float32."""

    def __init__(self) -> None:
        super().__init__()
        self.huge, self.last = nn.Dense(6, 6), nn.Dense(6, 3)
        networks.draw(self)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.tanh(self.huge(x * 1e25) * 1e-25))


def test_a_layer_whose_trace_is_beyond_float32_has_its_plain_gradient_and_training_goes_on() -> None:
    x, y = np.random.default_rng(0).standard_normal((16, 6), np.float32), (np.arange(16) % 3).astype(np.int32)
    cell = trainer(Huge(), frequency=1)
    losses = train(cell, [(x, y)] * 4)
    assert cell.last_update is not None
    assert (cell.last_update.updated, cell.last_update.kept, cell.last_update.failed) == (1, 1, 0)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(value).all() for value in state(cell).values())
