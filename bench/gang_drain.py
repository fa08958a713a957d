"""Drains a namespace of gangs: creates the jobs, ends each a fixed time after it is whole, and finds blocked ones."""

import json
import time
from collections import defaultdict

import msgspec

from beds.cluster import ControlPlane
from beds.operator.gangs import device_job
from resnetboost_api import names

SIZE = 5
# No gang that is being bound takes that long; one that does holds devices which others wait for.
BLOCKED_SECONDS = 10.0
_PAUSE_SECONDS = 0.25
_MERGE = "application/merge-patch+json"


class _Gang(msgspec.Struct):
    """What is known of a job's pods. Times are monotonic; `partial_since` is None while none or all have a node."""

    running: frozenset[str] = frozenset()
    whole_at: float | None = None
    partial_since: float | None = None
    blocked: bool = False
    ended: bool = False


class Drain:
    """All jobs of one namespace, which nobody else uses; they run for `run_seconds`."""

    def __init__(self, plane: ControlPlane, namespace: str, run_seconds: float) -> None:
        self._client = plane.client
        self._jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/resnetboostjobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._run_seconds = run_seconds
        self._gangs: dict[str, _Gang] = {}

    @property
    def deadlocks(self) -> int:
        """How many gangs held devices for long without being whole, or never ended."""
        return sum(gang.blocked or not gang.ended for gang in self._gangs.values())

    def create(self, count: int) -> None:
        """Create the jobs, as fast as the API server takes them."""
        for number in range(count):
            name = f"gang-{number}"
            self._gangs[name] = _Gang()
            self._client.send("POST", self._jobs, device_job(name, SIZE, schedulingPolicy={"gang": {}}))

    def until_complete(self, limit_seconds: float) -> float:
        """Time (monotonic) at which the last job was complete, or at which the limit was reached."""
        deadline = time.monotonic() + limit_seconds
        while not all(gang.ended for gang in self._gangs.values()) and time.monotonic() < deadline:
            self._look()
            self._end_those_due()
            time.sleep(_PAUSE_SECONDS)
        while self._incomplete() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        return time.monotonic()

    def _look(self) -> None:
        """Note which gangs are whole, and which hold only a part of their devices."""
        placed: dict[str, int] = defaultdict(int)
        running: dict[str, set[str]] = defaultdict(set)
        for pod in json.loads(self._client.get(f"{self._pods}?fieldSelector=status.phase!=Succeeded"))["items"]:
            job = pod["metadata"]["labels"][names.LABEL_JOB]
            placed[job] += "nodeName" in pod["spec"]
            if pod["status"].get("phase") == "Running":
                running[job].add(pod["metadata"]["name"])
        now = time.monotonic()
        for job, gang in self._gangs.items():
            if gang.ended:
                continue
            gang.running = frozenset(running[job])
            if len(gang.running) == SIZE and gang.whole_at is None:
                gang.whole_at = now
            is_partial = 0 < placed[job] < SIZE
            gang.partial_since = (gang.partial_since or now) if is_partial else None
            gang.blocked |= is_partial and now - (gang.partial_since or now) > BLOCKED_SECONDS

    def _end_those_due(self) -> None:
        for gang in self._gangs.values():
            if not gang.ended and gang.whole_at is not None and time.monotonic() >= gang.whole_at + self._run_seconds:
                for pod in sorted(gang.running, reverse=True):  # rank 0 last, as in training
                    change = {"metadata": {"annotations": {"exit-code": "0"}}}
                    self._client.send("PATCH", f"{self._pods}/{pod}", change, _MERGE)
                gang.ended = True

    def _incomplete(self) -> int:
        jobs = json.loads(self._client.get(self._jobs))["items"]
        return sum(job.get("status", {}).get("phase") != "Complete" for job in jobs)
