"""Gangs that change their size in the middle of an epoch train as one that does not, as real trainer processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from support import trainerconfig
from support.elasticgang import Stage

pytestmark = pytest.mark.slow

# Of the losses of all steps, relative to each: float32 sums in another order, and what the training makes of them.
WITHIN = 1e-4


def config(**changes: Any) -> dict[str, Any]:
    """Two epochs of 22 steps of 64 images."""
    checkpoint = {"everySteps": 1000, "keep": 3, "resume": "Never"}
    return trainerconfig.GOOD | {"epochs": 2, "checkpoint": checkpoint} | changes


def difference(ours: Stage, theirs: Stage, column: str = "loss") -> float:
    """The largest difference of a column between two runs, relative to the larger value of a step."""
    assert ours.steps() == theirs.steps()
    a, b = np.array(ours.column(column)), np.array(theirs.column(column))
    return float((np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))).max())


def tensors(stage: Stage, name: str) -> dict[str, NDArray[Any]]:
    return safetensors.numpy.load_file(stage.newest() / name)


def test_momentum_goes_on_with_half_of_its_ranks_and_with_all_of_them_again(tmp_path: Path) -> None:
    still, moved = Stage(tmp_path / "still", config(), 2), Stage(tmp_path / "moved", config(), 2)
    assert still.train(2) == 44
    first = moved.train(2, until=6)
    second = moved.train(1, until=28)
    assert 6 <= first < 22 < second < 44, "a gang did not change in the middle of an epoch"
    assert moved.train(2) == 44
    assert difference(moved, still) < WITHIN
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
LARS = {"lars": {}, "learningRate": {"schedule": "Cosine", "peak": 10, "final": 0, "warmupEpochs": 1}}
SCALED = {"precision": "Float16", "dynamicLossScale": {"initial": 65536, "growthSteps": 5}}


def moved_through(stage: Stage, *gangs: tuple[int, int]) -> None:
    """Train on so many ranks until that step each, none of which may be the end of an epoch of 22; then on all."""
    for ranks, until in gangs:
        assert stage.train(ranks, until) % 22, "a gang changed at the end of an epoch; choose another step"
    assert stage.train(stage.count) == 44


@pytest.mark.parametrize(
    "changes",
    [ALL | {"localBatchSize": 8}, LARS | SCALED | {"localBatchSize": 16}],
    ids=["THOR, EMA, accumulation, mixup", "LARS, dynamic loss scale"],
)
def test_four_ranks_go_on_as_two_as_one_and_as_four_again(changes: dict[str, Any], tmp_path: Path) -> None:
    still, moved = (Stage(tmp_path / name, config(**changes), 4) for name in ("still", "moved"))
    assert still.train(4) == 44
    moved_through(moved, (4, 5), (2, 14), (1, 26))
    assert difference(moved, still) < WITHIN
    for column in ("left_out", "loss_scale"):
        assert moved.column(column) == still.column(column)
    assert moved.column("ranks")[0] == 4 and sorted(set(moved.column("ranks"))) == [1, 2, 4]
