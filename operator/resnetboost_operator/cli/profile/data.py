"""What the trainer's profile.json holds, read for people; it formats nothing."""

from collections.abc import Sequence
from pathlib import Path

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Seconds over the measured steps."""

    mean: float
    least: float
    most: float


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a step; `in_operators` is the share of its time in which an operator ran."""

    name: str
    seconds: Spread
    in_operators: float | None = None


class Operator(msgspec.Struct, frozen=True):
    """All runs of an operator on inputs of the same shapes in a part; calls and seconds of one step."""

    part: str
    name: str
    inputs: str
    calls: float
    seconds: float


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Parts are of the plain steps, operators (the slowest first) of the recorded ones."""

    step_seconds: Spread
    recorded_step_seconds: Spread
    parts: Sequence[Part]
    operators: Sequence[Operator]


class Renewals(msgspec.Struct, frozen=True):
    """Of THOR's factors: in how many of the plain steps, of the recorded ones, and in training one in how many."""

    plain: int
    recorded: int
    frequency: int


class Profile(msgspec.Struct, frozen=True, rename="camel"):
    """A stage's profile."""

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
    renewals: Renewals | None = None


def read(file: Path) -> Profile:
    """As the trainer wrote it."""
    return msgspec.json.decode(file.read_bytes(), type=Profile)
