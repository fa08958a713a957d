"""Finds jobs that no operator looks after, by their last status change and the operators' leases."""

from collections.abc import Sequence

import msgspec

from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.observed import pods

# Rank 0 is polled every 15 s, its progress is written within 5 s, and evaluations count as progress.
QUIET_SECONDS = 60.0
# A leader renews every 4 s; clocks of machines differ.
LEASE_SECONDS = 30.0


class Silence(msgspec.Struct, frozen=True):
    """Since when there is no news of a job (unix seconds).

    `leaderless`: no operator leads; else the cause is unknown.
    """

    since: float
    leaderless: bool

    def sentence(self, now: float | None) -> str:
        """A sentence, with the duration unless `now` is None."""
        lasting = "" if now is None else f" for {readable.duration(now - self.since)}"
        if self.leaderless:
            return (
                f"no operator has looked at this{lasting}: none leads (kubectl get leases -A -l resnetboost.io/lease)"
            )
        return f"no news of it{lasting}: no operator runs, or its ranks hang"


def heard_at(status: Status, created: float) -> float:
    """Time of the last status change that has a timestamp; the job's creation if there is none."""
    progress = status.progress.heartbeat_time if status.progress is not None else None
    times = [progress, status.attempt_creation_time, *(found.last_transition_time for found in status.conditions)]
    return max((pods.seconds(time) for time in times if time), default=created)


def is_quiet(status: Status, created: float, now: float) -> bool:
    """True if the job has been quiet for so long that the leases should be checked."""
    return not statuses.is_terminal(status) and now - heard_at(status, created) > QUIET_SECONDS


def _is_polled(status: Status) -> bool:
    """True if rank 0 has reported progress; an operator that cannot reach it says so itself."""
    return status.phase == "Running" and status.progress is not None and status.progress.heartbeat_time is not None


def of(status: Status, created: float, leases: Sequence[Lease] | None, now: float) -> Silence | None:
    """The silence of a job, if any; `leases` is None if they may not be listed."""
    if not is_quiet(status, created, now):
        return None
    heard = heard_at(status, created)
    if not leases:  # a waiting job has nothing to report; a training one has
        return Silence(heard, False) if _is_polled(status) else None
    renewed = max(pods.seconds(found.renew_time or None) for found in leases)
    if any(found.holder for found in leases) and now - renewed < LEASE_SECONDS:
        return None
    return Silence(max(heard, renewed), True)
