"""Whether anybody looks after a job, by when its status last changed and by the operators' leases; pure."""

from collections.abc import Sequence

import msgspec

from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.controller.lease import Lease
from resnetboost_operator.observed import pods
from resnetboost_operator.status import Status

# Rank 0 is asked every 15 s, and what it says is written within 5 s; an evaluation beats too.
QUIET_SECONDS = 60.0
# A leader renews every 4 s; clocks of machines differ.
LEASE_SECONDS = 30.0


class Silence(msgspec.Struct, frozen=True):
    """Nothing was heard since then (unix seconds). `leaderless`: because no operator leads; else nobody knows."""

    since: float
    leaderless: bool

    def told(self, now: float | None) -> str:
        """A sentence, with how long it lasts unless that must not change."""
        lasting = "" if now is None else f" for {readable.duration(now - self.since)}"
        if self.leaderless:
            return (
                f"no operator has looked at this{lasting}: none leads (kubectl get leases -A -l resnetboost.io/lease)"
            )
        return f"nothing was heard of it{lasting}: no operator looks, or its ranks hang"


def heard_at(status: Status, created: float) -> float:
    """When the status last changed in a way that tells its time; the job's creation, if it never did."""
    progress = status.progress.heartbeat_time if status.progress is not None else None
    times = [progress, status.attempt_creation_time, *(found.last_transition_time for found in status.conditions)]
    return max((pods.seconds(time) for time in times if time), default=created)


def is_quiet(status: Status, created: float, now: float) -> bool:
    """Whether so long nothing was heard of the job that somebody should ask for the leases."""
    return not statuses.is_terminal(status) and now - heard_at(status, created) > QUIET_SECONDS


def _is_asked(status: Status) -> bool:
    """Whether rank 0 has ever told anything; an operator that cannot reach it says that itself."""
    return status.phase == "Running" and status.progress is not None and status.progress.heartbeat_time is not None


def of(status: Status, created: float, leases: Sequence[Lease] | None, now: float) -> Silence | None:
    """What to say of a job; `leases` is None where they may not be looked at."""
    if not is_quiet(status, created, now):
        return None
    heard = heard_at(status, created)
    if not leases:  # a job that waits has nothing to say; one that trains has
        return Silence(heard, False) if _is_asked(status) else None
    renewed = max(pods.seconds(found.renew_time or None) for found in leases)
    if any(found.holder for found in leases) and now - renewed < LEASE_SECONDS:
        return None
    return Silence(max(heard, renewed), True)
