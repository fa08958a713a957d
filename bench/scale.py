"""Gangs of 100, 500 and 1000 pods against Kubernetes' own Indexed Job, on a real API server with kwok nodes, in turn.

All of it shares this machine, so only ratios carry over to others, and not those of a busy machine; it takes 5 minutes
on 2 idle cores. SCALE_SIZES and SCALE_ROUNDS in the environment make it shorter: SCALE_SIZES=100 SCALE_ROUNDS=1.
"""

import os
import time
from collections.abc import Iterator

from beds.cluster import ControlPlane
from beds.operator import Account, Operator
from bench import scale_jobs, scale_report
from bench.entries import Entry
from bench.scale_jobs import NAMESPACE, Contender, Gang, IndexedJob
from bench.scale_operator import Costs, Meter
from bench.scale_pods import Pods
from bench.scale_report import Round, Start

SIZES = tuple(int(size) for size in os.environ.get("SCALE_SIZES", "100,500,1000").split(","))
ROUNDS = int(os.environ.get("SCALE_ROUNDS", "3"))
NODES = 20
# Until the scheduler has posted its events about earlier pods.
QUIET_SECONDS = 2
# The last counts are written up to 5 s after the last pod started to run.
SETTLE_SECONDS, IDLE_SECONDS = 8, 30


def measure() -> list[Entry]:
    """One control plane for all sizes; a new operator for each, because peak memory is per process."""
    with ControlPlane(crds=[scale_jobs.CRD]) as plane:
        plane.add_kwok_nodes(NODES)
        scale_jobs.prepare(plane)
        account = Account(plane)
        return [entry for size in SIZES for entry in _size(plane, account, size)]


def _size(plane: ControlPlane, account: Account, size: int) -> Iterator[Entry]:
    operator = Operator(plane, account.kubeconfig, f"operator-{size}")
    operator.start()
    meter = Meter(operator)
    rounds = [_round(plane, meter, size) for _ in range(ROUNDS)]
    yield from scale_report.speeds(size, rounds)
    yield from scale_report.costs(size, rounds, meter.peak_mib())
    if size == SIZES[-1]:
        yield from scale_report.idle(_idle(plane, meter, size), IDLE_SECONDS / 60)
    operator.terminate()


def _round(plane: ControlPlane, meter: Meter, size: int) -> Round:
    gang, indexed, pods = Gang(plane, size), IndexedJob(plane, size), Pods(plane.client, NAMESPACE)
    before = meter.costs()
    ours = _start(gang, pods)
    restart = _restart(gang, pods)
    costs = meter.costs() - before
    _clear(gang, pods)
    theirs = _start(indexed, pods)
    _clear(indexed, pods)
    return Round(ours, theirs, restart, costs)


def _start(job: Contender, pods: Pods) -> Start:
    time.sleep(QUIET_SECONDS)
    began = time.monotonic()
    job.create()
    created = pods.until(lambda: len(pods.seen) == job.size, "all pods exist")
    running = pods.until(lambda: len(pods.running) == job.size, "all pods run")
    return Start(created - began, running - began)


def _restart(gang: Gang, pods: Pods) -> float:
    """Seconds from the exit of a rank in the middle until all pods of the next gang run."""
    time.sleep(QUIET_SECONDS)
    old = frozenset(pods.seen)
    began = time.monotonic()
    gang.fail(sorted(old)[gang.size // 2])
    return pods.until(lambda: len(pods.running - old) == gang.size, "all pods of the next gang run") - began


def _clear(job: Contender, pods: Pods) -> None:
    job.delete()
    pods.until(lambda: not pods.present, "all pods are gone")
    pods.seen.clear()


def _idle(plane: ControlPlane, meter: Meter, size: int) -> Costs:
    """Costs while a gang runs and nothing changes."""
    gang, pods = Gang(plane, size), Pods(plane.client, NAMESPACE)
    _start(gang, pods)
    time.sleep(SETTLE_SECONDS)
    before = meter.costs()
    time.sleep(IDLE_SECONDS)
    costs = meter.costs() - before
    _clear(gang, pods)
    return costs
