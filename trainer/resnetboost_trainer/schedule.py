"""The learning rate of every step, as a pure function of the config; it must not remember earlier steps.

Convention, for step s (0-based within the stage) with n steps an epoch:
    W = warmupEpochs * n,  T = scheduleEpochs * n   (the stage's epochs where scheduleEpochs is not given)
    factor   = min(1, (s + 1) / W)                  warm-up from 0: the first step is above 0, the last at 1
    progress = (s - W) / (T - W), clipped to 0..1
    Constant   peak
    Linear     peak + (final - peak) * progress
    Cosine     final + (peak - final) * (1 + cos(pi * progress)) / 2
    Step       peak * gamma ** (number of milestones m with s >= m * n)
The learning rate is factor * the schedule's value. `final` is the value at step T, the one after the last.
MindSpore's ImageNet tutorial (0 -> 0.8 in 5 epochs, then straight to 0 at epoch 90, stopped early) is
Linear, peak 0.8, warmupEpochs 5, scheduleEpochs 90.
"""

import math

from resnetboost_trainer.config import Config, LearningRate


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, 0-based within the stage; behind scheduleEpochs it stays at the end value."""
    rate = config.learning_rate
    total = (rate.schedule_epochs or config.epochs) * steps_per_epoch
    warmup = rate.warmup_epochs * steps_per_epoch
    factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if rate.schedule == "Step":
        return factor * _stepped(rate, step / steps_per_epoch)
    progress = min((step - warmup) / (total - warmup), 1.0) if warmup < min(step, total) else 0.0
    return factor * _annealed(rate, progress)


def _stepped(rate: LearningRate, epoch: float) -> float:
    passed = sum(epoch >= milestone for milestone in rate.milestones)
    return rate.peak * rate.gamma**passed


def _annealed(rate: LearningRate, progress: float) -> float:
    if rate.schedule == "Linear":
        return rate.peak + (rate.final - rate.peak) * progress
    if rate.schedule == "Cosine":
        return rate.final + (rate.peak - rate.final) * (1 + math.cos(math.pi * progress)) / 2
    return rate.peak
