"""Gangs of 100, 500 and 1000 pods on a real API server with kwok nodes, beside Kubernetes' own Indexed Job, in turn.

SCALE_SIZES and SCALE_ROUNDS in the environment change what is measured: SCALE_SIZES=100 SCALE_ROUNDS=1 is quick.
"""

import os
import time

import msgspec

from bench import scale_jobs
from bench.entries import Entry, figure, ratio
from bench.scale_jobs import NAMESPACE, Contender, Gang, IndexedJob
from bench.scale_operator import Costs, Meter
from bench.scale_pods import Pods
from cluster import ControlPlane
from operatorbed import Account, Operator

SIZES = tuple(int(size) for size in os.environ.get("SCALE_SIZES", "100,500,1000").split(","))
ROUNDS = int(os.environ.get("SCALE_ROUNDS", "3"))
NODES = 20
# The last counts are written up to 5 s after the last pod has started to run.
SETTLE_SECONDS, IDLE_SECONDS = 8, 30


class Start(msgspec.Struct, frozen=True):
    """Seconds from the job's creation until all pods exist, and until all run."""

    created: float
    running: float


class Round(msgspec.Struct, frozen=True):
    """One gang and one Indexed Job; `restart` is the seconds from a pod's failure until all of the next gang run."""

    ours: Start
    theirs: Start
    restart: float
    costs: Costs


def measure() -> list[Entry]:
    """One control plane for all sizes; a fresh operator for each, for memory's high-water mark."""
    found = []
    with ControlPlane(crds=[scale_jobs.CRD]) as plane:
        plane.add_kwok_nodes(NODES)
        scale_jobs.prepare(plane)
        account = Account(plane)
        for size in SIZES:
            operator = Operator(plane, account.kubeconfig, f"operator-{size}")
            operator.start()
            found += _size(plane, Meter(operator), size)
            operator.terminate()
    return found


def _size(plane: ControlPlane, meter: Meter, size: int) -> list[Entry]:
    rounds = [_round(plane, meter, size) for _ in range(ROUNDS)]
    return [*_speeds(size, rounds), *_costs(size, rounds, meter), *_idle(plane, meter, size)]


def _round(plane: ControlPlane, meter: Meter, size: int) -> Round:
    gang, indexed = Gang(plane, size), IndexedJob(plane, size)
    before = meter.costs()
    pods = Pods(plane.client, NAMESPACE)
    ours = _start(gang, pods)
    restart = _restart(gang, pods)
    costs = meter.costs() - before
    _clear(gang, pods)
    theirs = _start(indexed, pods)
    _clear(indexed, pods)
    return Round(ours, theirs, restart, costs)


def _start(job: Contender, pods: Pods) -> Start:
    began = time.monotonic()
    job.create()
    created = pods.until(lambda: len(pods.seen) == job.size, "all pods exist")
    running = pods.until(lambda: len(pods.running) == job.size, "all pods run")
    return Start(created - began, running - began)


def _restart(gang: Gang, pods: Pods) -> float:
    """Fail a rank in the middle."""
    old = frozenset(pods.seen)
    began = time.monotonic()
    gang.fail(sorted(old)[gang.size // 2])
    return pods.until(lambda: len(pods.running - old) == gang.size, "all pods of the next gang run") - began


def _clear(job: Contender, pods: Pods) -> None:
    job.delete()
    pods.until(lambda: not pods.present, "all pods are gone")
    pods.forget()


def _speeds(size: int, rounds: list[Round]) -> list[Entry]:
    """pods/s of ours over theirs, and how long a restart takes in terms of a start."""
    indexed = f"Indexed Job of {size} pods"
    return [
        _rates(
            f"create_{size}_speedup_vs_indexed_job", size, [(r.ours.created, r.theirs.created) for r in rounds], indexed
        ),
        _rates(f"create_running_{size}_speedup", size, [(r.ours.running, r.theirs.running) for r in rounds], indexed),
        ratio(
            f"restart_{size}_vs_start",
            [found.restart for found in rounds],
            [found.ours.running for found in rounds],
            "s",
            "its own start, apply to all running",
        ),
    ]


def _rates(name: str, size: int, pairs: list[tuple[float, float]], baseline: str) -> Entry:
    ours, theirs = zip(*pairs, strict=True)
    return ratio(name, [size / seconds for seconds in ours], [size / seconds for seconds in theirs], "pods/s", baseline)


def _costs(size: int, rounds: list[Round], meter: Meter) -> list[Entry]:
    """What a start and a restart, so two pods for each rank, cost the operator and the API server."""
    pods = 2 * size
    costs = [found.costs for found in rounds]
    return [
        figure(
            f"operator_cpu_ms_per_pod_{size}",
            [found.cpu_seconds * 1000 / pods for found in costs],
            "ms",
            "start + restart",
        ),
        figure(f"operator_mib_{size}", [meter.peak_mib()], "MiB", "peak of its life; to stay under 200"),
        figure(
            f"writes_per_pod_{size}", [found.writes / pods for found in costs], "writes", "pods created; events apart"
        ),
        figure(f"status_writes_{size}", [found.status_writes for found in costs], "writes", "start + restart"),
        figure(f"events_{size}", [found.events for found in costs], "writes", "start + restart"),
    ]


def _idle(plane: ControlPlane, meter: Meter, size: int) -> list[Entry]:
    """Requests while the gang runs and nothing changes."""
    gang, pods = Gang(plane, size), Pods(plane.client, NAMESPACE)
    _start(gang, pods)
    time.sleep(SETTLE_SECONDS)
    before = meter.costs()
    time.sleep(IDLE_SECONDS)
    costs = meter.costs() - before
    _clear(gang, pods)
    minutes = IDLE_SECONDS / 60
    return [
        figure(f"idle_requests_per_minute_{size}", [costs.others / minutes], "requests", "leases and watches apart"),
        figure(f"idle_upkeep_per_minute_{size}", [costs.upkeep / minutes], "requests", "leases and watches"),
    ]
