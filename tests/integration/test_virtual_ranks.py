"""A rank that does the work of several: their BN statistics, curvature, line search, skipped steps and checkpoints."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint.state import MODEL, shard
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device, graph_key
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models.layers.running_stats import VirtualStatistics
from resnetboost_trainer.optim.schedule import StepSchedule
from support import overflowing, trainerconfig

ALONE = Communicator(0, 1)
Batches = Sequence[tuple[Tensor, Tensor]]
SCALE = {"initial": 2.0**4, "growthSteps": 1000}


@pytest.fixture(autouse=True, scope="module")
def on_a_cpu() -> None:
    device.prepare()


def program(stage: str, virtual: int = 1, **changes: Any) -> Program:
    ranks = {"virtualRanks": virtual} if virtual > 1 else {}
    return overflowing.program(stage, ALONE, dynamicLossScale=SCALE, **ranks, **changes)


def step(program: Program, number: int, batches: Batches, rate: float = 0.1) -> StepRecord:
    """A step of these micro batches."""
    now, (*before, last) = StepSchedule(number, rate, 0.1), batches
    for images, labels in before:
        program.accumulate(images, labels, now)
    return program.step(*last, now, stop=False)


def saved(program: Program) -> dict[str, dict[str, NDArray[np.float32]]]:
    contents = program.state.snapshot()
    assert contents is not None
    return contents


def batches(number: int, ranks: Sequence[int]) -> Batches:
    return [overflowing.batch(number, rank) for rank in ranks]


def test_each_virtual_rank_has_the_statistics_of_a_rank_of_its_own() -> None:
    """The weights stay what they are, since ranks of their own would train others."""
    ours = program("Momentum", 3)
    for number in range(3):
        step(ours, number, batches(number, range(3)), rate=0)
    shards, average = saved(ours), []
    for rank in range(3):
        theirs = program("Momentum")
        for number in range(3):
            step(theirs, number, batches(number, [rank]), rate=0)
        alone = saved(theirs)
        for prefix in ("", "ema-"):
            for name, values in alone[shard(0, prefix)].items():
                np.testing.assert_array_equal(shards[shard(rank, prefix)][name], values, err_msg=name)
        average.append(alone[MODEL]["norm.moving_mean"])
    np.testing.assert_allclose(shards[MODEL]["norm.moving_mean"], np.mean(average, axis=0), rtol=1e-6)


def test_two_micro_batches_of_each_virtual_rank_move_its_statistics_one_after_another() -> None:
    ours = program("Momentum", 2, accumulationSteps=2)
    step(ours, 0, batches(0, range(4)), rate=0)
    for rank, own in enumerate(([0, 1], [2, 3])):
        theirs = program("Momentum", accumulationSteps=2)
        step(theirs, 0, batches(0, own), rate=0)
        for name, values in saved(theirs)[shard(0)].items():
            np.testing.assert_array_equal(saved(ours)[shard(rank)][name], values, err_msg=name)


def test_the_weights_are_those_of_as_many_micro_batches() -> None:
    ours, theirs = program("Momentum", 4), program("Momentum", accumulationSteps=4)
    for number in range(2):
        for trainee in (ours, theirs):
            step(trainee, number, batches(number, range(4)))
    for name in ours.state.weights:
        np.testing.assert_array_equal(saved(ours)[MODEL][name], saved(theirs)[MODEL][name], err_msg=name)


@pytest.mark.parametrize("stage", ["THOR", "PCA by BFGS"])
def test_all_virtual_ranks_matter_alike_to_curvature_and_line_search(stage: str) -> None:
    """A sum of two numbers is the same in either order, to the bit."""
    told, states = [], []
    for order in ([0, 1], [1, 0]):
        trainee = program(stage, 2)
        records = [step(trainee, number, batches(number, order)) for number in range(4)]
        found = [(record.loss, getattr(record.update, "length", 0), record.curvature is not None) for record in records]
        told.append(found)
        states.append(saved(trainee))
    assert told[0] == told[1]
    for file in (MODEL, "optimizer.safetensors"):
        for name, values in states[0][file].items():
            if "moving" not in name:
                np.testing.assert_array_equal(states[1][file][name], values, err_msg=name)
    np.testing.assert_array_equal(
        states[0][shard(0)]["norm.moving_mean"], states[1][shard(1)]["norm.moving_mean"], "they were not swapped"
    )


@pytest.mark.parametrize("first", [False, True], ids=["the last", "the first"])
@pytest.mark.parametrize("stage", ["THOR", "PCA by BFGS"])
def test_a_step_that_overflows_puts_back_the_statistics_of_all_virtual_ranks(stage: str, first: bool) -> None:
    changes = {"dynamicLossScale": {"initial": overflowing.SCALE, "growthSteps": 1000}, "virtualRanks": 2}
    trainee = overflowing.program(stage, ALONE, **changes)
    before = saved(trainee)
    faint = [overflowing.batch(0, 0, faint=first), overflowing.batch(0, 1, faint=not first)]
    assert step(trainee, 0, faint).left_out
    after = saved(trainee)
    different = {
        name
        for file, arrays in before.items()
        for name, values in arrays.items()
        if values.tobytes() != after[file][name].tobytes()
    }
    assert different - {"thor.overdue"} == {"loss_scale.factor"}
    record = step(trainee, 1, batches(1, range(2)))
    assert not record.left_out
    if stage == "THOR":
        assert record.curvature is not None, "the update was not made at the next step"


@pytest.mark.usefixtures("any_mode")
def test_statistics_of_one_virtual_rank_do_not_move_with_those_of_another() -> None:
    """In both of MindSpore's modes: what was read from a parameter must not be a view of it."""
    live = [Parameter(Tensor(np.full(shape, 1.0, np.float32)), name=f"p{len(shape)}") for shape in ((3,), (2, 2))]
    virtual = VirtualStatistics(live, 2)
    for step in range(2):
        if step == 1:
            virtual.keep()
        for rank in range(2):
            virtual.enter(rank)
            for parameter in live:
                ops.assign(parameter, parameter * (2 + rank))
            virtual.leave(rank)
    np.testing.assert_array_equal(virtual.values, [[4.0] * 7, [9.0] * 7])
    virtual.restore()
    np.testing.assert_array_equal(virtual.values, [[2.0] * 7, [3.0] * 7])
    virtual.enter(0)
    assert [parameter.asnumpy().tolist() for parameter in live] == [[2.0] * 3, [[2.0] * 2] * 2]


