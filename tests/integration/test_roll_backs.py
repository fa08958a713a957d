"""A stage that goes back: from which checkpoint, with which batches and rate, and to the same bits after a restart."""

import csv
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mindspore import Tensor

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.config import Environment
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.dataset import ArraySplit
from resnetboost_trainer.engine.signals import StopRequest
from resnetboost_trainer.engine.startup import StartupTimes
from resnetboost_trainer.engine.trainer import Training
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics.progress import Progress, ProgressState
from resnetboost_trainer.metrics.server import Server
from resnetboost_trainer.tracking.tracking import Tracking
from support import onerank
from support.trainerconfig import GOOD

BASE = Path("checkpoints/uid/base")
FAULT, AT_MOST = 30, 20


def back(attempt: int = 0, **changes: Any) -> dict[str, Any]:
    plain = {"attempt": attempt, "stage": "base", "fromStep": FAULT, "atMostStep": AT_MOST}
    return plain | {"learningRateFactor": 0.5, "skipToBatch": FAULT} | changes


def settings(*backs: dict[str, Any]) -> dict[str, Any]:
    return {"divergence": {"forSteps": 10}, "rollBacks": list(backs)}


def rows(attempt: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((attempt / "metrics.csv").open()))


EXAMPLES = {
    "digits": ["stages[0].ema.decay=0.9", "stages[0].dynamicLossScale.initial=1024"],
    "digits-thor": [],
}


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"example": request.param, "changes": EXAMPLES[request.param]}


