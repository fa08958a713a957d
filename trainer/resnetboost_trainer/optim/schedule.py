"""Learning rate schedules and damping, as pure functions of the config and the step.

To add a learning rate schedule: write a function of a `Position`, list it in `SCHEDULES`, add its name to `Schedule`
in resnetboost_api/stage.py (and to the rules on `final` and `milestones` there if it has them), and run `make crd`.

Convention, for step s (0-based within the stage) with n steps an epoch:
    W = warmupEpochs * n,  T = scheduleEpochs * n   (the stage's epochs where scheduleEpochs is not given)
    factor   = min(1, (s + 1) / W)                  warm-up from 0: the first step is above 0, the last at 1
    progress = (s - W) / (T - W), clipped to 0..1
    Constant   peak
    Linear     peak + (final - peak) * progress
    Cosine     final + (peak - final) * (1 + cos(pi * progress)) / 2
    Step       peak * gamma ** (number of milestones m with s >= m * n)
    Polynomial (final + (peak - final) * (1 - ahead) ** power) * gamma ** (number of milestones m with s + 1 >= m * n)
               where ahead = (s + 1 - W) / (T - W), clipped to 0..1
    OneCycle   initial + (peak - initial) * (1 - cos(pi * s / (W - 1))) / 2  before step W - 1, and from there
               final + (peak - final) * (1 + cos(pi * (s - W + 1) / (T - W))) / 2, without the factor
    WSD        peak before step T - D, and from there final + (peak - final) * (1 - sqrt((s - T + D) / D))
               where D = decayEpochs * n
    LinearCosine  peak * ((T - s) / (T - W) * (1 + cos(0.94 * pi * s / (T - W))) / 2 + 1e-5)
    damping    initial * decay ** ((s + 1) / n / decayEpochs)
The learning rate is factor * the schedule's value. `final` is the value at step T, the one after the last, except with
Polynomial, which like damping looks one step ahead, as MindSpore's THOR tutorial does, and so ends at `final` itself.
OneCycle is PyTorch's OneCycleLR with pct_start W / T and reaches `final` at its last step too; no momentum changes with
it. WSD's decay is the best of Hägele et al. 2024 (arXiv 2405.18392). LinearCosine is `cosine` of the model zoo's
lr_generator.py, whose cosine counts the steps of the warm-up.
MindSpore's ImageNet tutorial (0 -> 0.8 in 5 epochs, then straight to 0 at epoch 90, stopped early) is
Linear, peak 0.8, warmupEpochs 5, scheduleEpochs 90; its THOR tutorial on Ascend (lr_generator.py of the model zoo) is
Polynomial, peak 0.05803, power 4.0839, scheduleEpochs 53, milestones [39, 40], gamma 0.5.
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from resnetboost_trainer.config import Config, LearningRate

# OneCycle begins at this part of its peak, as PyTorch's default.
INITIAL_DIVISOR = 25


class Position(msgspec.Struct, frozen=True):
    """Where a step is in the schedule: all in steps, but `steps_per_epoch`."""

    step: int
    steps_per_epoch: int
    warmup: float
    total: float


class StepSchedule(msgspec.Struct, frozen=True):
    """A step, 0-based within the stage, with its scheduled values; damping is 0 without THOR.

    The learning rate is 1 where a line search finds the length of each step.
    """

    step: int
    learning_rate: float
    damping: float


def at(config: Config, step: int, steps_per_epoch: int) -> StepSchedule:
    """The values of a step, 0-based within the stage."""
    damped = damping(config, step, steps_per_epoch) if config.thor is not None else 0.0
    return StepSchedule(step, rate(config, step, steps_per_epoch), damped)


def rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step; 1 where a search finds its length."""
    searching = config.pca is not None and config.pca.solver == "BFGS"
    return 1.0 if searching else learning_rate(config, step, steps_per_epoch)


