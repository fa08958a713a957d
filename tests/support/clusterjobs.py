"""Jobs as a cluster's API server returns them, in every state that users see."""

from pathlib import Path
from typing import Any

from resnetboost_operator.observed import pods
from resnetboost_operator.validation import jobfile, schema

Manifest = dict[str, Any]

NOW = 1_700_000_000.0
EXAMPLES = Path(__file__).parents[2] / "examples"
QUOTA = "couldn't assign flavors to pod set ranks: insufficient unused quota for cpu in flavor default, 1 more needed"
UNSCHEDULABLE = "0/2 ranks are scheduled: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
PROGRESS = {
    "state": "Training",
    "stage": "base",
    "step": 264,
    "totalSteps": 440,
    "epoch": 12.0,
    "totalEpochs": 20,
    "percent": 60,
    "loss": 0.5123,
    "accuracy": 0.978,
    "imagesPerSecond": 1234.5,
    "etaSeconds": 42,
    "checkpointStep": 250,
    "slowestRank": 1,
    "slowestComputeSeconds": 0.0412,
    "heartbeatTime": pods.timestamp(NOW - 7),
}
KILLED = {
    "attempt": 0,
    "stage": "base",
    "reason": "Killed",
    "exitCode": 137,
    "rank": 1,
    "node": "node-b",
    "lastStep": 131,
    "checkpointStep": 100,
    "endTime": pods.timestamp(NOW - 220),
}


def condition(kind: str, value: bool, reason: str, message: str) -> Manifest:
    return {
        "type": kind,
        "status": str(value),
        "reason": reason,
        "message": message,
        "lastTransitionTime": pods.timestamp(NOW - 30),
    }


def job(name: str = "digits", status: Manifest | None = None, *, age: int = 300, **spec: Any) -> Manifest:
    """The example of two ranks with a status; `age` in seconds, `spec` replaces fields."""
    found = schema.defaulted(jobfile.load(EXAMPLES / "digits.yaml"))
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-of-{name}",
        "resourceVersion": "5",
        "creationTimestamp": pods.timestamp(NOW - age),
    }
    kept = {"checkpoint": found["spec"]["checkpoint"] | {"claimName": "digits"}}
    made = {**found, "metadata": metadata, "spec": found["spec"] | kept | spec}
    return made | ({"status": status} if status is not None else {})


def status(phase: str, *conditions: Manifest, **fields: Any) -> Manifest:
    """The status of a job in its first stage."""
    state = phase if phase in ("Complete", "Failed") else "Running"
    running = 2 if phase == "Running" else 0
    return {
        "phase": phase,
        "stage": "base",
        "restarts": 0,
        "ranks": {"desired": 2, "running": running, "ready": running, "failed": 0, "succeeded": ""},
        "stages": [{"name": "base", "state": state, "attempts": 1}],
        "conditions": list(conditions),
        **fields,
    }


def running(**fields: Any) -> Manifest:
    training = condition("Running", True, "Training", "all 2 ranks train")
    return status("Running", training, **{"progress": {**PROGRESS}, **fields})


def waiting(reason: str = "Unschedulable", message: str = UNSCHEDULABLE, phase: str = "Starting") -> Manifest:
    return status(phase, condition("Running", False, reason, message))


def queued(reason: str = "WaitingForQuota", message: str = QUOTA) -> Manifest:
    waits = condition("Admitted", False, reason, message) | {"lastTransitionTime": pods.timestamp(NOW - 189)}
    return status("Queued", waits, condition("Running", False, reason, message))


def failed(message: str = "attempt 0: rank 1 on node-b ended with DataError", **fields: Any) -> Manifest:
    over = (condition("Running", False, "Failed", message), condition("Failed", True, "DataError", message))
    return status("Failed", *over, **fields)


def complete() -> Manifest:
    over = (condition("Running", False, "Complete", "done"), condition("Complete", True, "StagesComplete", "done"))
    result = {"name": "base", "state": "Complete", "attempts": 1, "top1": 0.994, "top5": 1.0, "testLoss": 0.126}
    return status("Complete", *over, stages=[result], progress=PROGRESS | {"step": 440, "percent": 100})
