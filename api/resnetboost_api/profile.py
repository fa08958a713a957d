"""What `resnetboost profile` measures: the trainer writes it as profile.json, and the command line shows it."""

from collections.abc import Sequence

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
    """All calls of an operator with inputs of the same shapes in one part: mean `calls` and `seconds` per step."""

    part: str
    name: str
    inputs: str
    calls: float
    seconds: float


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Times of a step: `parts` in order, from the steps without recording; `operators`, the slowest first.

    Operators, and the border between forward and backward pass, come from the recorded steps.
    """

    step_seconds: Spread
    recorded_step_seconds: Spread
    parts: Sequence[Part]
    operators: Sequence[Operator]


class LayerTime(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds per step of a convolution and its normalization, by the convolution's name.

    They come from the steps without recording, where one operator runs all layers.
    """

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
    """Updates of THOR's factors: number of plain and recorded steps with one; training has one every `frequency`."""

    plain: int
    recorded: int
    frequency: int


class Profile(msgspec.Struct, frozen=True, rename="camel"):
    """A profile: the measured stage, the machine, and rank 0's times."""

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
