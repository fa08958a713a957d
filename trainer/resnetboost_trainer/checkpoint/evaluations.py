"""Evaluations as manifests record them: which is better, and whether they end a stage early. Pure functions.

The history of a stage is part of its checkpoints, so that a resumed run decides as an undisturbed one.
"""

import math

import msgspec

from resnetboost_api.evaluations import Metric, StopWhen
from resnetboost_api.status import EarlyStop

_TARGETS: tuple[Metric, ...] = ("top1", "top5", "loss")


class Evaluated(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Figures over the test set after a step, maybe `averaged` weights'. A loss that is not finite is None."""

    step: int
    top1: float
    top5: float
    loss: float | None
    averaged: bool = False

    def figure(self, metric: Metric) -> float | None:
        """Return one of the figures."""
        found: float | None = getattr(self, metric)
        return found


class BestMark(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What makes a checkpoint one of the best: its evaluation, and the figure by which it is judged."""

    metric: Metric
    evaluation: Evaluated

    @property
    def value(self) -> float | None:
        """That figure."""
        return self.evaluation.figure(self.metric)


class History(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The evaluations of a stage so far, as far as `stopWhen` needs them.

    `best` is the figure that the next one must exceed by `min_delta`; `unimproved` counts those since that did not.
    """

    last: Evaluated
    metric: Metric
    min_delta: float
    best: float | None
    unimproved: int = 0


def evaluated(step: int, top1: float, top5: float, loss: float, averaged: bool) -> Evaluated:
    """Return the figures of an evaluation as JSON can hold them."""
    return Evaluated(step=step, top1=top1, top5=top5, loss=loss if math.isfinite(loss) else None, averaged=averaged)


def gain(metric: Metric, figure: float, over: float) -> float:
    """Return by how much a figure is better than another one."""
    return over - figure if metric == "loss" else figure - over


def counted(history: History | None, found: Evaluated, rule: StopWhen) -> History:
    """Add an evaluation to the history. One that is there already, which a resumed run repeats, changes nothing."""
    figure = found.figure(rule.metric)
    if history is None or (history.metric, history.min_delta) != (rule.metric, rule.min_delta):
        return History(last=found, metric=rule.metric, min_delta=rule.min_delta, best=figure)
    if found.step <= history.last.step:
        return history
    if figure is not None and (history.best is None or gain(rule.metric, figure, history.best) > rule.min_delta):
        return msgspec.structs.replace(history, last=found, best=figure, unimproved=0)
    return msgspec.structs.replace(history, last=found, unimproved=history.unimproved + 1)


def early_stop(history: History | None, rule: StopWhen) -> EarlyStop | None:
    """Return why the stage ends after its last evaluation, or None if it goes on."""
    if history is None:
        return None
    step, targets = (
        history.last.step,
        {name: target for name in _TARGETS if (target := getattr(rule, name)) is not None},
    )
    if targets and all(_is_met(history.last, name, target) for name, target in targets.items()):
        reached = " and ".join(f"{name} {history.last.figure(name):.6g}" for name in targets)
        wanted = " and ".join(f"{target:g}" for target in targets.values())
        message = f"{reached} reached the target{'s' if len(targets) > 1 else ''} {wanted}"
        return EarlyStop(step=step, reason="TargetReached", message=message)
    if rule.patience is None or history.unimproved < rule.patience:
        return None
    least = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
    over = "" if history.best is None else f" over {history.best:.6g}"
    evaluations = f"{history.unimproved} evaluation{'s' if history.unimproved > 1 else ''}"
    message = f"{rule.metric} has not improved{over}{least} in {evaluations}"
    return EarlyStop(step=step, reason="NoImprovement", message=message)


def _is_met(found: Evaluated, metric: Metric, target: float) -> bool:
    figure = found.figure(metric)
    return figure is not None and gain(metric, figure, target) >= 0
