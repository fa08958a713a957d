"""THOR's trace rule saves work only: switched off, training has the same bits as without the rule."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.models import resnet
from resnetboost_trainer.models.arch import Large
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.optim.thor.training import THOR, TrainingCell

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("any_mode")]

CLASSES, SAMPLES, STEPS, FREQUENCY = 3, 4, 4, 2
# One block in every group: plain blocks with the small stem, and squeeze-excitation bottlenecks with the large one.
# Other variants combine the same parts.
NETWORKS: dict[str, Callable[[], nn.Cell]] = {
    "as resnet20": lambda: resnet.SmallResNet(1, CLASSES, 3, "Float32"),
    "as resnext50_32x4d": lambda: resnet.ResNet(
        Large((1, 1, 1, 1), True, cardinality=32, width=4), CLASSES, 3, "Float32"
    ),
    "as seresnet50": lambda: resnet.ResNet(Large((1, 1, 1, 1), True, squeezes=True), CLASSES, 3, "Float32"),
}
State = dict[str, NDArray[Any]]


def state(cell: TrainingCell) -> State:
    return {parameter.name: parameter.asnumpy().copy() for parameter in cell.get_parameters()}


def run(cell: TrainingCell, forgetful: bool) -> tuple[State, list[int]]:
    """State after some steps, and the number of updated layers; a forgetful one treats every layer as new."""
    curvature, updated = cell.thor.curvature, []
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        x = generator.standard_normal((SAMPLES, 3, 16, 16), np.float32)
        if forgetful:
            for memory in (curvature.traces, curvature.dampings):
                write(memory, np.zeros(memory.shape))
        cell(Tensor(x), Tensor((np.arange(SAMPLES) % CLASSES).astype(np.int32)))
        if step % FREQUENCY == 0:
            assert cell.last_update is not None
            updated.append(cell.last_update.updated)
    return state(cell), updated


@pytest.mark.parametrize("name", NETWORKS)
def test_without_thresholds_every_layer_is_updated_every_time_to_the_same_bits(name: str) -> None:
    network = NETWORKS[name]()
    thor = THOR(network, 0.001, 0.1, frequency=FREQUENCY, trace_rule=(0.0, 0.0, 0.0))
    cell = thor.training_cell(CrossEntropy())
    before = state(cell)
    by_rule, told = run(cell, forgetful=False)
    assert told == [len(thor.curvature.layers)] * (STEPS // FREQUENCY)
    for parameter in cell.get_parameters():
        write(parameter, before[parameter.name])
    always, told_again = run(cell, forgetful=True)
    assert told_again == told
    memory = {"thor.traces", "thor.damping"}
    different = [key for key in by_rule.keys() - memory if not np.array_equal(by_rule[key], always[key])]
    assert different == []
    assert all(np.isfinite(value).all() for value in by_rule.values())
