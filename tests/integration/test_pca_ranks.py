"""PCA stage on real ranks, each with its own columns of the components, against the formulas in float64."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from resnetboost_trainer.optim.pca import gram
from support import pcabases, pcareference, rankgang
from support.pcareference import Settings, Taken

pytestmark = pytest.mark.slow

# Each gang runs all of its cases in one start, because a start takes seconds. Thirty samples divide evenly.
GANGS = [1, 2, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (3, 5))]
SAMPLES, STEPS, DECAY = 30, 5, 0.1
REFERENCE = pcareference.Network(6, 5, 3)
NUMBERS = sum(REFERENCE.sizes)
COMPONENTS = {
    "BFGS": pcareference.orthonormal(4, NUMBERS),
    "SGD": pcareference.orthonormal(4, NUMBERS, seed=1),
    "padding": pcareference.orthonormal(3, 6),
    "BN": pcareference.orthonormal(4, 63),
}
TOLD = LOSS, LENGTH, EVALUATIONS, SHARE = range(4)


class Gang(msgspec.Struct, frozen=True):
    """Results of a gang's ranks, by name."""

    left: list[dict[str, NDArray[Any]]]

    @property
    def ranks(self) -> int:
        return len(self.left)

    def weights(self, case: str) -> NDArray[np.float32]:
        """Weights after each step, (steps, M)."""
        return self.left[0][f"{case}.weights"]

    def told(self, case: str) -> NDArray[np.float64]:
        return self.left[0][f"{case}.told"]


