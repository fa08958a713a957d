"""Learning rate and damping schedules: warm-up, decay, bounds, and the values of MindSpore's tutorials."""

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from resnetboost_trainer.config import Config
from resnetboost_trainer.optim.schedule import SCHEDULES, damping, first_other_rate, learning_rate
from support.trainerconfig import GOOD, THOR

STEPS = 20  # in an epoch


def config(epochs: int = 10, **rate: Any) -> Config:
    full = {"schedule": "Constant", "peak": 0.8, "final": 0, "warmupEpochs": 0, "gamma": 0.1, "power": 2} | rate
    return msgspec.convert(GOOD | {"epochs": epochs, "learningRate": full}, Config)


def damped(initial: float, decay: float, decay_epochs: float = 10) -> Config:
    how = {"initial": initial, "decay": decay, "decayEpochs": decay_epochs, "split": "Pi"}
    return msgspec.convert(GOOD | {"algorithm": "THOR", "thor": THOR | {"damping": how}}, Config)


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
        ({"schedule": "Polynomial", "power": 3}, 4.95, 0.1),
        ({"schedule": "Polynomial", "final": 0.2}, 4.95, 0.35),
        ({"schedule": "Polynomial", "final": 0.2}, 9.95, 0.2),
        ({"schedule": "Polynomial", "warmupEpochs": 2}, 1.95, 0.8),
        ({"schedule": "Polynomial", "warmupEpochs": 2}, 5.95, 0.2),
        ({"schedule": "Polynomial", "scheduleEpochs": 20, "power": 1}, 4.95, 0.6),
        ({"schedule": "Polynomial", "milestones": [5, 6], "gamma": 0.5}, 4.9, 0.8 * 0.505**2),
        ({"schedule": "Polynomial", "milestones": [5, 6], "gamma": 0.5}, 4.95, 0.1),
        ({"schedule": "WSD", "decayEpochs": 4, "final": 0.2}, 6, 0.8),
        ({"schedule": "WSD", "decayEpochs": 4, "final": 0.2}, 7, 0.5),
        ({"schedule": "WSD", "decayEpochs": 4, "final": 0.2}, 10, 0.2),
        ({"schedule": "WSD", "decayEpochs": 4, "warmupEpochs": 1}, 0.45, 0.4),
        ({"schedule": "WSD", "decayEpochs": 4, "scheduleEpochs": 20}, 16, 0.8),
        ({"schedule": "WSD", "decayEpochs": 4, "scheduleEpochs": 20}, 17, 0.4),
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
        "polynomial, half way",
        "polynomial, half way to final",
        "polynomial, at its last step",
        "polynomial, at the end of a warm-up",
        "polynomial, half way after a warm-up",
        "polynomial, laid out over more epochs",
        "polynomial, before a milestone",
        "polynomial, at a milestone, which counts the step itself",
        "warm-up, stable, decay: before the decay",
        "warm-up, stable, decay: a quarter of the decay",
        "warm-up, stable, decay: at its end",
        "warm-up, stable, decay: half way of the warm-up",
        "warm-up, stable, decay: laid out over more epochs, before the decay",
        "warm-up, stable, decay: laid out over more epochs",
    ],
)
def test_value_at_an_epoch(rate: dict[str, Any], epoch: float, expected: float) -> None:
    assert learning_rate(config(**rate), round(epoch * STEPS), STEPS) == pytest.approx(expected, rel=1e-12)


def test_warm_up_climbs_in_equal_steps_from_above_zero_to_the_peak() -> None:
    values = [learning_rate(config(warmupEpochs=0.5), step, STEPS) for step in range(12)]
    assert values == pytest.approx([0.08 * k for k in range(1, 11)] + [0.8, 0.8])


def test_the_tutorials_schedule() -> None:
    # 0 to 0.8 in 5 epochs, then linearly towards 0 at epoch 90, of which only 80 are trained.
    tutorial = config(epochs=80, schedule="Linear", warmupEpochs=5, scheduleEpochs=90)
    at = {epoch: learning_rate(tutorial, epoch * 625, 625) for epoch in (0, 5, 45, 79)}
    assert at == pytest.approx({0: 0.8 / 3125, 5: 0.8, 45: 0.8 * 45 / 85, 79: 0.8 * 11 / 85})


# MindSpore's THOR tutorials: the rates that lr_generator.py of the model zoo's official/cv/ResNet computes for the
# first step of an epoch, to three digits; ImageNet has 5004 steps of 256 images.
@pytest.mark.parametrize(
    ("rate", "at"),
    [
        (
            {"peak": 0.05803, "power": 4.0839, "scheduleEpochs": 53},
            {0: 0.0580, 10: 0.0247, 20: 0.00838, 30: 0.00192, 39: 1.26e-4, 40: 4.67e-5, 44: 1.04e-5},
        ),
        (
            {"peak": 0.05672, "power": 4.9687, "scheduleEpochs": 50},
            {0: 0.0567, 10: 0.0187, 20: 0.00448, 30: 5.98e-4, 39: 1.53e-5, 40: 4.77e-6},
        ),
    ],
    ids=["Ascend", "GPU"],
)
def test_the_rate_of_the_thor_tutorials(rate: dict[str, Any], at: dict[int, float]) -> None:
    tutorial = config(epochs=45, schedule="Polynomial", milestones=[39, 40], gamma=0.5, **rate)
    ours = {epoch: learning_rate(tutorial, epoch * 5004, 5004) for epoch in at}
    assert {epoch: float(f"{value:.3g}") for epoch, value in ours.items()} == at


