"""Resuming THOR from a checkpoint of a release that did not save the damping of each layer's inverses."""

from typing import Any

import msgspec
import numpy as np
import pytest

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.state import OPTIMIZER
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import ConfigError
from support import thornetworks, trainerconfig

STAGES: dict[str, dict[str, Any]] = {
    "THOR": {"algorithm": "THOR"},
    "Adasum of changes": {"algorithm": "Adasum", "adasum": {"reduce": "Delta", "ranksPerNode": 1}},
    "Adasum of gradients": {"algorithm": "Adasum", "adasum": {"reduce": "Gradient", "ranksPerNode": 1}},
}


def program(stage: str) -> Program:
    device.prepare()
    settings = trainerconfig.GOOD | {"thor": trainerconfig.THOR} | STAGES[stage]
    network = thornetworks.Chain()
    configured = msgspec.convert(settings, config.Config)
    return Program(configured, network, Communicator(0, 1))


def without(contents: dict[str, Arrays], name: str) -> dict[str, Arrays]:
    return {file: {key: value for key, value in arrays.items() if key != name} for file, arrays in contents.items()}


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_taken_and_all_layers_count_as_outdated(stage: str) -> None:
    earlier, later = program(stage), program(stage)
    assert earlier.curvature is not None
    assert later.curvature is not None
    contents = earlier.state.snapshot()
    assert contents is not None
    contents[OPTIMIZER]["thor.traces"] += 5
    assert contents[OPTIMIZER]["thor.damping"].shape == (len(earlier.curvature.layers),)
    later.state.restore(without(contents, "thor.damping"))
    assert np.array_equal(later.curvature.traces.asnumpy(), contents[OPTIMIZER]["thor.traces"])
    assert not later.curvature.dampings.asnumpy().any()
    contents[OPTIMIZER]["thor.damping"] += 0.25
    later.state.restore(contents)
    assert (later.curvature.dampings.asnumpy() == 0.25).all()


def test_nothing_else_may_be_missing() -> None:
    contents = program("THOR").state.snapshot()
    assert contents is not None
    with pytest.raises(ConfigError, match=r"no parameter thor\.traces"):
        program("THOR").state.restore(without(contents, "thor.traces"))
