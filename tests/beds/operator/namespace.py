"""Creates, changes and awaits jobs and other objects of one namespace, for tests."""

import itertools
import json
import math
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from beds.cluster import ControlPlane
from beds.operator.wait import PATIENCE_SECONDS, eventually, readable
from resnetboost_api import names

Manifest = dict[str, Any]

JOB = "resnetboostjobs"
_MERGE = "application/merge-patch+json"
_PLURALS = {
    names.KIND: JOB,
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "ResourceQuota": "resourcequotas",
    "Service": "services",
}


class Space:
    """Objects of one namespace. patience_seconds: timeout of every wait."""

    def __init__(self, plane: ControlPlane, namespace: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.plane = plane
        self.namespace = namespace
        self.patience_seconds = patience_seconds

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object; returns it with the API server's defaults."""
        return self.plane.client.send("POST", self._path(_PLURALS[manifest["kind"]]), manifest)

    def get(self, plural: str, name: str) -> Manifest:
        """One object."""
        found: Manifest = json.loads(self.plane.client.get(self._path(plural, name)))
        return found

    def all(self, plural: str) -> list[Manifest]:
        """All objects of a kind, by name."""
        found = json.loads(self.plane.client.get(self._path(plural)))["items"]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def names_of(self, plural: str) -> list[str]:
        """Names of all objects of a kind, without the config map that Kubernetes puts into every namespace."""
        found = [str(item["metadata"]["name"]) for item in self.all(plural)]
        return [name for name in found if name != "kube-root-ca.crt"]

    def delete(self, plural: str, name: str, **options: Any) -> None:
        """Delete one object, with the options of a DELETE request."""
        self.plane.client.send("DELETE", self._path(plural, name), options)

    def patch(self, plural: str, name: str, change: Manifest) -> Manifest:
        """Merge a change into an object."""
        return self.plane.client.send("PATCH", self._path(plural, name), change, _MERGE)

    def add_claim(self, name: str) -> None:
        """Create a claim for checkpoints and its volume; nothing is ever written there."""
        volume = f"{self.namespace}-{name}"
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}}
        path = "/api/v1/persistentvolumes"
        self.plane.client.send("POST", path, {"metadata": {"name": volume}, "spec": spec})

        def phase() -> object:
            return json.loads(self.plane.client.get(f"{path}/{volume}")).get("status", {}).get("phase")

        # A claim that is created before its volume exists is retried only after 15 s.
        eventually(phase, lambda found: found == "Available", f"volume {volume} is available", self.patience_seconds)
        wanted = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        self.create({"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted})

        def is_bound() -> bool:
            # The binder often conflicts with itself and tries again after 15 s, or when the claim changes.
            number = {"metadata": {"labels": {"asked": str(next(asked))}}}
            return bool(self.patch(_PLURALS["PersistentVolumeClaim"], name, number)["status"]["phase"] == "Bound")

        asked = itertools.count()
        eventually(is_bound, bool, f"claim {name} is bound", self.patience_seconds)

    # Jobs

    def config_map(self, attempt: int = 0, job: str = "digits", stage: str = "base") -> str:
        """Name of the config map of a job's attempt."""
        return names.config_map(job, self.get(JOB, job)["metadata"]["uid"], stage, attempt)

    def rank_table(self, attempt: int = 0, job: str = "digits") -> str:
        """Name of the config map with the rank table of a job's attempt."""
        return names.rank_table(job, self.get(JOB, job)["metadata"]["uid"], "base", attempt)

    def change(self, job: str, **spec: Any) -> None:
        """Merge a change into a job's spec, as `kubectl edit` does."""
        self.patch(JOB, job, {"spec": spec})

    def status(self, job: str = "digits") -> Manifest:
        """A job's status; empty before the operator has written it."""
        status: Manifest = self.get(JOB, job).get("status", {})
        return status

    def until(self, holds: Callable[[Manifest], object], what: str, job: str = "digits") -> Manifest:
        """Wait until a job's status satisfies the condition; returns it."""
        deadline = time.monotonic() + self.patience_seconds
        status: Manifest = {}
        while (left := deadline - time.monotonic()) > 0:
            for found in self._changes(JOB, job, left):
                status = found.get("status", {})
                if holds(status):
                    return status
        raise AssertionError(
            f"job {job}: {what}: not within {self.patience_seconds:g} s; last seen:\n{readable(status)}"
        )

    def _changes(self, plural: str, name: str, seconds: float) -> Iterator[Manifest]:
        """One object, and what it becomes for so many seconds, or until it is deleted."""
        found = self.get(plural, name)
        yield found
        watch = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        for line in self.plane.client.lines(f"{self._path(plural)}?{urllib.parse.urlencode(watch)}"):
            event = json.loads(line)
            if event["type"] not in ("ADDED", "MODIFIED"):
                return
            yield event["object"]

    def until_phase(self, phase: str, job: str = "digits") -> Manifest:
        """Wait until a job has that phase; returns its status."""
        return self.until(lambda status: status.get("phase") == phase, f"phase {phase}", job)

    def until_started(self, attempt: int = 0, job: str = "digits") -> Manifest:
        """Wait until all pods of an attempt run and the operator has seen it; returns the job's status."""

        def is_started(status: Manifest) -> bool:
            whole = status.get("attempt") == attempt and "attemptStartTime" in status
            return whole and status["ranks"]["running"] == status["ranks"]["desired"]

        return self.until(is_started, f"attempt {attempt} has started", job)

    def pods(self) -> list[Manifest]:
        """All pods, by name."""
        return self.all("pods")

    def until_names(self, plural: str, *wanted: str) -> None:
        """Wait until the objects of a kind have exactly these names."""
        what = f"{plural} are {sorted(wanted)}"
        eventually(lambda: self.names_of(plural), lambda found: found == sorted(wanted), what, self.patience_seconds)

    def until_pods(self, *wanted: str) -> list[Manifest]:
        """Wait until the pods have exactly these names; returns them."""
        self.until_names("pods", *wanted)
        return self.pods()

    def until_gone(self, plural: str, name: str) -> None:
        """Wait until an object is gone."""
        what = f"no {plural} {name}"
        eventually(lambda: self.names_of(plural), lambda found: name not in found, what, self.patience_seconds)

    def event_reasons(self) -> list[str]:
        """Reasons of all events about jobs."""
        return [event["reason"] for event in self.all("events") if event["involvedObject"]["kind"] == names.KIND]

    def clear(self) -> None:
        """Delete all jobs, and all pods without grace, so that nothing continues after a test."""
        self.plane.client.send("DELETE", self._path(JOB), {"propagationPolicy": "Background"})
        self.plane.client.send("DELETE", self._path("pods"), {"gracePeriodSeconds": 0})

    def _path(self, plural: str, name: str = "") -> str:
        root = f"/apis/{names.API_VERSION}" if plural == JOB else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


def condition(status: Manifest, kind: str) -> Manifest:
    """A condition of a status; empty if there is none of that type."""
    return next((found for found in status.get("conditions", ()) if found["type"] == kind), {})


def is_true(status: Manifest, kind: str) -> bool:
    """Whether a condition of a status is True."""
    return condition(status, kind).get("status") == "True"