def start(ranks: int, folder: Path) -> Gang:
    np.savez(folder / "components.npz", **COMPONENTS)
    np.save(folder / "samples.npy", SAMPLES)
    pcabases.leave(folder / "checkpoints", pcabases.trajectory())
    return Gang(rankgang.run("pcarank.py", ranks, folder))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return start(1, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module", params=GANGS, ids="{}-ranks".format)
def gang(request: pytest.FixtureRequest, alone: Gang, tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return alone if request.param == 1 else start(request.param, tmp_path_factory.mktemp("gang"))


def batch(step: int) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The ranks' batch; importing `pcanetworks` would import MindSpore."""
    generator = np.random.default_rng([step, 11])
    labels = generator.integers(0, 3, SAMPLES).astype(np.int32)
    centres = np.random.default_rng(5).standard_normal((3, 6))
    return (centres[labels] + generator.standard_normal((SAMPLES, 6))).astype(np.float32).astype(np.float64), labels


def first_weights() -> NDArray[np.float64]:
    return (np.random.default_rng(3).standard_normal(NUMBERS).astype(np.float32) / 2).astype(np.float64)


def check(gang: Gang, case: str, step: int, expected: Taken) -> None:
    told = gang.told(case)[step]
    assert min(map(abs, expected.margins), default=1.0) > 1e-5, f"step {step} is a close call: choose other numbers"
    assert told[LENGTH] == pytest.approx(expected.length)
    assert told[EVALUATIONS] == expected.evaluations
    assert told[SHARE] == pytest.approx(expected.share, rel=1e-3)


def test_quasi_newton_steps_of_all_ranks_are_the_formulas_of_the_whole_batch(gang: Gang) -> None:
    """Also where the loss is below 1, which MindSpore 2.10 floors, and with a loss scale of 1024."""
    case, reference = "BFGS", pcareference.Bfgs(first_weights(), COMPONENTS["BFGS"], Settings())
    for step in range(STEPS):
        objective = REFERENCE.objective(*batch(step), DECAY)
        plain = REFERENCE.objective(*batch(step), 0.0).loss(reference.weights)
        assert gang.told(case)[step, LOSS] == pytest.approx(plain, rel=1e-4)
        check(gang, case, step, reference.step(objective))
        np.testing.assert_allclose(gang.weights(case)[step], reference.weights, atol=1e-3)
    assert gang.told(case)[-1, LOSS] < 1
    assert gang.told(case)[-1, LENGTH] > 0


def test_momentum_steps_of_all_ranks_are_the_formulas_of_the_whole_batch(gang: Gang) -> None:
    reference = pcareference.Sgd(first_weights(), COMPONENTS["SGD"], Settings(alpha=0.01), 0.8, nesterov=True)
    for step in range(STEPS):
        check(gang, "SGD", step, reference.step(REFERENCE.objective(*batch(step), DECAY), 0.1))
        np.testing.assert_allclose(gang.weights("SGD")[step], reference.weights, atol=5e-5)


@pytest.mark.parametrize("case", COMPONENTS)
def test_all_ranks_have_the_same_bits(gang: Gang, case: str) -> None:
    for rank in gang.left:
        for name in (name for name in rank if name.startswith(f"{case}.") and ".statistics." not in name):
            assert rank[name].tobytes() == gang.left[0][name].tobytes(), name


@pytest.mark.parametrize("case", ["BFGS", "SGD", "padding"])
def test_any_number_of_ranks_gives_the_same_weights(gang: Gang, alone: Gang, case: str) -> None:
    """With five ranks the last two have none of the six columns."""
    np.testing.assert_allclose(gang.told(case), alone.told(case), rtol=1e-3)
    np.testing.assert_allclose(gang.weights(case), alone.weights(case), atol=1e-3)


def test_bn_statistics_of_each_rank_move_once_a_step(gang: Gang) -> None:
    """They move by the rank's own part of the batch, however often all ranks evaluate the loss."""
    assert gang.told("BN")[:, EVALUATIONS].max() > 1
    weights = np.concatenate([[start_of_normed()], gang.weights("BN")]).astype(np.float64)
    for rank, left in enumerate(gang.left):
        mean = np.zeros(5)
        for step in range(STEPS):
            images = batch(step)[0][rank :: gang.ranks]
            mean = 0.9 * mean + 0.1 * (images @ weights[step, :30].reshape(5, 6).T + weights[step, 30:35]).mean(0)
        np.testing.assert_allclose(left["BN.statistics.norm.moving_mean"], mean, rtol=1e-3, atol=1e-5)


def start_of_normed() -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(63).astype(np.float32) / 2


def test_rejected_steps_leave_the_weights_on_every_rank(gang: Gang) -> None:
    """Bit for bit, without a residual."""
    rejected = gang.told("BN")[:, LENGTH] == 0
    assert rejected.any()
    before = np.concatenate([[start_of_normed()], gang.weights("BN")[:-1]])
    assert gang.weights("BN")[rejected].tobytes() == before[rejected].tobytes()


def test_no_broadcast_is_as_large_as_the_network(gang: Gang) -> None:
    """MindSpore 2.10 broadcasts the weights twice per rank and step."""
    for rank in gang.left:
        assert (rank["BFGS.broadcasts"] == 4 + 1).all()
        assert len(rank["BFGS.broadcasts"]) == STEPS


def test_each_rank_has_its_columns_of_the_basis_and_rank_0_alone_has_read_the_snapshots(gang: Gang) -> None:
    """MindSpore 2.10 passes rows on as files that each rank deletes, and that other machines cannot see."""
    width = math.ceil(pcabases.NUMBERS / gang.ranks)
    assert [rank["basis"].shape for rank in gang.left] == [(5, width)] * gang.ranks
    assert [bool(rank["digest"]) for rank in gang.left] == [True] + [False] * (gang.ranks - 1)
    columns = np.concatenate([rank["basis"] for rank in gang.left], axis=1)
    rows = pcabases.trajectory()
    found = gram.components(gram.products(lambda a, b: rows[:, a:b], 0, pcabases.NUMBERS, len(rows)), 5)
    whole = gram.basis(found, lambda a, b: rows[:, a:b], 0, pcabases.NUMBERS)
    assert columns[:, : pcabases.NUMBERS].tobytes() == whole.tobytes(), "not the bits that one rank has"
    assert not columns[:, pcabases.NUMBERS :].any()
    assert {float(rank["explained"]) for rank in gang.left} == {float(np.float32(found.share.sum()))}
