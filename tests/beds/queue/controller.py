"""Plays Kueue for one namespace of a real API server."""

import contextlib
import json
import threading
import time
from typing import Any, Self

from beds.cluster import ClusterError, ControlPlane
from beds.operator.wait import PATIENCE_SECONDS, eventually
from beds.queue import promises
from beds.queue.decisions import Queue, next_write
from beds.queue.history import History
from resnetboost_api import names
from resnetboost_operator.observed.pods import timestamp
from support.kueuestatus import condition, is_true, with_condition

Manifest = dict[str, Any]

_MERGE = "application/merge-patch+json"
# A job's end shows in no event of a Workload.
_LOOK_SECONDS = 0.5


class Kueue:
    """Admits, evicts and requeues the Workloads of a namespace, as a context manager. `queues` may change at any time.

    paused: it does nothing but watch, as Kueue while it is down, or where the real one runs.
    """

    def __init__(self, plane: ControlPlane, namespace: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plane = plane
        self._path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads"
        self._jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/resnetboostjobs"
        self._patience_seconds = patience_seconds
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._workloads = History(plane, self._path, self._news.set)
        self._pods = History(plane, f"/api/v1/namespaces/{namespace}/pods")
        self._excused: set[str] = set()
        self.queues: dict[str, Queue] = {}
        self.paused = False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._pods)
            stack.enter_context(self._workloads)
            self._histories = stack.pop_all()
        self._thread = threading.Thread(target=self._work, name="Kueue", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._news.set()
        self._thread.join()
        self._histories.close()

    # Actions of a test

    def set_queue(self, name: str, quota: int, **more: Any) -> None:
        """Create a queue or change it."""
        self.queues = {**self.queues, name: Queue(quota, **more)}
        self._news.set()

    def evict(self, job: str, reason: str = "Preempted") -> None:
        """Evict a job's Workload."""
        workload = self.until(job, lambda found: is_true(found, "Admitted"), "admitted")
        status = with_condition(workload, "Evicted", "True", reason, f"Evicted: {reason}", timestamp(time.time()))
        self._write(workload, status)

    def activate(self, job: str, value: bool) -> None:
        """Set spec.active of a job's Workload, as an administrator does."""
        self._plane.client.send("PATCH", self._of(job), {"spec": {"active": value}}, _MERGE)

    def remove(self, job: str) -> None:
        """Delete a job's Workload, as a stranger does."""
        self._plane.client.send("DELETE", self._of(job))

    def finish(self, job: str, reason: str) -> None:
        """Finish a job's Workload, as Kueue does for reasons of its own."""
        workload = self.workload(job)
        self._write(workload, with_condition(workload, "Finished", "True", reason, reason, timestamp(time.time())))

    def allow_early_end(self) -> None:
        """From now on somebody else than the operator takes quota away."""
        self._excused.add(promises.EARLY)

    def allow_without_queue(self) -> None:
        """There are jobs without a queue."""
        self._excused.add(promises.UNADMITTED)

    # What a test sees

    def workloads(self) -> list[Manifest]:
        """All Workloads."""
        found: list[Manifest] = json.loads(self._plane.client.get(self._path))["items"]
        return found

    def workload(self, job: str) -> Manifest:
        """A job's Workload; empty without."""
        found = (one for one in self.workloads() if one["metadata"]["labels"][names.LABEL_JOB] == job)
        return next(found, {})

    def until(self, job: str, holds: Any, what: str) -> Manifest:
        """Wait until a job's Workload satisfies the condition; returns it."""
        return eventually(
            lambda: self.workload(job),
            lambda found: found and holds(found),
            f"the Workload of {job}: {what}",
            self._patience_seconds,
        )

    def until_reason(self, job: str, kind: str, reason: str) -> Manifest:
        """Wait until a condition of a job's Workload has that reason; returns the Workload."""
        return self.until(job, lambda found: condition(found, kind).get("reason") == reason, f"{kind} is {reason}")

    def broken_promises(self) -> list[str]:
        """What the operator did that it must not do: see promises.py."""
        return promises.broken(self._workloads.changes, self._pods.changes, self._excused)

    def counts(self) -> dict[str, int]:
        """How many Workloads there were, how often one was evicted, and how often the operator gave quota back."""
        changes = self._workloads.changes
        created = len({change.obj["metadata"]["uid"] for change in changes})
        return {"workloads": created, "evictions": promises.evictions(changes), "releases": promises.releases(changes)}

    # Automatic behaviour

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            with contextlib.suppress(OSError, ClusterError, ValueError):  # a conflict: decide anew
                while not self.paused and self._write_next():
                    pass
            self._news.wait(_LOOK_SECONDS)

    def _write_next(self) -> bool:
        workloads = self.workloads()  # before the jobs: each has its owner then
        owners = {job["metadata"]["uid"] for job in json.loads(self._plane.client.get(self._jobs))["items"]}
        found = next_write(workloads, self.queues, owners, timestamp(time.time()))
        if found is not None:
            self._write(found.workload, found.status)
        return found is not None

    def _write(self, workload: Manifest, status: Manifest) -> None:
        metadata = workload["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
        self._plane.client.send("PATCH", f"{self._path}/{metadata['name']}/status", body, _MERGE)

    def _of(self, job: str) -> str:
        return f"{self._path}/{self.workload(job)['metadata']['name']}"
