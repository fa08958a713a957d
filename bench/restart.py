"""From a rank's failure to the next attempt: in place against new pods, for 1000 launchers and for real ranks.

The launchers of a gang on a real API server with kwok nodes are the trainer's, all in this process; only their ranks
are played. A failure with new pods follows in the same gang. It takes 5 minutes on 2 idle cores; RESTART_SIZE and
RESTART_ROUNDS make it shorter.
"""

import base64
import json
import os
import time
from typing import Any

import msgspec

from beds.cluster import ControlPlane
from beds.operator import Account, Operator
from beds.operator.progress_server import ProgressPort
from bench import restart_ranks, scale_jobs
from bench.entries import Entry, figure, ratio, speedup
from bench.restart_launchers import GangLaunchers
from bench.scale_jobs import NAMESPACE, Gang
from bench.scale_operator import Costs, Meter
from bench.scale_pods import Pods
from resnetboost_api import names

SIZE = int(os.environ.get("RESTART_SIZE", "1000"))
ROUNDS = int(os.environ.get("RESTART_ROUNDS", "2"))
NODES = 20
ADDRESS = "127.63.7.1"
QUIET_SECONDS, SETTLE_SECONDS, PATIENCE_SECONDS = 3.0, 6.0, 120.0
_STRATEGIC = "application/strategic-merge-patch+json"


class Round(msgspec.Struct, frozen=True):
    """One gang. Seconds to its start, from a failure until all ranks start in place, and until all new pods run.

    `costs`: the operator's requests for the restart in place.
    """

    start: float
    in_place: float
    new_pods: float
    costs: Costs


def measure() -> list[Entry]:
    """The gang of 1000 launchers first, then real ranks on this machine."""
    with ControlPlane(crds=[scale_jobs.CRD]) as plane:
        plane.add_kwok_nodes(NODES)
        scale_jobs.prepare(plane)
        operator = Operator(plane, Account(plane).kubeconfig, "operator-restart")
        operator.start()
        rounds = [_round(plane, Meter(operator)) for _ in range(ROUNDS)]
        operator.terminate()
    return [*_entries(rounds), *restart_ranks.measure()]


def _entries(rounds: list[Round]) -> list[Entry]:
    in_place, new = [found.in_place for found in rounds], [found.new_pods for found in rounds]
    starts = [found.start for found in rounds]
    writes = [found.costs.writes + found.costs.events for found in rounds]
    return [
        ratio(f"restart_in_place_{SIZE}", in_place, new, "s", "restartIn: NewPod, until all run"),
        speedup(f"restart_in_place_{SIZE}_speedup_vs_start", in_place, starts, "its start, apply to all running"),
        figure(f"restart_in_place_writes_{SIZE}", writes, "writes", "all requests that write, events too"),
    ]


def _round(plane: ControlPlane, meter: Meter) -> Round:
    gang, pods = Gang(plane, SIZE), Pods(plane.client, NAMESPACE)
    time.sleep(QUIET_SECONDS)
    began = time.monotonic()
    gang.create()
    pods.until(lambda: len(pods.running) == SIZE, "all pods run")
    start = time.monotonic() - began
    launchers, port = _play(plane, gang)
    _until_phase(plane, gang, "Running")
    time.sleep(SETTLE_SECONDS)
    before = meter.costs()
    in_place = _fail_rank(launchers)
    _until_phase(plane, gang, "Running")
    time.sleep(SETTLE_SECONDS)
    costs = meter.costs() - before
    new_pods = _fail_pod(gang, pods)
    launchers.close()
    port.close()
    gang.delete()
    pods.until(lambda: not pods.present, "all pods are gone")
    return Round(start, in_place, new_pods, costs)


def _play(plane: ControlPlane, gang: Gang) -> tuple[GangLaunchers, ProgressPort]:
    """Play the gang's launchers and rank 0's progress on an address that its pod gets."""
    job = gang.status(plane)
    leader = f"/api/v1/namespaces/{NAMESPACE}/pods/{job['metadata']['name']}-base-0-0"
    selector = f"labelSelector={names.LABEL_JOB_UID}={job['metadata']['uid']}"
    (found,) = json.loads(plane.client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets?{selector}"))["items"]
    token = base64.b64decode(found["data"][names.LAUNCHER_KEY])
    launchers = GangLaunchers(ADDRESS, token, SIZE)

    def tell() -> bytes:
        progress = {"state": "Training", "stage": "base", "attempt": launchers.attempt, "step": 9, "heartbeat": 9}
        return json.dumps(progress).encode()

    port = ProgressPort(ADDRESS, tell)
    status = {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}, {"$patch": "replace"}]}
    plane.client.send("PATCH", f"{leader}/status", {"status": status}, _STRATEGIC)
    return launchers, port


def _fail_rank(launchers: GangLaunchers) -> float:
    """Seconds from the end of a rank in the middle until all ranks of the next attempt have started."""
    began = time.monotonic()
    launchers.end(SIZE // 2, 137)
    deadline = began + PATIENCE_SECONDS
    while len(launchers.starts) < 2 * SIZE:
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks do not start again in place")
        time.sleep(0.005)
    return max(moment for attempt, moment in launchers.starts if attempt == 1) - began


def _fail_pod(gang: Gang, pods: Pods) -> float:
    """Seconds from the end of a container in the middle until all pods of the next gang run."""
    old = frozenset(pods.seen)
    began = time.monotonic()
    gang.fail(sorted(old)[SIZE // 2])
    return pods.until(lambda: len(pods.running - old) == SIZE, "all pods of the next gang run") - began


def _until_phase(plane: ControlPlane, gang: Gang, phase: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (job := gang.status(plane)).get("status", {}).get("phase") != phase:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job is not {phase}: {job.get('status')}")
        time.sleep(0.1)
    return job
