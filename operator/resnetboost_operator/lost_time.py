"""Lost time: what the devices' time went into beside steps that count, and sums over the job's goodput.

Device-seconds are pods times seconds.
"""

from msgspec.structs import replace

from resnetboost_api.status import Goodput

# From the end of the last useful work until the operator acted on the failure.
DETECTION = "Detection"
# From then until the next attempt had finished a step; and starts that failed.
RESTART = "Restart"
# Steps after the last checkpoint of an attempt that failed: they had to be done again.
REPLAY = "Replay"
# Checks of devices and network before training.
PREFLIGHT = "Preflight"
# Waiting for admission by a queue, or for a node or quota with room. The devices are others' meanwhile.
QUEUEING = "Queueing"
# What also an undisturbed training needs: its first start, evaluations, checkpoints.
OVERHEAD = "Overhead"
# In the order in which they are shown.
CAUSES = (RESTART, REPLAY, DETECTION, PREFLIGHT, OVERHEAD, QUEUEING)


def complete(found: Goodput, ranks: int = 1) -> Goodput:
    """The goodput with its productive device-seconds, which one of an older operator lacks.

    They follow from what it lost in its unproductive seconds; `ranks` are those of a goodput that lost nothing.
    """
    if found.productive_device_seconds or not found.productive_seconds:
        return found
    unproductive = found.attempt_seconds - found.productive_seconds
    lost = sum(loss.device_seconds for loss in found.lost)
    mean = lost / unproductive if lost and unproductive > 0 else ranks
    return replace(found, productive_device_seconds=round(found.productive_seconds * mean))


def used(found: Goodput) -> int:
    """Device-seconds of all devices that the job held."""
    return found.productive_device_seconds + sum(_held(found).values())


def with_percent(found: Goodput) -> Goodput:
    """The goodput with its percentage."""
    return replace(found, percent=100 * found.productive_device_seconds // max(1, used(found)))


def by_cause(found: Goodput) -> dict[str, int]:
    """Device-seconds by cause, in the order of CAUSES; then what an older operator counted by failure class."""
    sums = dict.fromkeys((*CAUSES, *(loss.reason for loss in found.lost)), 0)
    for loss in found.lost:
        sums[loss.reason] += loss.device_seconds
    return {cause: seconds for cause, seconds in sums.items() if seconds}


def by_failure(found: Goodput) -> dict[str, int]:
    """Device-seconds by the failure class that caused their loss, the greatest first. Waiting for others costs none."""
    sums: dict[str, int] = {}
    for loss in found.lost:
        failure = loss.failure if loss.reason in CAUSES else loss.reason
        if failure and loss.reason != QUEUEING:
            sums[failure] = sums.get(failure, 0) + loss.device_seconds
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def shares(found: Goodput) -> dict[str, int]:
    """Percentage of each cause but Queueing. With `found.percent` they are 100; of a small share 0 may be left."""
    sums = _held(found)
    whole = sum(sums.values())
    if not whole:
        return {}
    exact = {cause: (100 - found.percent) * seconds / whole for cause, seconds in sums.items()}
    floors = {cause: int(share) for cause, share in exact.items()}
    left = 100 - found.percent - sum(floors.values())
    most_cut = sorted(exact, key=lambda cause: floors[cause] - exact[cause])
    return {cause: share + (cause in most_cut[:left]) for cause, share in floors.items()}


def summary(found: Goodput) -> str:
    """The lost percentage by cause: lost 8 %: restart 5 %, replay 3 %; '' if nothing was lost."""
    parts = (f"{label(cause)} {share or 'under 1'} %" for cause, share in shares(found).items())
    told = ", ".join(parts)
    return f"lost {100 - found.percent} %: {told}" if told else ""


def label(cause: str) -> str:
    """A cause within a sentence; a failure class keeps its form."""
    return cause.lower() if cause in CAUSES else cause


def _held(found: Goodput) -> dict[str, int]:
    """Device-seconds by cause, of devices that the job held."""
    return {cause: seconds for cause, seconds in by_cause(found).items() if cause != QUEUEING}
