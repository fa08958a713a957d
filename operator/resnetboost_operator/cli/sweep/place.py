"""Where the trials of a sweep run: the interface of this machine and of a cluster."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from resnetboost_api import failures
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses

Manifest = dict[str, Any]
# Ends of an attempt that say something about the trial's values.
_DIVERGED = (failures.NUMERICS_ERROR.name, failures.DIVERGED.name)
# Called with epochs over all stages and the metric after each evaluation; True if the trial is to end here.
Report = Callable[[int, float], bool]


class Ended(msgspec.Struct, frozen=True):
    """How a trial ended. Stopped: the sweep was interrupted, and the trial goes on when the sweep does."""

    how: Literal["complete", "pruned", "diverged", "failed", "stopped"]
    value: float | None = None
    why: str = ""


class Place(Protocol):
    """Runs trials, several at a time."""

    async def run(self, number: int, job: Manifest, pruning: str, report: Report) -> Ended:
        """Run the trial, or go on with it, to its end; only end it if it was to be ended because of `pruning`."""
        ...

    def stop(self) -> None:
        """Make all calls of `run` return soon, without harm to the trials."""

    def kill(self) -> None:
        """Make them return at once."""


def how_it_failed(status: Status) -> Ended:
    """How a job with that status failed. Its last attempt says whether it diverged: the job's own reason may be
    MaxRollBacksExceeded. A divergence says something about the trial's values, other failures do not.
    """
    failed = statuses.condition(status, "Failed")
    why = failed.message if failed is not None else "it ended without a result"
    last = status.attempts[-1].reason if status.attempts else ""
    return Ended("diverged" if last in _DIVERGED else "failed", why=" ".join(why.split()))


def epochs(job: Manifest) -> int:
    """Epochs of all stages of a job."""
    return sum(int(stage["epochs"]) for stage in job["spec"]["stages"])
