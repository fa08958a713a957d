"""THOR's factors, inverses and directions from its real graphs, against float64 references and exact identities."""

from collections.abc import Callable
from typing import Any

import mindspore
import msgspec
import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

import support.thornetworks as networks
from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.models.layers import conv
from resnetboost_trainer.optim.thor import host, layers
from support import thorreference
from support.thorreference import Array, Floats, Pass, Reference, Subject, close

SAMPLES = 6
KRONECKER = [name for name in networks.NAMES if name != "norm"]


@pytest.fixture(scope="module", autouse=True)
def graph_mode() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")


def kinds(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names, ids=[networks.NAMES[name] for name in names])


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def branches() -> Subject:
    return Subject(networks.Branches(), CrossEntropy())


@pytest.fixture(scope="module")
def batch(branches: Subject) -> Pass:
    return branches.run(networks.images(SAMPLES), networks.labels(SAMPLES))


@pytest.fixture(scope="module")
def singles(branches: Subject) -> list[Pass]:
    """Batches of one sample each."""
    x, y = networks.images(SAMPLES), networks.labels(SAMPLES)
    return [branches.run(x[k : k + 1], y[k : k + 1]) for k in range(SAMPLES)]


@pytest.fixture(scope="module")
def references(batch: Pass) -> dict[str, Reference]:
    return {name: thorreference.reference(batch.captured[name]) for name in KRONECKER}


def own_gradients(name: str, singles: list[Pass]) -> Array:
    """Each sample's gradient by automatic differentiation: (n, groups, outputs, columns)."""
    return np.stack([single.gradient(name) for single in singles]).astype(np.float64)


def fisher(gradients: Array) -> Array:
    """Empirical Fisher matrix by group, from every sample's gradient (n, groups, outputs, columns)."""
    flat = gradients.reshape(*gradients.shape[:2], -1)
    mean: Array = np.einsum("ngi,ngj->gij", flat, flat) / len(flat)
    return mean


# Captures.


def test_every_kind_of_layer_is_found_and_nothing_that_is_frozen(branches: Subject) -> None:
    assert set(branches.layers) == set(networks.NAMES)


@kinds(KRONECKER)
def test_captured_tensors_give_every_samples_gradient(name: str, batch: Pass, singles: list[Pass]) -> None:
    assert close(thorreference.sample_gradients(batch.captured[name]), own_gradients(name, singles), 2e-6)


@kinds(list(networks.NAMES))
def test_captured_tensors_explain_the_gradient(name: str, batch: Pass) -> None:
    captured, gradient = batch.captured[name], batch.gradient(name)
    assert host.explains(captured, gradient)
    assert not host.explains(captured, gradient * np.float32(1.1))
    assert not host.explains(captured, np.roll(gradient, 1))


# Factors and traces.


@kinds(KRONECKER)
@pytest.mark.parametrize("block_size", [8192, 128, 10, 3, 1])
def test_factors_are_the_mean_products_of_patches_and_of_output_gradients(
    name: str, block_size: int, branches: Subject, batch: Pass, references: dict[str, Reference]
) -> None:
    layer = next(layer for layer in layers.find(branches.network, block_size)[0] if layer.name == name)
    captured = msgspec.structs.replace(batch.captured[name], layer=layer)
    left, right = thorreference.matrices(captured, host.factors(captured))
    expected = references[name].cut(layer.form)
    assert close(left, expected.left, 2e-6)
    assert close(right, expected.right, 2e-6)
    assert all(cut.size <= block_size for cut in layer.form.factors)


def test_the_factor_of_a_normalisation_is_the_exact_diagonal(batch: Pass, singles: list[Pass]) -> None:
    (found,) = host.factors(batch.captured["norm"])
    expected = np.square(own_gradients("norm", singles)).mean(0)
    assert close(found.reshape(expected.shape), expected, 5e-6)
    assert host.traces(batch.captured["norm"]) == pytest.approx((expected.sum(), 1.0), rel=5e-6)


@kinds(KRONECKER)
def test_traces_are_those_of_the_factors(name: str, batch: Pass) -> None:
    a, g = host.factors(batch.captured[name])
    expected = [np.trace(blocks, axis1=1, axis2=2, dtype=np.float64).sum() for blocks in (a, g)]
    assert host.traces(batch.captured[name]) == pytest.approx(expected, rel=2e-6)


