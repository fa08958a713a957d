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

# Of a step's loss, relative to it, in the first steps after a change: float32 sums in another order. A training
# magnifies any such difference whenever it decides the sign of an activation near 0 or whether a line search takes a
# length, as it does where a unit in the last place is added to some weights. Therefore each change is compared with
# the gang that it left, which goes on from the same checkpoint.
WITHIN, WINDOW = 1e-5, 3
STEPS = 44


def config(**changes: Any) -> dict[str, Any]:
    """Two epochs of 22 steps of 64 images."""
    checkpoint = {"everySteps": 1000, "keep": 3, "resume": "Never"}
    return trainerconfig.GOOD | {"epochs": 2, "checkpoint": checkpoint} | changes


def check(ours: Stage, theirs: Stage, first: int, end: int, *columns: str) -> None:
    """Compare the steps after `first`, up to `end`, by their losses and other columns."""
    for column in ("loss", *columns):
        a, b = (_values(stage, column, first, end) for stage in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=WITHIN, err_msg=column)


def _values(stage: Stage, column: str, first: int, end: int) -> NDArray[np.float64]:
    rows = stage.rows()
    return np.array([float(rows[step][column]) for step in range(first + 1, end + 1)])


def tensors(stage: Stage, name: str) -> dict[str, NDArray[Any]]:
    return safetensors.numpy.load_file(stage.newest() / name)


def test_momentum_goes_on_with_half_of_its_ranks_and_with_all_of_them_again(tmp_path: Path) -> None:
    still, moved = Stage(tmp_path / "still", config(), 2), Stage(tmp_path / "moved", config(), 2)
    assert still.train(2) == STEPS
    first = moved.train(2, until=6)
    second = moved.train(1, until=28)
    assert 6 <= first < 22 < second < 44, "a gang did not change in the middle of an epoch"
    assert moved.train(2) == STEPS
    check(moved, still, 0, STEPS)  # a sum of two numbers has no order
    for rank in range(2):
        shard = f"rank-{rank:04d}.safetensors"
        for name, values in tensors(still, shard).items():
            np.testing.assert_allclose(tensors(moved, shard)[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


ALL = {
    "algorithm": "THOR",
    "thor": trainerconfig.THOR | {"frequency": 5},
    "ema": {"decay": 0.99},
    "accumulationSteps": 2,
    "dataset": {"name": "digits", "augmentation": {"crop": "Padded", "padding": 1, "mixupAlpha": 0.4}},
}
LARS = {"lars": {}, "learningRate": {"schedule": "Cosine", "peak": 1, "final": 0, "warmupEpochs": 1}}
SCALED = {"dynamicLossScale": {"initial": 65536, "growthSteps": 5}}


def move(stage: Stage, undisturbed: Stage, *columns: str) -> None:
    """Train on four ranks, two, one and four again; compare the steps after each change with those without it.

    `undisturbed` has not changed at all. No change may be at the end of an epoch of 22 steps.
    """
    stays: dict[int, Stage] = {}
    for ranks, until in ((4, 5), (2, 14), (1, 26)):
        step = stage.train(ranks, until)
        assert step % 22, "a gang changed at the end of an epoch; choose another step"
        stays[step] = stage.copied(stage.folder.with_name(f"of-{ranks}"))
        stays[step].train(ranks, step + WINDOW)
    assert stage.train(4) == STEPS
    assert stage.steps() == undisturbed.steps() == list(range(1, STEPS + 1))
    check(stage, undisturbed, 0, min(stays) + WINDOW, *columns)
    for step, without in stays.items():
        check(stage, without, step, step + WINDOW, *columns)


@pytest.mark.parametrize(
    "changes",
    [ALL | {"localBatchSize": 8}, LARS | SCALED | {"localBatchSize": 16}],
    ids=["THOR, EMA, accumulation, mixup", "LARS, dynamic loss scale"],
)
def test_four_ranks_go_on_as_two_as_one_and_as_four_again(changes: dict[str, Any], tmp_path: Path) -> None:
    still, moved = (Stage(tmp_path / name, config(**changes), 4) for name in ("still", "moved"))
    assert still.train(4) == STEPS
    move(moved, still, "left_out", "loss_scale", "learning_rate")
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
    move(moved, still, "pca_step_length", "pca_evaluations")