@pytest.fixture(scope="module")
def abandoned(example: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with all its checkpoints, of which a roll-back abandons those after step 20."""
    folder = tmp_path_factory.mktemp("abandoned")
    onerank.train(folder, attempt=0, config=settings(), **example)
    return folder


@pytest.fixture(scope="module")
def undisturbed(example: dict[str, Any], abandoned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The continuation of the roll-back without any trouble."""
    folder = tmp_path_factory.mktemp("undisturbed")
    copy(abandoned / BASE / "attempt-0", folder / BASE / "attempt-0", 0, onerank.STEPS)
    onerank.train(folder, attempt=1, config=settings(back()), **example)
    return folder / BASE / "attempt-1"


def copy(source: Path, target: Path, first: int, last: int) -> None:
    for step in range(first, last + 1):
        name = f"step-{step:08d}"
        if (source / name).exists():
            shutil.copytree(source / name, target / name)


@pytest.mark.slow
def test_it_goes_on_from_before_the_trouble_with_later_batches_and_a_lower_rate(
    abandoned: Path, undisturbed: Path
) -> None:
    found, before = rows(undisturbed), rows(abandoned / BASE / "attempt-0")
    assert [int(row["step"]) for row in found] == list(range(AT_MOST + 1, onerank.STEPS + 1))
    rates = [float(row["learning_rate"]) for row in before[AT_MOST:]]
    assert [float(row["learning_rate"]) for row in found] == pytest.approx([rate / 2 for rate in rates], rel=1e-6)
    assert {row["skipped_batches"] for row in found} == {str(FAULT - AT_MOST)}
    assert [row["rolled_back_from"] for row in found] == [str(FAULT)] + [""] * (len(found) - 1)
    assert [row["loss"] for row in found[:3]] != [row["loss"] for row in before[AT_MOST : AT_MOST + 3]]
    last = store.load_manifest(undisturbed / f"step-{onerank.STEPS:08d}")
    assert (last.skipped_batches, last.config["rollBacks"]) == (FAULT - AT_MOST, [back()])


@pytest.mark.slow
@pytest.mark.parametrize("saved", [None, 27], ids=["before its first checkpoint", "later"])
def test_a_restart_after_a_roll_back_ends_in_the_same_bits(
    saved: int | None, example: dict[str, Any], abandoned: Path, undisturbed: Path, tmp_path: Path
) -> None:
    copy(abandoned / BASE / "attempt-0", tmp_path / BASE / "attempt-0", 0, onerank.STEPS)
    if saved is not None:
        copy(undisturbed, tmp_path / BASE / "attempt-1", AT_MOST + 1, saved)
    onerank.train(tmp_path, attempt=2, config=settings(back()), **example)
    attempt = tmp_path / BASE / "attempt-2"
    assert int(rows(attempt)[0]["step"]) == (saved or AT_MOST) + 1
    assert onerank.final_weights(attempt) == onerank.final_weights(undisturbed)


@pytest.mark.slow
def test_the_abandoned_branch_is_removed_once_the_new_one_is_saved(undisturbed: Path) -> None:
    left = store.candidates(undisturbed.parents[2], "uid", "base", 1)
    assert max(store.step_of(path) for path in left) == AT_MOST


@pytest.mark.slow
def test_without_a_checkpoint_from_before_the_stage_begins_anew_with_later_batches(
    example: dict[str, Any], abandoned: Path, tmp_path: Path
) -> None:
    copy(abandoned / BASE / "attempt-0", tmp_path / BASE / "attempt-0", AT_MOST + 1, onerank.STEPS)
    onerank.train(tmp_path, attempt=1, config=settings(back()), **example)
    found = rows(tmp_path / BASE / "attempt-1")
    assert len(found) == onerank.STEPS
    assert {row["skipped_batches"] for row in found} == {str(FAULT)}


def training(root: Path, attempt: int, corrupt: int | None, every: int = 2, **changes: Any) -> Training:
    """A stage of digits in this process, one of whose images may be no number."""
    own = {"attempt": attempt, "epochs": 1, "localBatchSize": 64}
    rate = {"learningRate": GOOD["learningRate"] | {"warmupEpochs": 0}}
    given = GOOD | own | rate | settings() | changes
    settings_ = config.parse(given | {"checkpoint": {"everySteps": every, "keepCompiledGraphs": False}})
    dataset = registry.load(settings_.dataset, 10)
    images = np.empty((len(dataset.train.labels), *dataset.train.shape), np.float32)
    dataset.train.fill(images, np.arange(len(images)), None)
    if corrupt is not None:
        images[corrupt] = np.nan
    dataset = msgspec.structs.replace(dataset, train=ArraySplit(images, dataset.train.labels))
    place = Environment(
        config=root,
        checkpoints=root,
        index=0,
        rank=0,
        leader=0,
        world_size=1,
        coordinator=None,
        rank_table=None,
        bind_address="127.0.0.1",
        metrics_port=0,
        termination_log=None,
    )
    progress = ProgressState(Progress(state="Starting", stage="base", attempt=attempt))
    server = Server("127.0.0.1", 0, progress)
    return Training(settings_, place, dataset, progress, server, StopRequest(), StartupTimes(), Tracking())


@pytest.mark.usefixtures("any_mode")
def test_a_corrupted_batch_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = training(tmp_path, 0, corrupt=0)
    place = int(np.flatnonzero(np.concatenate([part.whole for part in first.share.steps(0, 22)]) == 0)[0]) // 64 + 1
    with pytest.raises(
        NumericsError, match=f"^step {place}, batch {place} of epoch 1 of the data: the loss is not"
    ) as e:
        first.run()
    assert e.value.fault is not None
    assert (e.value.fault.step, e.value.fault.batch) == (place, place)
    assert "this rank's part of that batch: 64 images: sample" in caplog.text
    before = rows(tmp_path / "uid/base/attempt-0")
    assert (before[-1]["step"], before[-1]["loss"], before[-1]["diverged"]) == (str(place), "nan", "1")
    went = back(fromStep=place, atMostStep=max(0, place - 10), skipToBatch=place)
    result = training(tmp_path, 1, corrupt=0, rollBacks=[went]).run()
    assert result.top1 > 0.1
    after = rows(tmp_path / "uid/base/attempt-1")
    assert all(np.isfinite(float(row["loss"])) for row in after)
    assert int(after[-1]["step"]) == 22


def test_a_state_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    """The loss of the first step is finite, but what its update leaves is not: the next step would have found out."""
    ruined = training(tmp_path, 0, corrupt=None, every=1)
    velocity = next(iter(ruined.program.state.optimizer.values()))
    velocity.set_data(Tensor(np.full(velocity.shape, np.nan, np.float32)))
    with pytest.raises(
        NumericsError, match=r"step 1, batch 1 of epoch 1 .* a weight or a number of the optimizer"
    ) as e:
        ruined.run()
    assert e.value.fault is not None
    assert e.value.fault.step == 1
    assert store.candidates(tmp_path, "uid", "base") == []
    assert [row["diverged"] for row in rows(tmp_path / "uid/base/attempt-0")] == ["1"]
