"""Float16 overflows under each algorithm: all ranks skip the step, and no state changes."""

import csv
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.state import OPTIMIZER
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.optim.grad_scaler import MOST_IN_A_ROW
from resnetboost_trainer.optim.schedule import StepSchedule
from support import onerank, overflowing, rankgang

pytestmark = pytest.mark.slow

Arrays = dict[str, NDArray[Any]]

ALONE = Communicator(0, 1)
LEFT_OUT, SCALE, UPDATES = range(3)


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Arrays]:
    return rankgang.run("overflowrank.py", 2, tmp_path_factory.mktemp("gang"))


def moment(rank: Arrays, case: str, name: str) -> dict[str, bytes]:
    begin = f"{case}.{name}."
    return {key.removeprefix(begin): value.tobytes() for key, value in rank.items() if key.startswith(begin)}


def different(one: dict[str, bytes], other: dict[str, bytes]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize("case", overflowing.TOGETHER)
def test_an_overflow_on_one_rank_changes_nothing_on_any_but_the_scale(gang: list[Arrays], case: str) -> None:
    """Neither weights, nor the state of batch normalization, optimizer, curvature, solver and average."""
    for rank in gang:
        told = rank[f"{case}.told"]
        assert told[:, LEFT_OUT].tolist() == [1, 0, 0, 0]
        assert told[:, SCALE].tolist() == [overflowing.SCALE] + 3 * [overflowing.SCALE / 2]
        assert np.isfinite(told).all()
        changed = {"loss_scale.factor"} | ({"thor.overdue"} if case in overflowing.WITH_CURVATURE else set())
        before, after = moment(rank, case, "before"), moment(rank, case, "after")
        assert any("moving_mean" in name for name in before)
        assert different(before, after) == changed


@pytest.mark.parametrize("case", overflowing.TOGETHER)
def test_the_next_step_is_as_without_the_overflow(gang: list[Arrays], case: str) -> None:
    for rank in gang:
        then, undisturbed = moment(rank, case, "next"), moment(rank, case, "undisturbed")
        assert then == undisturbed
        assert different(then, moment(rank, case, "after")) > {"average"}, "it did not train"
    for name in moment(gang[0], case, "next").keys() - {"average"}:
        of_node = case == "Adasum of THOR's changes" and "velocity" in name
        if "moving" not in name and not of_node:
            assert gang[0][f"{case}.next.{name}"].tobytes() == gang[1][f"{case}.next.{name}"].tobytes(), name


@pytest.mark.parametrize("case", overflowing.WITH_CURVATURE)
def test_a_skipped_curvature_update_is_made_at_the_next_step(gang: list[Arrays], case: str) -> None:
    """The update is due at step 0, which overflows, and then at every third step."""
    for rank in gang:
        assert rank[f"{case}.told"][:, UPDATES].tolist() == [0, 1, 0, 1]


def step(program: Program, number: int, faint: bool = False) -> StepRecord:
    return program.step(*overflowing.batch(number, 0, faint), StepSchedule(number, 0.1, 0.1), stop=False)


def test_statistics_of_all_micro_batches_of_a_step_are_put_back() -> None:
    scale = {"initial": overflowing.SCALE, "growthSteps": 1000}
    program = overflowing.program("THOR", ALONE, dynamicLossScale=scale, accumulationSteps=2)
    before = overflowing.everything(program)
    program.accumulate(*overflowing.batch(0, 0), StepSchedule(0, 0.1, 0.1))
    assert step(program, 0, faint=True).left_out
    after = overflowing.everything(program)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"loss_scale.factor", "thor.overdue"}


def test_a_fixed_scale_leaves_steps_out_and_fails_where_that_is_no_help() -> None:
    program = overflowing.program("PCA by BFGS", ALONE, lossScale=overflowing.SCALE)
    before = overflowing.everything(program)
    first = step(program, 0, faint=True)
    assert (first.left_out, first.loss_scale, first.update) == (True, overflowing.SCALE, None)
    good = step(program, 1)
    assert not good.left_out and good.update is not None
    for _ in range(MOST_IN_A_ROW):
        assert step(program, 2, faint=True).left_out
    with pytest.raises(NumericsError, match="use dynamicLossScale"):
        step(program, 2, faint=True)
    assert before.keys() >= {"loss_scale.left_out"}


def test_the_least_scale_fails_at_once_whatever_the_algorithm() -> None:
    program = overflowing.program("THOR", ALONE, dynamicLossScale={"initial": 1, "growthSteps": 9})
    images, labels = overflowing.batch(0, 0)
    with pytest.raises(NumericsError, match="another precision than Float16"):
        program.step(images * 1e6, labels, StepSchedule(0, 0.1, 0.1), stop=False)


