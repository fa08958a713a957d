"""Gangs that change their size in the middle of an epoch train as one that does not, as real trainer processes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from support import trainerconfig
from support.elasticgang import Stage

pytestmark = pytest.mark.slow

# Of a step's loss, relative to it, at first: float32 sums in another order. A training magnifies any such difference
# whenever it decides the sign of an activation near 0 or whether a line search takes a length, so that later losses
# differ by more, as they do when a unit in the last place is added to some weights.
AT_FIRST, LATER = 1e-5, 0.1  # in the first three steps after a change, and in all
STEPS = 44


def config(**changes: Any) -> dict[str, Any]:
    """Two epochs of 22 steps of 64 images."""
    checkpoint = {"everySteps": 1000, "keep": 3, "resume": "Never"}
    return trainerconfig.GOOD | {"epochs": 2, "checkpoint": checkpoint} | changes


def check(ours: Stage, theirs: Stage, changed: int, *columns: str) -> None:
    """Compare two runs by their losses, and until shortly after the first change by other columns too."""
    assert ours.steps() == theirs.steps() == list(range(1, STEPS + 1))
    a, b = np.array(ours.column("loss")), np.array(theirs.column("loss"))
    difference = np.abs(a - b) / b
    end = changed + 3
    print("at first", difference[:end].max(), "later", difference.max())
    assert difference[:end].max() < AT_FIRST
    assert difference.max() < LATER
    for column in columns:
        assert ours.column(column)[:end] == pytest.approx(theirs.column(column)[:end], nan_ok=True), column


def tensors(stage: Stage, name: str) -> dict[str, NDArray[Any]]:
    return safetensors.numpy.load_file(stage.newest() / name)


def test_momentum_goes_on_with_half_of_its_ranks_and_with_all_of_them_again(tmp_path: Path) -> None:
    still, moved = Stage(tmp_path / "still", config(), 2), Stage(tmp_path / "moved", config(), 2)
    assert still.train(2) == STEPS
    first = moved.train(2, until=6)
    second = moved.train(1, until=28)
    assert 6 <= first < 22 < second < 44, "a gang did not change in the middle of an epoch"
    assert moved.train(2) == STEPS
    check(moved, still, first)
    for rank in range(2):
        shard = f"rank-{rank:04d}.safetensors"
        for name, values in tensors(still, shard).items():
            np.testing.assert_allclose(tensors(moved, shard)[name], values, rtol=1e-2, atol=1e-3, err_msg=name)


ALL = {
    "algorithm": "THOR",
    "thor": trainerconfig.THOR | {"frequency": 5},
    "ema": {"decay": 0.99},
    "accumulationSteps": 2,
    "dataset": {"name": "digits", "augmentation": {"crop": "Padded", "padding": 1, "mixupAlpha": 0.4}},
}
LARS = {"lars": {}, "learningRate": {"schedule": "Cosine", "peak": 1, "final": 0, "warmupEpochs": 1}}
SCALED = {"dynamicLossScale": {"initial": 65536, "growthSteps": 5}}


def moved_through(stage: Stage, *gangs: tuple[int, int]) -> int:
    """Train on so many ranks until that step each, then on all; return the step of the first change.

    None may be the end of an epoch of 22 steps.
    """
    steps = [stage.train(ranks, until) for ranks, until in gangs]
    assert all(step % 22 for step in steps), "a gang changed at the end of an epoch; choose another step"
    assert stage.train(stage.count) == STEPS
    return steps[0]


@pytest.mark.parametrize(
    "changes",
    [ALL | {"localBatchSize": 8}, LARS | SCALED | {"localBatchSize": 16}],
    ids=["THOR, EMA, accumulation, mixup", "LARS, dynamic loss scale"],
)
def test_four_ranks_go_on_as_two_as_one_and_as_four_again(changes: dict[str, Any], tmp_path: Path) -> None:
    still, moved = (Stage(tmp_path / name, config(**changes), 4) for name in ("still", "moved"))
    assert still.train(4) == STEPS
    changed = moved_through(moved, (4, 5), (2, 14), (1, 26))
    check(moved, still, changed, "left_out", "loss_scale")
    assert moved.column("ranks")[0] == 4 and sorted(set(moved.column("ranks"))) == [1, 2, 4]


def test_a_stage_of_pca_goes_on_as_two_as_one_and_as_four_ranks_again(tmp_path: Path) -> None:
    """Each start makes the basis anew from the stage's snapshots, and divides its columns among the ranks there are."""
    sampled = config(epochs=1, localBatchSize=16, snapshots={"everyEpochs": 0.2, "keep": 10})
    assert Stage(tmp_path / "still", sampled, 4).train(2) == 22
    shutil.copytree(tmp_path / "still", tmp_path / "moved")
    pca = {"stage": "fine", "algorithm": "PCA", "pca": {"components": 4}, "startFrom": {"stage": "base"}}
    changes = pca | {"localBatchSize": 16}
    still, moved = (Stage(tmp_path / name, config(**changes), 4, first_attempt=1) for name in ("still", "moved"))
    assert still.train(4) == STEPS
    changed = moved_through(moved, (4, 5), (2, 14), (1, 26))
    check(moved, still, changed, "pca_step_length", "pca_evaluations")
