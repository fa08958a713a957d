"""One operator with 200 jobs of 5 pods, another with ten gangs of 1000, on a real API server with 200 kwok nodes.

The baseline is one gang of the same size alone, under the same operator. All of it shares this machine, so only ratios
carry over to others; it takes 5 minutes on 2 idle cores. MANYGANGS_SIZE in the environment makes it shorter:
MANYGANGS_SIZE=100.
"""

import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from beds.cluster import ControlPlane
from beds.operator import Account, Operator
from bench import scale_jobs
from bench.entries import Entry, figure, ratio
from bench.scale_jobs import NAMESPACE, Gang
from bench.scale_operator import Meter
from bench.scale_pods import Pods
from bench.scale_report import Start

SIZE = int(os.environ.get("MANYGANGS_SIZE", "1000"))
GANGS, NODES = 10, 200
JOBS, RANKS, APPLIERS = 200, 5, 16
# Until the scheduler has posted its events about earlier pods.
QUIET_SECONDS = 5


def measure() -> list[Entry]:
    """An operator for the ten gangs, whose peak memory is theirs, and another for the small jobs."""
    with ControlPlane(crds=[scale_jobs.CRD]) as plane:
        plane.add_kwok_nodes(NODES)
        scale_jobs.prepare(plane)
        account, pods = Account(plane), Pods(plane.client, NAMESPACE)
        small = _operator(plane, account, "small-jobs")
        found = [_fairness([Gang(plane, RANKS) for _ in range(JOBS)], pods)]
        small.terminate()
        large = _operator(plane, account, "large-jobs")
        alone = Gang(plane, SIZE)
        start, restart = _start([alone], pods), _restart(alone, pods)
        _clear([alone], pods)
        found += _many(plane, pods, start, restart)
        found.append(figure("operator_mib_10000", [Meter(large).peak_mib()], "MiB", "its peak; 150 are allowed"))
        large.terminate()
    return found


def _operator(plane: ControlPlane, account: Account, name: str) -> Operator:
    operator = Operator(plane, account.kubeconfig, name)
    operator.start()
    return operator


def _many(plane: ControlPlane, pods: Pods, start: Start, restart: float) -> list[Entry]:
    """Ten gangs at once, then a failure in one of them; `start` and `restart` are those of a gang alone."""
    gangs = [Gang(plane, SIZE) for _ in range(GANGS)]
    ours = _start(gangs, pods)
    again = _restart(gangs[GANGS // 2], pods)
    count, failed = GANGS * SIZE, len(pods.failed) - 2  # two were told to fail
    created, running = (count / ours.created, SIZE / start.created), (count / ours.running, SIZE / start.running)
    one = f"a gang of {SIZE} alone"
    return [
        ratio("create_10000_vs_1000", [created[0]], [created[1]], "pods/s", one),
        ratio("create_running_10000_vs_1000", [running[0]], [running[1]], "pods/s", f"{one}, until all run"),
        figure("failed_pods_10000", [failed], "pods", f"of {GANGS} gangs of {SIZE}, but for one told to fail"),
        ratio("restart_one_of_ten_vs_alone", [again], [restart], "s", one),
    ]


def _start(gangs: Sequence[Gang], pods: Pods) -> Start:
    time.sleep(QUIET_SECONDS)
    count, began = sum(gang.size for gang in gangs), time.monotonic()
    for gang in gangs:
        gang.create()
    created = pods.until(lambda: len(pods.present) == count, "all pods exist")
    running = pods.until(lambda: len(pods.running) == count, "all pods run")
    return Start(created - began, running - began)


def _restart(gang: Gang, pods: Pods) -> float:
    """Seconds from the exit of a rank in the middle until all pods of the gang's next attempt run."""
    time.sleep(QUIET_SECONDS)
    old, count, began = frozenset(pods.seen), len(pods.present), time.monotonic()
    gang.fail(sorted(name for name in old if name.startswith(f"{gang.name}-"))[gang.size // 2])
    pods.until(lambda: len(pods.running - old) == gang.size, "all pods of the next attempt run")
    return pods.until(lambda: len(pods.present) == count, "no pod of another gang is lost") - began


def _fairness(gangs: Sequence[Gang], pods: Pods) -> Entry:
    """When the jobs have their first pod, from the first application on."""
    time.sleep(QUIET_SECONDS)
    first: dict[str, float] = {}

    def note() -> bool:
        for name in pods.seen - first.keys():
            first[name] = time.monotonic()
        return len(pods.running) == JOBS * RANKS

    began = time.monotonic()
    with ThreadPoolExecutor(APPLIERS) as appliers:
        applied = [appliers.submit(gang.create) for gang in gangs]
        pods.until(note, "the pods of all jobs run")
        for each in applied:
            each.result()
    times = [min(at for name, at in first.items() if name.startswith(f"{gang.name}-")) - began for gang in gangs]
    _clear(gangs, pods)
    jobs = f"the median of {JOBS} jobs of {RANKS}, applied at once"
    return ratio("first_pod_of_200_jobs_last_vs_median", [max(times)], [statistics.median(times)], "s", jobs)


def _clear(gangs: Sequence[Gang], pods: Pods) -> None:
    for gang in gangs:
        gang.delete_job()
    pods.until(lambda: not pods.present, "all pods are gone")
    pods.seen.clear()
