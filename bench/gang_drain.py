"""Drains a namespace of gangs: creates the jobs, ends each a fixed time after it is whole, and finds blocked ones."""

import contextlib
import json
import threading
import time
from typing import Self

import msgspec

from beds.cluster import ControlPlane
from beds.operator.gangs import device_job
from resnetboost_api import names

SIZE = 5
# Binding a gang takes less; one that takes longer holds devices which others wait for.
BLOCKED_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_WATCH_SECONDS = 600
_MERGE = "application/merge-patch+json"


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str]


class _Spec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_event = msgspec.json.Decoder(_Event)


class _Gang(msgspec.Struct):
    """What is known of a job's pods: with a node, and running. Times are monotonic."""

    placed: set[str] = msgspec.field(default_factory=set)
    running: set[str] = msgspec.field(default_factory=set)
    whole_at: float | None = None
    partial_since: float | None = None
    blocked: bool = False
    ended: bool = False

    def apply(self, pod: _Pod) -> None:
        """Note a pod's news."""
        if pod.spec.node:
            self.placed.add(pod.metadata.name)
        if pod.status.phase == "Running":
            self.running.add(pod.metadata.name)

    def judge(self, now: float) -> None:
        """Note whether it is whole by now, or held devices for long without being so."""
        if len(self.running) == SIZE and self.whole_at is None:
            self.whole_at = now
        if self.placed and self.whole_at is None:
            self.partial_since = self.partial_since or now
            self.blocked |= now - self.partial_since > BLOCKED_SECONDS


class Drain:
    """All jobs of one namespace, which nobody else uses, as a context manager; they run for `run_seconds`."""

    def __init__(self, plane: ControlPlane, namespace: str, run_seconds: float) -> None:
        self._client = plane.client
        self._jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/resnetboostjobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._run_seconds = run_seconds
        self._gangs: dict[str, _Gang] = {}
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._follow, name="pods", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

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
            self._end_those_due()

    def until_complete(self, limit_seconds: float) -> float:
        """Time (monotonic) at which the last job was complete, or at which the limit was reached."""
        deadline = time.monotonic() + limit_seconds
        while not all(gang.ended for gang in self._gangs.values()) and time.monotonic() < deadline:
            self._end_those_due()
            time.sleep(_PAUSE_SECONDS)
        while self._incomplete() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        return time.monotonic()

    def _follow(self) -> None:
        """A watch, because lists of all pods would cost the API server more than the gangs do."""
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):  # a new watch begins with all pods that there are
                for line in self._client.lines(f"{self._pods}?watch=true&timeoutSeconds={_WATCH_SECONDS}"):
                    pod = _event.decode(line).object
                    self._gangs[pod.metadata.labels[names.LABEL_JOB]].apply(pod)

    def _end_those_due(self) -> None:
        now = time.monotonic()
        for gang in self._gangs.values():
            gang.judge(now)
            if not gang.ended and gang.whole_at is not None and now >= gang.whole_at + self._run_seconds:
                gang.ended = True
                for pod in sorted(gang.running, reverse=True):  # rank 0 last, as in training
                    change = {"metadata": {"annotations": {"exit-code": "0"}}}
                    self._client.send("PATCH", f"{self._pods}/{pod}", change, _MERGE)

    def _incomplete(self) -> int:
        jobs = json.loads(self._client.get(self._jobs))["items"]
        return sum(job.get("status", {}).get("phase") != "Complete" for job in jobs)
