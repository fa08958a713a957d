"""Pod status patches as kubelet writes them: running, ended, waiting, disrupted."""

import datetime
from typing import Any

from resnetboost_api import names

Manifest = dict[str, Any]

_RUNNING_CONDITIONS = ("Initialized", "ContainersReady", "Ready")


def now() -> str:
    """The current time in Kubernetes' format."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(address: str) -> Manifest:
    """Status of a pod whose container runs and is ready."""
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now(),
        "conditions": [{"type": kind, "status": "True"} for kind in _RUNNING_CONDITIONS],
        "containerStatuses": [_container(True, {"running": {"startedAt": now()}})],
    }


def ended(code: int, reason: str, message: str) -> Manifest:
    """Status of a pod whose container has terminated."""
    state = {"exitCode": code, "reason": reason, "message": message, "startedAt": now(), "finishedAt": now()}
    return {
        "phase": "Succeeded" if code == 0 else "Failed",
        "conditions": [{"type": kind, "status": "False"} for kind in ("ContainersReady", "Ready")],
        "containerStatuses": [_container(False, {"terminated": state})],
    }


def waiting(reason: str, message: str) -> Manifest:
    """Status of a pod whose container cannot start yet."""
    return {"containerStatuses": [_container(False, {"waiting": {"reason": reason, "message": message}})]}


def disrupted(reason: str) -> Manifest:
    """Status of a pod about to be disrupted. Kubernetes resets a DisruptionTarget condition that has no time."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": now()}
    return {"conditions": [condition]}


def _container(ready: bool, state: Manifest) -> Manifest:
    return {
        "name": names.CONTAINER,
        "image": "trainer",
        "imageID": "",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }
