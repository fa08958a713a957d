"""Wake-ups: seconds until time alone may change the plan, because a deadline may be exceeded then."""

from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import exclusion
from resnetboost_operator.planning.actions import sooner

# How often rank 0 is polled while it starts: soon, to see the first step when it happens.
POLL_STARTING_SECONDS = 3.0


def wake_seconds(state: ObservedState) -> float | None:
    """Seconds until the first deadline of a living gang, None without any."""
    return sooner(
        _finite(state.seconds_until_deadline()),
        _finite(state.seconds_until_startup_deadline()),
        _finite(state.seconds_until_hang()),
        _ahead(state.seconds_until_scheduler_silent()),
        _finite(exclusion.seconds_until_lift(state)),
        _finite(exclusion.seconds_until_expiry(state.status, state.now)),
        node_wake_seconds(state),
    )


def node_wake_seconds(state: ObservedState) -> float | None:
    """Seconds until an unready node counts as lost: the only deadline of pods that are being deleted."""
    return _finite(state.seconds_until_node_lost())


def _ahead(seconds: float) -> float | None:
    """Of something that is only said once its time has come: later there is nothing to wake up for."""
    return _finite(seconds) if seconds > 0 else None


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else max(0.0, seconds)
