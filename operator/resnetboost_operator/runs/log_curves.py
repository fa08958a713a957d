"""A run's curves from the log of its rank 0, which has a line about every few seconds and each evaluation.

This is what is left of a job of a cluster whose checkpoints nobody here can read.
"""

import re
from collections.abc import Iterable

import msgspec

# As metrics/logger.py of the trainer writes them; images of earlier versions name no step of a test.
_STEP = re.compile(
    r" INFO step (?P<step>\d{1,15})/\d+, epoch (?P<epoch>[\d.]{1,20}): loss (?P<loss>[-+\d.a-z]{1,20}), "
    r"accuracy [-+\d.a-z]{1,20}, learning rate [-+\d.a-z]{1,20}, (?P<speed>[\d.]{1,20}|compiled; no) images/s$"
)
_TEST = re.compile(r" INFO test(?: of step (?P<step>\d{1,15}))?: top-1 (?P<top1>[\d.]{1,20}) %, ")


class Point(msgspec.Struct, frozen=True):
    """A step that the log has: its number and epochs in the stage, loss, and images per second, nan if not known."""

    step: int
    epoch: float
    loss: float
    speed: float
    top1: float | None = None
    """Test accuracy after the step."""


def read(texts: Iterable[str]) -> list[Point]:
    """The points of one stage from the logs of its attempts, in their order, each step once, from the last to make it.

    Lines that are not of this form, which may be anybody's, are ignored.
    """
    points: list[Point] = []
    for text in texts:
        for line in text.splitlines():
            if found := _STEP.search(line):
                point = _point(found)
                points = [one for one in points if one.step < point.step] if _again(points, point) else points
                points.append(point)
            elif (found := _TEST.search(line)) and (points or found["step"]):
                points = _tested(points, int(found["step"] or points[-1].step), _number(found["top1"]) / 100)
    return points


def _again(points: list[Point], point: Point) -> bool:
    """True if a later attempt makes the step again."""
    return bool(points) and points[-1].step >= point.step


def _point(found: re.Match[str]) -> Point:
    return Point(int(found["step"]), _number(found["epoch"]), _number(found["loss"]), _number(found["speed"]))


def _tested(points: list[Point], step: int, top1: float) -> list[Point]:
    """The points with the accuracy of that step; of a step between two lines, epoch and loss are guessed from them."""
    if not 0 <= top1 <= 1:
        return points
    if points and points[-1].step == step:
        return [*points[:-1], msgspec.structs.replace(points[-1], top1=top1)]
    if not points or points[-1].step > step:
        return points  # evaluated again after a restart
    last = points[-1]
    epoch = last.epoch * step / last.step if last.step else 0.0
    return [*points, Point(step, epoch, float("nan"), last.speed, top1)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