# Cases in which the Kronecker product is exact.


def test_a_dense_layers_product_is_the_fisher_matrix_of_one_sample(singles: list[Pass]) -> None:
    for single in singles:
        a, g = host.factors(single.captured["dense"])
        exact = fisher(single.gradient("dense")[None].astype(np.float64))
        assert close(np.kron(g[0], a[0]), exact[0], 1e-6)


def test_the_product_is_the_fisher_matrix_where_all_samples_have_the_same_output_gradients() -> None:
    """A deep linear network with a linear loss."""
    network = nn.SequentialCell(nn.Dense(5, 4), nn.Dense(4, 3), nn.Dense(3, 1))
    networks.draw(network)
    linear = Subject(network, networks.mean)
    x, y = normal(9, 5), np.zeros(9, np.int32)
    batch = linear.run(x, y)
    singles = [linear.run(x[k : k + 1], y[:1]) for k in range(9)]
    for name in ("0", "1", "2"):
        a, g = host.factors(batch.captured[name])
        assert close(np.kron(g[0], a[0]), fisher(own_gradients(name, singles))[0], 1e-6)


def test_the_product_tends_to_the_fisher_matrix_where_pixels_have_nothing_to_do_with_each_other() -> None:
    """The assumptions of Grosse & Martens 2016: output gradients of mean 0, independent by pixel and of the inputs."""
    samples, positions = 20000, 4
    layer = nn.Conv2d(3, 2, 1, pad_mode="valid")
    x, d = normal(samples, 3, 2, 2, seed=1), normal(samples, 2, 2, 2, seed=2)
    mix = normal(3, 3, seed=3)
    x = np.einsum("ij,njhw->nihw", mix, x)
    captured = chosen(layer, x, d)
    assert captured.positions == positions
    a, g = host.factors(captured)
    exact = fisher(thorreference.sample_gradients(captured))[0]
    assert np.linalg.norm(positions * np.kron(g[0], a[0]) - exact) <= 0.03 * np.linalg.norm(exact)
    assert np.trace(positions * np.kron(g[0], a[0])) == pytest.approx(np.trace(exact), rel=0.02)


def chosen(layer: nn.Cell, x: NDArray[Any], d: NDArray[Any], block_size: int = 8192) -> host.Captured:
    """Captures of a layer with given inputs and output gradients of every sample's own loss."""
    network = networks.Paired(layer, x.shape[1:])
    result = Subject(network, networks.mean, block_size).run(networks.paired(x, d), np.zeros(len(x), np.int32))
    captured = result.captured["layer"]
    assert close(captured.gradient * len(x), d.astype(np.float64), 1e-6)
    assert np.array_equal(captured.input, x.astype(np.float32))
    return captured


# Convolutions that are equivalent to dense layers.


def test_a_convolution_of_the_whole_image_is_a_dense_layer() -> None:
    x, d = normal(7, 3, 4, 2), normal(7, 5, seed=1)
    convolution = chosen(nn.Conv2d(3, 5, (4, 2), pad_mode="valid"), x, d.reshape(7, 5, 1, 1))
    dense = chosen(nn.Dense(24, 5), x.reshape(7, 24), d)
    assert convolution.positions == dense.positions == 1
    for one, other in zip(host.factors(convolution), host.factors(dense), strict=True):
        assert close(one, other, 1e-6)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kind", [nn.Conv2d, conv.Conv2d], ids=["MindSpore's", "the trainer's"])
def test_a_convolution_of_single_pixels_is_a_dense_layer_of_some_of_them(kind: type[nn.Cell], stride: int) -> None:
    x = normal(5, 3, 6, 7)
    picked = x[:, :, ::stride, ::stride]
    d = normal(5, 4, *picked.shape[2:], seed=1)
    last = (0, 2, 3, 1)
    settings = {"pad_mode": "valid"} if kind is nn.Conv2d else {}
    convolution = chosen(kind(3, 4, 1, stride, **settings), x, d)
    dense = chosen(nn.Dense(3, 4), picked.transpose(last).reshape(5, -1, 3), d.transpose(last).reshape(5, -1, 4))
    assert convolution.positions == dense.positions
    for one, other in zip(host.factors(convolution), host.factors(dense), strict=True):
        assert close(one, other, 1e-6)


# Invariances of the factors.