def test_a_training_of_another_number_of_ranks_begins_with_the_mean_of_the_statistics() -> None:
    ours, fewer = program("Momentum", 4), program("Momentum", 2)
    step(ours, 0, batches(0, range(4)))
    whole = saved(ours)
    lacking = {file: arrays for file, arrays in saved(program("Momentum", 2)).items() if file != shard(0)} | {
        MODEL: whole[MODEL]
    }
    for contents in (whole, lacking):
        fewer.state.restore(contents)
        for rank in range(2):
            for name, values in saved(fewer)[shard(rank)].items():
                np.testing.assert_array_equal(values, contents[MODEL][name], err_msg=name)


def configured(**changes: Any) -> config.Config:
    return msgspec.convert(trainerconfig.GOOD | changes, config.Config, strict=False)


@pytest.mark.parametrize(
    ("changes", "ranks", "says"),
    [
        ({"virtualRanks": 4}, 3, "virtualRanks: 4 ranks' work cannot be divided evenly among 3; use one of 1, 2, 4"),
        ({"virtualRanks": 2}, 4, "virtualRanks: 2 ranks' work cannot be divided evenly among 4; use one of 1, 2"),
        (
            {"virtualRanks": 4, "algorithm": "Adasum", "adasum": {}},
            2,
            "virtualRanks: 4: Adasum of 2 ranks is another sum than that of 4; give this job all of its devices, or use"
            " another algorithm",
        ),
    ],
    ids=["uneven", "too many ranks", "Adasum"],
)
def test_a_gang_that_cannot_do_the_work_is_refused_with_the_reason(
    changes: dict[str, Any], ranks: int, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        virtual_ranks.of(configured(**changes), ranks)
    assert str(caught.value) == says


def test_graphs_are_kept_apart_by_what_a_gang_is_and_what_defines_its_training() -> None:
    found = [
        graph_key.environment(configured(**changes), ranks)
        for changes in ({}, {"virtualRanks": 4}, {"virtualRanks": 8})
        for ranks in (1, 2)
    ]
    assert len(set(found)) == len(found)


def test_a_gang_of_the_whole_number_does_nothing_else_than_before() -> None:
    for changes in ({}, {"virtualRanks": 4}, {"virtualRanks": 4, "algorithm": "Adasum", "adasum": {}}):
        assert virtual_ranks.of(configured(**changes), 4) == virtual_ranks.VirtualRanks(4, 1)
