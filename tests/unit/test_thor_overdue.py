"""Overdue THOR updates: a skipped update is due at the next step; its flag is read from the device only once."""

from collections.abc import Iterator

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.config import Damping, Thor, TraceRule
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.optim.thor.kfac import KFACPreconditioner


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    """MindSpore must know the device before it computes anything in this process; later tests could not set it."""
    mindspore.set_device("CPU")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the parameters whose values were read."""
    names: list[str] = []
    asnumpy = Parameter.asnumpy

    def noted(parameter: Parameter) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        names.append(parameter.name)
        values: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = asnumpy(parameter)
        return values

    monkeypatch.setattr(Parameter, "asnumpy", noted)
    yield names


def curvature() -> KFACPreconditioner:
    network = nn.Dense(3, 2)
    rule = TraceRule(update_above=0, stop_below=0, smoothing=0)
    damping = Damping(initial=0.1, decay=1, decay_epochs=1, split="Pi")
    settings = Thor(frequency=5, block_size=128, damping=damping, trace_rule=rule)
    return KFACPreconditioner(nn.SequentialCell(network), network.trainable_params(), settings, Communicator(0, 1))


def test_the_overdue_flag_is_read_once(read: list[str]) -> None:
    ours = curvature()
    assert [step for step in range(11) if ours.due(step)] == [0, 5, 10]
    assert read.count("thor.overdue") == 1
    ours.postpone()
    assert [ours.due(step) for step in (11, 12)] == [True, True]
    assert float(Tensor(ours.overdue).asnumpy()) == 1, "a checkpoint has to say so, too"
    assert read.count("thor.overdue") == 1


def test_a_checkpoint_restores_the_overdue_flag() -> None:
    ours, script = curvature(), curvature()
    assert not script.due(1)
    for each in (ours, script):
        each.overdue.set_data(Tensor(1.0, mindspore.float32))
    script.forget()
    assert ours.due(1)
    assert script.due(1)
