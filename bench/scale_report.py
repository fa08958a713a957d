"""Entries of the suite `scale` from its rounds."""

from collections.abc import Sequence

import msgspec

from bench.entries import Entry, figure, ratio
from bench.scale_operator import Costs


class Start(msgspec.Struct, frozen=True):
    """Seconds from the job's creation until all pods exist, and until all run."""

    created: float
    running: float


class Round(msgspec.Struct, frozen=True):
    """One gang and one Indexed Job.

    `restart`: seconds from a pod's failure until all pods of the next gang run; `costs`: of the gang's start and
    restart.
    """

    ours: Start
    theirs: Start
    restart: float
    costs: Costs


def speeds(size: int, rounds: Sequence[Round]) -> list[Entry]:
    """Time to start and to restart gangs of that size."""
    created = [(found.ours.created, found.theirs.created) for found in rounds]
    running = [(found.ours.running, found.theirs.running) for found in rounds]
    restarts, starts = [found.restart for found in rounds], [found.ours.running for found in rounds]
    return [
        _rates(f"create_{size}_speedup_vs_indexed_job", size, created),
        _rates(f"create_running_{size}_speedup", size, running),
        ratio(f"restart_{size}_vs_start", restarts, starts, "s", "its start, apply to all running"),
    ]


def _rates(name: str, size: int, seconds: Sequence[tuple[float, float]]) -> Entry:
    ours = [size / own for own, _ in seconds]
    theirs = [size / other for _, other in seconds]
    return ratio(name, ours, theirs, "pods/s", "Kubernetes' Indexed Job")


def costs(size: int, rounds: Sequence[Round], peak_mib: float) -> list[Entry]:
    """Costs of a start and a restart, so of two pods per rank, for the operator and the API server."""
    pods, found = 2 * size, [each.costs for each in rounds]
    cpu_ms = [each.cpu_seconds * 1000 / pods for each in found]
    writes = [each.writes / pods for each in found]
    return [
        figure(f"operator_cpu_ms_per_pod_{size}", cpu_ms, "ms", "start + restart"),
        figure(f"operator_mib_{size}", [peak_mib], "MiB", "its peak; 200 are allowed"),
        figure(f"writes_per_pod_{size}", writes, "writes", "start + restart; events apart"),
        figure(f"status_writes_{size}", [each.status_writes for each in found], "writes", "start + restart"),
        figure(f"events_{size}", [each.events for each in found], "writes", "start + restart"),
    ]


def idle(found: Costs, minutes: float) -> list[Entry]:
    """Costs of a gang while nothing changes."""
    return [
        figure("idle_requests_per_minute", [found.others / minutes], "requests", "leases and watches apart"),
        figure("idle_upkeep_per_minute", [found.upkeep / minutes], "requests", "leases and watches"),
    ]