# The model zoo's `cosine`: _generate_cosine_lr of official/cv/ResNet's lr_generator.py, in its own words.
@pytest.mark.parametrize("warmup", [0, 2])
def test_the_mixed_cosine_of_the_model_zoo(warmup: int) -> None:
    job = config(schedule="LinearCosine", warmupEpochs=warmup)
    total_steps, warmup_steps = 10 * STEPS, warmup * STEPS
    decay_steps = total_steps - warmup_steps
    for i in range(total_steps):
        linear_decay = (total_steps - i) / decay_steps
        cosine_decay = 0.5 * (1 + math.cos(math.pi * 2 * 0.47 * i / decay_steps))
        theirs = 0.8 * (linear_decay * cosine_decay + 0.00001) if i >= warmup_steps else 0.8 * (i + 1) / warmup_steps
        assert learning_rate(job, i, STEPS) == pytest.approx(theirs, rel=1e-12)


# torch.optim.lr_scheduler.OneCycleLR(max_lr=0.8, total_steps=10, pct_start=0.4, final_div_factor=...) of PyTorch 1.13.
@pytest.mark.parametrize(
    ("rate", "theirs"),
    [
        (
            {"initial": 0.08, "final": 0.008},
            [0.08, 0.26, 0.62, 0.8, 0.746946, 0.602, 0.404, 0.206, 0.0610539, 0.008],
        ),
        ({"initial": 0.032, "final": 0}, [0.032, 0.224, 0.608, 0.8, 0.746410, 0.6, 0.4, 0.2, 0.0535898, 0]),
        ({"final": 0}, [0.032, 0.224, 0.608, 0.8, 0.746410, 0.6, 0.4, 0.2, 0.0535898, 0]),
    ],
    ids=["to a tenth of its beginning", "to 0", "from its default"],
)
def test_one_cycle_is_pytorchs(rate: dict[str, Any], theirs: list[float]) -> None:
    job = config(epochs=10, schedule="OneCycle", warmupEpochs=4, **rate)
    assert [learning_rate(job, step, 1) for step in range(10)] == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert learning_rate(job, 11, 1) == pytest.approx(theirs[-1], abs=1e-12)


@pytest.mark.parametrize(
    ("tutorial", "at"),
    [
        (damped(0.03, 0.50036), {0: 0.030, 10: 0.0150, 20: 0.00751, 40: 0.00188}),
        (damped(0.02345, 0.5467), {0: 0.0234, 10: 0.0128, 20: 0.00701, 40: 0.00209}),
    ],
    ids=["Ascend", "GPU"],
)
def test_the_damping_of_the_thor_tutorials(tutorial: Config, at: dict[int, float]) -> None:
    assert {epoch: float(f"{damping(tutorial, epoch * 5004, 5004):.3g}") for epoch in at} == at


def test_damping_falls_by_its_factor_every_so_many_epochs() -> None:
    values = [damping(damped(0.8, 0.5, decay_epochs=2.5), round(epoch * STEPS) - 1, STEPS) for epoch in (2.5, 5, 7.5)]
    assert values == pytest.approx([0.4, 0.2, 0.1], rel=1e-12)


rates = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(sorted(SCHEDULES)),
        "peak": st.floats(1e-6, 1000),
        "warmupEpochs": st.floats(0, 9.9),
        "power": st.floats(0.01, 100),
        "milestones": st.lists(st.floats(0.1, 20), min_size=1, max_size=4, unique=True).map(sorted),
        "decayEpochs": st.floats(0.01, 1e4),
        "scheduleEpochs": st.none() | st.floats(10, 90),
    }
)


@given(rate=rates, share=st.floats(0, 1), steps=st.integers(1, 50), step=st.integers(0, 5000))
def test_never_negative_never_above_the_peak_never_zero_at_first(
    rate: dict[str, Any], share: float, steps: int, step: int
) -> None:
    job = config(**rate, final=share * rate["peak"])
    assert 0 <= learning_rate(job, step, steps) <= rate["peak"] * (1 + 1.001e-5)
    assert learning_rate(job, 0, steps) > 0


@given(rate=rates, steps=st.integers(1, 50))
def test_falls_and_never_rises_after_the_warm_up(rate: dict[str, Any], steps: int) -> None:
    assume(rate["schedule"] != "LinearCosine")  # its cosine is past its minimum after a long warm-up
    first = math.ceil(rate["warmupEpochs"] * steps)
    values = [learning_rate(config(**rate), step, steps) for step in range(first, 10 * steps)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values))


@pytest.mark.parametrize(
    ("theirs", "steps", "expected"),
    [
        ({}, 100, None),
        ({"peak": 0.2}, 100, 0),
        ({"milestones": [2.1, 4]}, 100, 42),
        ({"milestones": [2.1, 4]}, 42, None),
        ({"milestones": [2.1, 4]}, 4000, 44),
    ],
    ids=["nowhere", "at the first step", "at a milestone", "only later", "to a thousandth of the steps"],
)
def test_the_first_step_at_which_two_schedules_differ(theirs: dict[str, Any], steps: int, expected: int | None) -> None:
    rate: dict[str, Any] = {"schedule": "Step", "milestones": [3, 4]}
    assert first_other_rate(config(**rate), config(**rate | theirs), steps, STEPS) == expected
