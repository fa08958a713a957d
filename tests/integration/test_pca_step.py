"""PCA training step in one process, against its formulas and the test's own evaluations of the loss."""

import itertools
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.optim.pca.quasinewton import Rule
from resnetboost_trainer.optim.pca.report import SubspaceStep
from resnetboost_trainer.optim.pca.solver import Bfgs
from resnetboost_trainer.optim.schedule import StepSchedule
from support import pcanetworks, pcareference
from support.pcanetworks import NUMBERS, REFERENCE, Normed, Tanh
from support.pcareference import Array, Function, Settings, Taken

pytestmark = pytest.mark.slow

ALONE = Communicator(0, 1)
SAMPLES, STEPS = 24, 6
# No step is long enough for the full decrease that the slope predicts, because the function is curved.
REFUSING = Settings(sigma=0.999999, most=3)
# Tolerance of weights after some steps: MindSpore's tanh is exact to 1e-5 on the CPU.
TOLERANCE = 1e-3
# The smallest relative margin of a comparison that float32 decides as float64 does.
SURE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


class Trainee:
    """A network in training, and the solver's state after each step."""

    def __init__(self, network: nn.Cell, rule: Settings, components: NDArray[Any], **changes: Any) -> None:
        self.network = network
        config = pcanetworks.settings(len(components), rule, **changes)
        self.program: Program = pcanetworks.program(network, config, components, ALONE)

    def step(self, step: int, rate: float = 0.1, scale: float = 1.0) -> StepRecord:
        images, labels = pcanetworks.batch(SAMPLES, step)
        return self.program.step(
            Tensor(images * np.float32(scale)), Tensor(labels), StepSchedule(step, rate, 0.0), False
        )

    def searched(self, step: int, rate: float = 0.1, scale: float = 1.0) -> SubspaceStep:
        found = self.step(step, rate, scale).update
        assert isinstance(found, SubspaceStep)
        return found

    @property
    def weights(self) -> Array:
        return pcanetworks.vector(self.network).astype(np.float64)

    def memory(self) -> dict[str, bytes]:
        """Of the solver and the residual, bit for bit."""
        return {parameter.name: parameter.asnumpy().tobytes() for parameter in self.optimizer.state()}

    @property
    def optimizer(self) -> Any:
        return self.program.update_rule.optimizer  # type: ignore[attr-defined]


def function(step: int, decay: float = 0.0) -> Function:
    images, labels = pcanetworks.batch(SAMPLES, step)
    return REFERENCE.objective(images.astype(np.float64), labels, decay)


def same(found: SubspaceStep, expected: Taken, steps: int) -> None:
    assert min(map(abs, expected.margins), default=1.0) > SURE, f"step {steps} is a close call: choose other numbers"
    assert found.length == pytest.approx(expected.length), steps
    assert found.evaluations == expected.evaluations, steps
    assert found.share == pytest.approx(expected.share, rel=1e-3)


@pytest.mark.parametrize(
    ("rule", "decay"),
    [(Settings(), 0.1), (Settings(alpha=0.1, gamma=0.5, rho=0.9, sigma=0.6, most=40), 0.0)],
    ids=["the tutorial's rule with decay", "a slow search and a strong residual"],
)
def test_quasi_newton_steps_are_the_formulas(rule: Settings, decay: float) -> None:
    """Weights, step lengths, number of evaluations and state; matrices decay, in the loss and its slope."""
    basis = pcareference.orthonormal(4, NUMBERS)
    trainee = Trainee(Tanh(), rule, basis, **pcanetworks.momentum(decay))
    reference = pcareference.Bfgs(trainee.weights, basis, rule)
    for step in range(STEPS):
        found = trainee.searched(step)
        same(found, reference.step(function(step, decay)), step)
        np.testing.assert_allclose(trainee.weights, reference.weights, atol=TOLERANCE)
    inverse = trainee.optimizer.solver.memory["inverse"].asnumpy()
    np.testing.assert_allclose(inverse, reference.inverse, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(trainee.optimizer.residual.momentum_buffer.asnumpy(), reference.residual, atol=TOLERANCE)


def test_more_than_two_lengths_are_tried() -> None:
    """MindSpore 2.10 tries two and gives up."""
    trainee = Trainee(Tanh(), Settings(most=30), pcareference.orthonormal(4, NUMBERS))
    found = trainee.searched(0, scale=30)
    assert found.evaluations > 2
    assert found.length == pytest.approx(0.55 ** (found.evaluations - 1))
    assert found.outcome == "shortened"


def test_in_all_dimensions_it_is_quasi_newton_of_the_whole_space() -> None:
    """With any rotation as components: the first direction is the gradient's."""
    rule = Settings(alpha=0.0)
    trainee = Trainee(Tanh(), rule, pcareference.orthonormal(NUMBERS, NUMBERS))
    reference = pcareference.Bfgs(trainee.weights, np.eye(NUMBERS), rule)
    for step in range(STEPS):
        same(trainee.searched(step), reference.step(function(step)), step)
        np.testing.assert_allclose(trainee.weights, reference.weights, atol=TOLERANCE)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "Nesterov's"])