def test_factors_are_those_without_a_scale() -> None:
    """Equal up to Float16 rounding, with a scale that changes from step to step."""
    left = []
    for changes in ({}, {"dynamicLossScale": {"initial": 1024, "growthSteps": 1}}):
        program = overflowing.program("THOR", ALONE, **changes)
        for number in range(4):
            assert not step(program, number).left_out
        assert program.curvature is not None
        left.append([inverse.asnumpy() for inverse in program.curvature.preconditioner.state()])
    for plain, scaled in zip(*left, strict=True):
        assert np.abs(scaled - plain).max() < 0.02 * np.abs(plain).max()


def test_the_loss_is_of_labels_that_are_smoothed_as_the_job_says(caplog: pytest.LogCaptureFixture) -> None:
    """Of classes, and of class shares as mixup makes them; rank 0 reports it."""
    caplog.set_level(logging.INFO)
    smoothed = {"labelSmoothing": 0.3, "labelSmoothingOver": "OtherClasses"}
    program = overflowing.program("Momentum", ALONE, lossScale=1, **smoothed)
    assert "labels are smoothed by 0.3 over the other classes: 0.7 and 0.15" in caplog.text
    images, labels = overflowing.batch(0, 0)
    logits = program.network.set_train(True)(images).asnumpy().astype(np.float64)
    own = np.eye(overflowing.CLASSES)[labels.asnumpy()]
    entropies = np.log(np.exp(logits).sum(1, keepdims=True)) - logits
    expected = (np.where(own == 1, 0.7, 0.15) * entropies).sum(1).mean()
    for given in (labels, Tensor(own.astype(np.float32))):
        outcome = program.step(images, given, StepSchedule(0, 0.0, 0.1), stop=False)
        assert outcome.loss == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_of_an_old_version_without_a_scale_is_resumed() -> None:
    scale = {"initial": 256.0, "growthSteps": 9}
    older = overflowing.program("THOR", ALONE, lossScale=1)
    step(older, 0)
    contents = older.state.snapshot()
    assert contents is not None
    del contents[OPTIMIZER]["thor.overdue"]
    assert not any(name.startswith("loss_scale") for name in contents[OPTIMIZER])
    newer = overflowing.program("THOR", ALONE, dynamicLossScale=scale)
    newer.state.restore(contents)
    theirs, ours = overflowing.everything(older), overflowing.everything(newer)
    assert all(np.array_equal(ours[name], value) for name, value in theirs.items())
    assert step(newer, 1).loss_scale == 256


@pytest.mark.parametrize("stage", ["Adasum of THOR's changes", "PCA by BFGS"])
def test_resuming_after_an_overflow_gives_the_same_bits(stage: str) -> None:
    scale = {"initial": overflowing.SCALE, "growthSteps": 2}
    undisturbed = overflowing.program(stage, ALONE, dynamicLossScale=scale)
    assert step(undisturbed, 0, faint=True).left_out
    contents = undisturbed.state.snapshot()
    told = [step(undisturbed, number) for number in range(1, 4)]
    resumed = overflowing.program(stage, ALONE, dynamicLossScale=scale)
    resumed.state.restore(contents)
    again = [step(resumed, number) for number in range(1, 4)]
    assert [one.loss_scale for one in told] == [overflowing.SCALE / 2, overflowing.SCALE / 2, overflowing.SCALE]
    assert [one.loss_scale for one in again] == [one.loss_scale for one in told]
    assert [one.curvature is None for one in again] == [one.curvature is None for one in told]
    theirs, ours = overflowing.everything(undisturbed), overflowing.everything(resumed)
    assert {name for name in theirs if theirs[name].tobytes() != ours[name].tobytes()} == set()


def test_a_run_restarted_between_an_overflow_and_the_next_good_step_ends_in_the_same_bits(tmp_path: Path) -> None:
    config = {"precision": "Float16", "dynamicLossScale": {"initial": 2.0**24, "growthSteps": 10}, "epochs": 1}
    for attempt in range(2):
        onerank.train(tmp_path, attempt, example="digits-thor", config=config, keepCompiledGraphs=True)
        if attempt == 0:
            first = tmp_path / "checkpoints/uid/base/attempt-0"
            steps = sorted(first.glob("step-*"))
            expected = files(steps[-1])
            for path in steps[1:]:
                shutil.rmtree(path)
    assert files(tmp_path / f"checkpoints/uid/base/attempt-1/{steps[-1].name}") == expected
    with (first / "metrics.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [row["left_out"] for row in told[:2]] == ["1", "1"], "it did not overflow before and after that checkpoint"
    good = next(row for row in told if row["left_out"] == "0")
    assert good["layers_updated"], "the update of step 0 was never made"
    assert float(told[-1]["loss"]) < float(told[0]["loss"])


def files(checkpoint: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}
    assert found
    return found
