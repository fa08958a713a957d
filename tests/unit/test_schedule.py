import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.config import Config
from resnetboost_trainer.schedule import learning_rate
from trainerconfig import GOOD

STEPS = 20  # an epoch


def config(epochs: int = 10, **rate: Any) -> Config:
    full = {"schedule": "Constant", "peak": 0.8, "final": 0, "warmupEpochs": 0, "gamma": 0.1} | rate
    return msgspec.convert(GOOD | {"epochs": epochs, "learningRate": full}, Config)


@pytest.mark.parametrize(
    ("rate", "epoch", "expected"),
    [
        ({"schedule": "Constant"}, 7, 0.8),
        ({"schedule": "Linear"}, 0, 0.8),
        ({"schedule": "Linear"}, 5, 0.4),
        ({"schedule": "Linear", "final": 0.2}, 5, 0.5),
        ({"schedule": "Linear", "final": 0.2}, 10, 0.2),
        ({"schedule": "Linear", "scheduleEpochs": 20}, 5, 0.6),
        ({"schedule": "Cosine"}, 5, 0.4),
        ({"schedule": "Cosine", "final": 0.2}, 2.5, 0.2 + 0.6 * (1 + math.sqrt(0.5)) / 2),
        ({"schedule": "Cosine", "warmupEpochs": 2}, 6, 0.4),
        ({"schedule": "Step", "milestones": [3, 6.5]}, 2.95, 0.8),
        ({"schedule": "Step", "milestones": [3, 6.5]}, 3, 0.08),
        ({"schedule": "Step", "milestones": [3, 6.5]}, 6.45, 0.08),
        ({"schedule": "Step", "milestones": [3, 6.5], "gamma": 0.5}, 6.5, 0.2),
    ],
    ids=[
        "constant",
        "linear, at its start",
        "linear, half way",
        "linear, half way to final",
        "linear, at its end",
        "linear, laid out over more epochs",
        "cosine, half way",
        "cosine, a quarter of the way to final",
        "cosine, half way after a warm-up",
        "step, before the first milestone",
        "step, at the first milestone",
        "step, before a milestone within an epoch",
        "step, at a milestone within an epoch",
    ],
)
def test_value_at_an_epoch(rate: dict[str, Any], epoch: float, expected: float) -> None:
    assert learning_rate(config(**rate), round(epoch * STEPS), STEPS) == pytest.approx(expected, rel=1e-12)


def test_warm_up_climbs_in_equal_steps_from_above_zero_to_the_peak() -> None:
    values = [learning_rate(config(warmupEpochs=0.5), step, STEPS) for step in range(12)]
    assert values == pytest.approx([0.08 * k for k in range(1, 11)] + [0.8, 0.8])


def test_the_tutorials_schedule() -> None:
    # 0 -> 0.8 in 5 epochs, then straight towards 0 at epoch 90, of which only 80 are trained.
    tutorial = config(epochs=80, schedule="Linear", warmupEpochs=5, scheduleEpochs=90)
    at = {epoch: learning_rate(tutorial, epoch * 625, 625) for epoch in (0, 5, 45, 79)}
    assert at == pytest.approx({0: 0.8 / 3125, 5: 0.8, 45: 0.8 * 45 / 85, 79: 0.8 * 11 / 85})


rates = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(["Cosine", "Linear", "Step", "Constant"]),
        "peak": st.floats(1e-6, 1000),
        "warmupEpochs": st.floats(0, 9.9),
        "milestones": st.lists(st.floats(0.1, 20), min_size=1, max_size=4, unique=True).map(sorted),
        "scheduleEpochs": st.none() | st.floats(10, 90),
    }
)


@given(rate=rates, share=st.floats(0, 1), steps=st.integers(1, 50), step=st.integers(0, 5000))
def test_never_negative_never_above_the_peak_never_zero_at_first(
    rate: dict[str, Any], share: float, steps: int, step: int
) -> None:
    job = config(**rate, final=share * rate["peak"])
    assert 0 <= learning_rate(job, step, steps) <= rate["peak"] * (1 + 1e-12)
    assert learning_rate(job, 0, steps) > 0


@given(rate=rates, steps=st.integers(1, 50))
def test_falls_and_never_rises_after_the_warm_up(rate: dict[str, Any], steps: int) -> None:
    first = math.ceil(rate["warmupEpochs"] * steps)
    values = [learning_rate(config(**rate), step, steps) for step in range(first, 10 * steps)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values))