def test_momentum_steps_are_the_formulas(nesterov: bool) -> None:
    rule, basis = Settings(alpha=0.01), pcareference.orthonormal(4, NUMBERS)
    momentum = pcanetworks.momentum(0.1, 0.8, nesterov)
    trainee = Trainee(Tanh(), rule, basis, solver="SGD", **momentum)
    reference = pcareference.Sgd(trainee.weights, basis, rule, 0.8, nesterov)
    for step in range(STEPS):
        rate = 0.5 / (step + 1)
        found = trainee.searched(step, rate)
        same(found, reference.step(function(step, 0.1), rate), step)
        assert found.outcome == "full"
        np.testing.assert_allclose(trainee.weights, reference.weights, atol=5e-5)
    np.testing.assert_allclose(trainee.optimizer.solver.velocity.asnumpy(), reference.velocity, atol=1e-4)


@pytest.mark.parametrize("solver", ["BFGS", "SGD"])
def test_the_loss_scale_has_no_effect(solver: str) -> None:
    """MindSpore 2.10 multiplies the residual by it."""
    left = []
    for scale in (1, 1024):
        trainee = Trainee(
            Normed(), Settings(alpha=0.1), pcareference.orthonormal(3, 63), solver=solver, lossScale=scale
        )
        taken = [trainee.searched(step) for step in range(3)]
        left.append((trainee.weights, trainee.memory(), [(found.length, found.share) for found in taken]))
    np.testing.assert_array_equal(left[0][0], left[1][0])
    assert left[0][1:] == left[1][1:]


def normed_loss(weights: Array, step: int, decay: float) -> float:
    """Training loss of `Normed`, with the decay of its matrices."""
    images, labels = pcanetworks.batch(SAMPLES, step)
    first, bias, gain, shift, last, last_bias = np.split(weights, np.cumsum([30, 5, 5, 5, 15]))
    inner = images.astype(np.float64) @ first.reshape(5, 6).T + bias
    normed = gain * (inner - inner.mean(0)) / np.sqrt(inner.var(0) + 1e-5) + shift
    logits = np.tanh(normed) @ last.reshape(3, 5).T + last_bias
    likely = np.log(np.exp(logits).sum(1)) - logits[np.arange(SAMPLES), labels]
    return float(likely.mean() + 0.5 * decay * (first @ first + last @ last))


def test_the_longest_length_that_satisfies_armijos_rule_is_accepted() -> None:
    """By Armijo's rule, with losses and slopes that the test measures itself, with BN and decay."""
    rule, decay = Settings(alpha=0.0, sigma=0.5, rho=0.7), 0.05
    trainee = Trainee(Normed(), rule, pcareference.orthonormal(5, 63), **pcanetworks.momentum(decay))
    accepted = shortened = 0
    for step in range(12):
        before = trainee.weights
        found = trainee.searched(step)
        if found.length == 0:
            continue
        accepted += 1
        direction = (trainee.weights - before) / found.length
        nudge = 1e-4 * direction
        slope = (normed_loss(before + nudge, step, decay) - normed_loss(before - nudge, step, decay)) / 2e-4
        assert slope < 0

        lengths = [found.length, found.length / rule.rho]
        wanted = [normed_loss(before, step, decay) + rule.sigma * length * slope for length in lengths]
        there = [normed_loss(before + length * direction, step, decay) for length in lengths]
        assert there[0] < wanted[0] + 1e-5
        if found.evaluations > 1:
            shortened += 1
            assert there[1] > wanted[1] - 1e-5
    assert accepted > shortened > 1


def test_bn_statistics_move_once_a_step_however_many_lengths_are_tried() -> None:
    """MindSpore 2.10 moves them at every trial."""
    trainee = Trainee(Normed(), Settings(sigma=0.9, most=10), pcareference.orthonormal(4, 63))
    mean, tried = np.zeros(5), 0
    for step in range(4):
        images, _ = pcanetworks.batch(SAMPLES, step)
        first, bias = trainee.weights[:30].reshape(5, 6), trainee.weights[30:35]
        mean = 0.9 * mean + 0.1 * (images @ first.T + bias).mean(0)
        tried = max(tried, trainee.searched(step).evaluations)
        np.testing.assert_allclose(
            pcanetworks.statistics(trainee.network)["norm.moving_mean"], mean, rtol=1e-4, atol=1e-5
        )
    assert tried > 2


