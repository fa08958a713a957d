"""The interface of a tracker: four events."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

Parameter = str | int | float | bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a stage of a job. `uid` is the same for all stages and attempts, also after restarts.

    `parameters` are the settings of the job and of this stage, whose names then begin with the stage's and a slash.
    `folder` is for files and lasts as long as the checkpoints; None without checkpoints.
    """

    job: str
    namespace: str
    uid: str
    stage: str
    attempt: int
    parameters: Mapping[str, Parameter]
    folder: Path | None = None


class Point(msgspec.Struct, frozen=True):
    """Values after a step of the stage, by the names of the columns in metrics.csv; `time` is in seconds since 1970."""

    step: int
    time: float
    values: Mapping[str, float]


class Outcome(msgspec.Struct, frozen=True):
    """How the attempt ended: `Succeeded`, `Interrupted` or a class of failures. `complete`: so is the whole job."""

    name: str
    message: str
    complete: bool = False


class Rejected(Exception):
    """Raised by a tracker to have this call dropped instead of repeated: it would be refused again."""


class Tracker(ABC):
    """Receives the events of a run on rank 0, in a thread of the tracker's own.

    A call that raises is repeated later with the same arguments, so it may be made twice; the training goes on
    meanwhile. At the end of the attempt the calls that are left get a few seconds.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are those in the job. Raise ConfigError for wrong ones; connect to nothing here."""
        self.options = options

    @abstractmethod
    def start(self, run: Run) -> None:
        """Open the run, or go on with it: restarts and later stages of a job come with the same uid."""

    @abstractmethod
    def log(self, points: Sequence[Point]) -> None:
        """Record points in the order of their steps."""

    def save(self, name: str, path: Path) -> None:  # noqa: B027 (a tracker need not keep files)
        """Keep a file, such as the model card or the report, under that name."""

    def end(self, outcome: Outcome) -> None:  # noqa: B027 (nor need it know the end)
        """Record how the attempt ended. A killed rank makes no such call."""
