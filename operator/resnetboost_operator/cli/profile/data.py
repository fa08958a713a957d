"""Reads the trainer's profile.json."""

from collections.abc import Sequence
from pathlib import Path

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Seconds over the measured steps."""

    mean: float
    least: float
    most: float


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a step; `in_operators` is the fraction of its time in which an operator ran."""

    name: str
    seconds: Spread
    in_operators: float | None = None


class Operator(msgspec.Struct, frozen=True):
    """All calls of an operator with inputs of the same shapes in one part; calls and seconds per step."""

    part: str
    name: str
    inputs: str
    calls: float
    seconds: float


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Times by part, over plain steps, and by operator (slowest first), over recorded steps."""

    step_seconds: Spread
    recorded_step_seconds: Spread
    parts: Sequence[Part]
    operators: Sequence[Operator]


class LayerTime(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds per step of a convolution and its normalization, over plain steps, where one operator runs all layers."""

    name: str
    convolution: float
    normalization: float
    normalization_gradient: float
    images_gradient: float
    weights_gradient: float

    @property
    def seconds(self) -> float:
        """All of it."""
        gradients = self.images_gradient + self.weights_gradient + self.normalization_gradient
        return self.convolution + self.normalization + gradients


class Renewals(msgspec.Struct, frozen=True):
    """Updates of THOR's factors in the plain and in the recorded steps; in training, one per `frequency` steps."""

    plain: int
    recorded: int
    frequency: int


class Profile(msgspec.Struct, frozen=True, rename="camel"):
    """The profile of a stage."""

    job: str
    stage: str
    model: str
    algorithm: str
    dataset: str
    device: str
    ranks: int
    threads: int
    images_per_step: int
    steps: int
    mindspore: str
    convolutions: str
    times: Times
    layers: Sequence[LayerTime] = ()
    renewals: Renewals | None = None


def read(file: Path) -> Profile:
    """Read the file that the trainer wrote."""
    return msgspec.json.decode(file.read_bytes(), type=Profile)