@pytest.mark.parametrize(("loss_scale", "copies"), [(1024.0, 1), (1.0, 2)])
def test_loss_scale_and_copies_of_the_batch_leave_the_factors_alone(
    loss_scale: float, copies: int, branches: Subject, batch: Pass
) -> None:
    other = Subject(branches.network, CrossEntropy(), loss_scale=loss_scale)
    again = other.run(np.tile(networks.images(SAMPLES), (copies, 1, 1, 1)), np.tile(networks.labels(SAMPLES), copies))
    assert close(again.flat.asnumpy(), batch.flat.asnumpy(), 2e-6)
    for name in networks.NAMES:
        assert host.explains(again.captured[name], again.gradient(name)), name
        assert host.traces(again.captured[name]) == pytest.approx(host.traces(batch.captured[name]), rel=5e-6), name
        both = zip(host.factors(again.captured[name]), host.factors(batch.captured[name]), strict=True)
        assert all(close(one, expected, 5e-6) for one, expected in both), name


# Directions.


DAMPING = 0.03


@pytest.fixture(scope="module", params=["Pi", "Symmetric"])
def split(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[8192, 10])
def updated(request: pytest.FixtureRequest, split: str, branches: Subject, batch: Pass) -> Subject:
    """The network with its factors in one block or several, updated for the batch."""
    subject = Subject(branches.network, CrossEntropy(), request.param, split)
    update = subject.update(batch, DAMPING)
    assert (update.updated, update.kept, update.stopped, update.failed) == (len(networks.NAMES), 0, 0, 0)
    return subject


@kinds(KRONECKER)
def test_the_direction_solves_the_damped_kronecker_system(
    name: str, split: str, updated: Subject, batch: Pass, references: dict[str, Reference]
) -> None:
    system = references[name].damped(DAMPING, split == "Symmetric").cut(updated.layers[name].form)
    assert close(updated.direction(batch.flat)[name], system.solve(batch.gradient(name)), 1e-5)


def test_the_direction_of_a_normalisation_solves_its_diagonal_system(
    singles: list[Pass], updated: Subject, batch: Pass
) -> None:
    diagonal = np.square(own_gradients("norm", singles)).mean(0)
    assert close(updated.direction(batch.flat)["norm"], batch.gradient("norm") / (diagonal + DAMPING), 1e-5)


def test_what_belongs_to_no_layer_keeps_its_gradient(updated: Subject, batch: Pass) -> None:
    known = sum(layer.form.size for layer in updated.layers.values())
    assert updated.count > known
    whole = updated.curvature.preconditioner(batch.flat[: updated.count]).asnumpy()
    assert np.array_equal(whole[known:], batch.flat.asnumpy()[known : updated.count])


def test_much_damping_leaves_the_gradient_over_the_damping(branches: Subject, batch: Pass) -> None:
    branches.update(batch, 1e8)
    for name, direction in branches.direction(batch.flat).items():
        assert close(direction * 1e8, batch.gradient(name), 1e-3), name


def test_directions_lead_downhill_at_any_damping(branches: Subject, batch: Pass) -> None:
    generator = np.random.default_rng(5)
    for damping in 10 ** generator.uniform(-6, 4, 12):
        assert branches.update(batch, float(damping)).failed == 0
        arbitrary = Tensor(generator.standard_normal(batch.flat.shape).astype(np.float32))
        for flat in (batch.flat, arbitrary):
            for name, direction in branches.direction(flat).items():
                gradient = batch._replace(flat=flat).gradient(name)
                assert np.sum(gradient * direction, dtype=np.float64) > 0, (name, damping)


def signs(samples: int, *shape: int) -> Floats:
    return np.sign(normal(samples, *shape, seed=4))


@pytest.mark.parametrize("split", ["Pi", "Symmetric"])
def test_no_damping_gives_the_natural_gradient_where_the_product_is_exact(split: str) -> None:
    """One output with a gradient of 1 or -1: its square is constant, and the Fisher matrix is A."""
    x = normal(40, 6) @ (normal(6, 6, seed=1) + 3 * np.eye(6, dtype=np.float32))
    subject = Subject(networks.Paired(nn.Dense(6, 1), (6,)), networks.mean, split=split)
    pairs, y = networks.paired(x, signs(40, 1)), np.zeros(40, np.int32)
    batch = subject.run(pairs, y)
    singles = [subject.run(pairs[k : k + 1], y[:1]) for k in range(40)]
    assert subject.update(batch, 1e-12).failed == 0
    exact = np.linalg.solve(fisher(own_gradients("layer", singles))[0], batch.gradient("layer").reshape(-1))
    assert close(subject.direction(batch.flat)["layer"].reshape(-1), exact, 1e-3)