def first_other_rate(ours: Config, theirs: Config, steps: int, steps_per_epoch: int) -> int | None:
    """The first of so many steps whose rates differ, to a thousandth of them; None if there is none."""
    for step in range(0, steps, max(1, steps // 1000)):
        if rate(ours, step, steps_per_epoch) != rate(theirs, step, steps_per_epoch):
            return step
    return None


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, 0-based within the stage; after scheduleEpochs it stays at the end value.

    Each roll-back of the stage multiplies it by its factor, for all steps that are made since.
    """
    rate = config.learning_rate
    total = (rate.schedule_epochs or config.epochs) * steps_per_epoch
    warmup = rate.warmup_epochs * steps_per_epoch
    factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
    scheduled = SCHEDULES[rate.schedule](rate, factor, Position(step, steps_per_epoch, warmup, total))
    return scheduled * math.prod(back.learning_rate_factor for back in config.roll_backs if back.stage == config.stage)


def damping(config: Config, step: int, steps_per_epoch: int) -> float:
    """Damping of a step of a THOR stage, 0-based within the stage."""
    assert config.thor is not None, "only THOR has damping"
    schedule = config.thor.damping
    return schedule.initial * math.pow(schedule.decay, (step + 1) / steps_per_epoch / schedule.decay_epochs)


def _constant(rate: LearningRate, factor: float, at: Position) -> float:
    return factor * rate.peak


def _linear(rate: LearningRate, factor: float, at: Position) -> float:
    return factor * (rate.peak + (rate.final - rate.peak) * _progress(at.step, at))


def _cosine(rate: LearningRate, factor: float, at: Position) -> float:
    return factor * _half_cosine(rate.peak, rate.final, _progress(at.step, at))


def _step(rate: LearningRate, factor: float, at: Position) -> float:
    return factor * rate.peak * _drops(rate, at.step / at.steps_per_epoch)


def _polynomial(rate: LearningRate, factor: float, at: Position) -> float:
    ahead = at.step + 1
    value = rate.final + (rate.peak - rate.final) * math.pow(1 - _progress(ahead, at), rate.power)
    return factor * value * _drops(rate, ahead / at.steps_per_epoch)


def _one_cycle(rate: LearningRate, factor: float, at: Position) -> float:
    """The rate of PyTorch's OneCycleLR, whose phases end one step earlier than ours; its rise is the warm-up."""
    initial = rate.peak / INITIAL_DIVISOR if rate.initial is None else rate.initial
    top, last = at.warmup - 1, at.total - 1
    if at.step < top:
        return _half_cosine(initial, rate.peak, at.step / top)
    return _half_cosine(rate.peak, rate.final, min((at.step - top) / (last - top), 1.0) if last > top else 1.0)


def _wsd(rate: LearningRate, factor: float, at: Position) -> float:
    assert rate.decay_epochs is not None, "the schedule has the field"
    decay = rate.decay_epochs * at.steps_per_epoch
    progress = min(max(at.step - at.total + decay, 0.0) / decay, 1.0)
    return factor * (rate.final + (rate.peak - rate.final) * (1 - math.sqrt(progress)))


def _linear_cosine(rate: LearningRate, factor: float, at: Position) -> float:
    if at.step < at.warmup:
        return factor * rate.peak
    span, step = at.total - at.warmup, min(at.step, at.total)
    return rate.peak * ((at.total - step) / span * _half_cosine(1, 0, 0.94 * step / span) + 1e-5)


# By the field learningRate.schedule: the learning rate from the settings, the warm-up's factor and the position.
SCHEDULES: Mapping[str, Callable[[LearningRate, float, Position], float]] = {
    "Constant": _constant,
    "Linear": _linear,
    "Cosine": _cosine,
    "Step": _step,
    "Polynomial": _polynomial,
    "OneCycle": _one_cycle,
    "WSD": _wsd,
    "LinearCosine": _linear_cosine,
}


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2


def _progress(step: float, at: Position) -> float:
    """Progress of a step from the end of the warm-up to the end of the schedule, 0 to 1."""
    return min((step - at.warmup) / (at.total - at.warmup), 1.0) if at.warmup < min(step, at.total) else 0.0


def _drops(rate: LearningRate, epoch: float) -> float:
    passed = sum(epoch >= milestone for milestone in rate.milestones)
    return rate.gamma**passed