def test_a_rejected_step_leaves_weights_and_the_solver_s_memory_as_they_were_bit_for_bit() -> None:
    accepting = Trainee(Normed(), Settings(alpha=0.0), pcareference.orthonormal(4, 63))
    for step in range(3):
        assert accepting.searched(step).length > 0
    memory = accepting.memory()
    weights = pcanetworks.vector(accepting.network).tobytes()
    statistics = pcanetworks.statistics(accepting.network)["norm.moving_mean"]
    solver = accepting.optimizer.solver
    assert isinstance(solver, Bfgs)
    solver.rule = Rule(REFUSING.rho, REFUSING.sigma, REFUSING.most)
    found = accepting.searched(3)
    assert (found.length, found.evaluations, found.outcome) == (0, 3, "rejected")
    assert pcanetworks.vector(accepting.network).tobytes() == weights
    after = accepting.memory()
    assert after.pop("pca.residual") != memory.pop("pca.residual"), "the residual goes on"
    assert after == memory
    images, _ = pcanetworks.batch(SAMPLES, 3)
    first, bias = accepting.weights[:30].reshape(5, 6), accepting.weights[30:35]
    moved = 0.9 * statistics + 0.1 * (images @ first.T + bias).mean(0)
    np.testing.assert_allclose(
        pcanetworks.statistics(accepting.network)["norm.moving_mean"], moved, rtol=1e-5, atol=1e-6
    )


def test_the_residual_moves_the_weights_outside_of_the_subspace_alone() -> None:
    basis, rule = pcareference.orthonormal(4, NUMBERS), REFUSING._replace(alpha=0.5)
    trainee = Trainee(Tanh(), rule, basis)
    before = trainee.weights
    for _ in range(3):
        assert trainee.searched(0).length == 0
    np.testing.assert_allclose(basis @ trainee.weights, basis @ before, atol=1e-5)
    assert np.abs(trainee.weights - before).max() > 0.01


def test_without_a_residual_the_weights_stay_in_the_subspace() -> None:
    basis = pcareference.orthonormal(4, NUMBERS)
    trainee = Trainee(Tanh(), Settings(alpha=0.0), basis)
    before = trainee.weights
    for step in range(3):
        trainee.step(step)
    moved = trainee.weights - before
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(moved - basis.T @ (basis @ moved), 0, atol=1e-6)


def test_trial_evaluations_change_no_state() -> None:
    """A step of many evaluations changes nothing but the weights, as a step without them."""
    basis, left = pcareference.orthonormal(4, 63), []
    for most in (1, 5):
        trainee = Trainee(Normed(), REFUSING._replace(most=most, alpha=0.1), basis)
        assert trainee.searched(0).evaluations == most
        moved = {name: value.tobytes() for name, value in pcanetworks.statistics(trainee.network).items()}
        left.append((trainee.memory(), pcanetworks.vector(trainee.network).tobytes(), moved))
    assert left[0] == left[1]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_infinite_direction_is_rejected_without_effect() -> None:
    """Gradients of the last layer above 1, so that the solver's state leads to infinity."""
    trainee = Trainee(Normed(), Settings(alpha=0.0), pcareference.orthonormal(10, 63))
    steep = pcanetworks.vector(trainee.network)
    steep[45:60] *= 40
    pcanetworks.put(trainee.network, steep)
    trainee.optimizer.solver.memory["inverse"].set_data(Tensor(np.eye(10, dtype=np.float32) * np.float32(3e38)))
    before = pcanetworks.vector(trainee.network).tobytes()
    assert trainee.searched(1).length == 0
    assert pcanetworks.vector(trainee.network).tobytes() == before


def test_a_gradient_that_has_nothing_in_the_subspace_moves_the_weights_outside_of_it() -> None:
    """The only component is a weight that nothing depends on, that of an input that is 0."""
    basis = np.eye(1, NUMBERS)
    trainee = Trainee(Tanh(), Settings(alpha=0.1), basis)
    before = trainee.weights
    images, labels = pcanetworks.batch(SAMPLES, 0)
    images[:, 0] = 0
    found = trainee.program.step(Tensor(images), Tensor(labels), StepSchedule(0, 0.1, 0.0), False).update
    assert isinstance(found, SubspaceStep)
    assert found.share == 0
    assert trainee.weights[0] == before[0]
    assert np.isfinite(trainee.weights).all()
    assert np.abs(trainee.weights - before).max() > 1e-4


@pytest.mark.parametrize("solver", ["BFGS", "SGD"])
def test_a_restored_state_goes_on_to_the_same_bits(solver: str) -> None:
    basis, rule = pcareference.orthonormal(4, 63), Settings(alpha=0.1)
    first, second = (Trainee(Normed(), rule, basis, solver=solver) for _ in range(2))
    for step in range(3):
        first.step(step)
    saved = first.program.state.snapshot()
    assert saved is not None
    kept = {file: {name: value.copy() for name, value in arrays.items()} for file, arrays in saved.items()}
    second.program.state.restore(kept)
    for step, trainee in itertools.product(range(3, 6), (first, second)):
        trainee.step(step)
    assert second.memory() == first.memory()
    np.testing.assert_array_equal(second.weights, first.weights)


def test_what_the_components_explain_is_told_and_the_share_of_the_gradient_is_all_of_it_in_the_whole_space() -> None:
    found = Trainee(Tanh(), Settings(), np.eye(NUMBERS)).searched(0)
    assert found.explained == 0.875
    assert found.share == pytest.approx(1, rel=1e-5)
    assert found.seconds > 0