@pytest.mark.parametrize("name", ["dense", "convolution"])
def test_the_step_is_the_same_after_a_linear_change_of_inputs_or_outputs(name: str) -> None:
    """Without damping: W = left W' right for x' = right x and y = left y', so directions transform alike."""
    samples, channels, outputs = 50, 4, 3
    left, right = (normal(n, n, seed=n) + 2 * np.eye(n, dtype=np.float32) for n in (outputs, channels))
    layer = LAYERS[name]
    x, d = normal(samples, channels, *layer.pixels), normal(samples, outputs, *layer.pixels, seed=1)
    d += 0.3 * np.mean(x, axis=1, keepdims=True)  # a gradient that is not only noise
    before = direction(layer.make(channels, outputs), x, d)
    x_after, d_after = np.einsum("ij,nj...->ni...", right, x), np.einsum("ji,nj...->ni...", left, d)
    after = direction(layer.make(channels, outputs), x_after, d_after)
    assert close(layer.change(after, left, right), before, 2e-3)


class _Changed(msgspec.Struct, frozen=True):
    make: Callable[[int, int], nn.Cell]
    pixels: tuple[int, ...]

    def change(self, after: Floats, left: Floats, right: Floats) -> Floats:
        return left @ after @ right


LAYERS = {
    "dense": _Changed(nn.Dense, ()),
    "convolution": _Changed(lambda channels, outputs: nn.Conv2d(channels, outputs, 1, pad_mode="valid"), (3, 2)),
}


def direction(
    layer: nn.Cell, x: NDArray[Any], d: NDArray[Any], block_size: int = 8192, damping: float = 1e-10
) -> Floats:
    """THOR's direction for a layer's gradient."""
    subject = Subject(networks.Paired(layer, x.shape[1:]), networks.mean, block_size)
    batch = subject.run(networks.paired(x, d), np.zeros(len(x), np.int32))
    assert subject.update(batch, damping).updated == 1
    (found,) = subject.direction(batch.flat)["layer"]
    return np.asarray(found)


# Blocks.


def test_a_block_as_large_as_the_factor_is_no_cut() -> None:
    x, d = normal(20, 8), normal(20, 3, seed=1)
    whole = direction(nn.Dense(8, 3), x, d, 8192, 0.03)
    for block_size in (8, 9):
        assert np.array_equal(direction(nn.Dense(8, 3), x, d, block_size, 0.03), whole)
    assert not close(direction(nn.Dense(8, 3), x, d, 7, 0.03), whole, 1e-2)


def test_a_cut_costs_nothing_where_inputs_and_outputs_never_meet() -> None:
    """Half of the samples use the first half of the channels and outputs, the other half the others."""
    x, d = normal(40, 8), normal(40, 4, seed=1)
    x[:20, 4:] = x[20:, :4] = d[:20, 2:] = d[20:, :2] = 0
    whole = direction(nn.Dense(8, 4), x, d, 8192, 0.03)
    assert close(direction(nn.Dense(8, 4), x, d, 4, 0.03), whole, 1e-6)
    assert not close(direction(nn.Dense(8, 4), x, d, 3, 0.03), whole, 1e-2)


@pytest.mark.parametrize(
    ("channels", "outputs", "block_size"),
    [(15, 3, 128), (13, 7, 30), (2, 5, 4)],
    ids=["A", "A and G", "within kernels"],
)
def test_padding_of_an_axis_changes_nothing(channels: int, outputs: int, block_size: int) -> None:
    x, d = normal(3, channels, 5, 4), normal(3, outputs, 5, 4, seed=1)
    captured = chosen(nn.Conv2d(channels, outputs, 3, pad_mode="same"), x, d, block_size)
    assert any(cut.padded > cut.dimension for cut in captured.layer.form.factors)
    system = thorreference.reference(captured).damped(0.03, symmetric=False)
    found = direction(nn.Conv2d(channels, outputs, 3, pad_mode="same"), x, d, block_size, 0.03)
    gradient = thorreference.sample_gradients(captured).mean(0)
    assert close(found[None], system.cut(captured.layer.form).solve(gradient), 1e-5)
