"""A pod as the plan needs it, read from the Kubernetes form once; it decides nothing."""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator import names
from resnetboost_operator.status import Amount, Count, Ratio

Manifest = Mapping[str, Any]


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """A trainer's own last words: the JSON of its termination message. Untrusted, so every field is optional."""

    verdict: str = msgspec.field(default="", name="class")
    message: str = ""
    step: Count | None = None
    checkpoint_step: Count | None = None
    top1: Ratio | None = None
    top5: Ratio | None = None
    test_loss: Amount | None = None


class Termination(msgspec.Struct, frozen=True):
    """How a container ended. `finished_at` is in unix seconds (kubelet tells whole seconds)."""

    exit_code: int
    reason: str
    finished_at: float
    report: Report


class PodView(msgspec.Struct, frozen=True):
    """One pod of a job; `index` is its place in the gang, `address` its IP or ''."""

    name: str
    uid: str
    stage: str
    attempt: int
    index: int
    phase: str
    ready: bool
    deleting: bool
    node: str
    address: str
    termination: Termination | None


def view(pod: Manifest) -> PodView:
    """Read a pod of ours (its labels say whose it is)."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata["labels"]
    container = _container(status)
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        stage=labels[names.LABEL_STAGE],
        attempt=int(labels[names.LABEL_ATTEMPT]),
        index=int(labels[names.LABEL_INDEX]),
        phase=status.get("phase", "Pending"),
        ready=bool(container.get("ready")),
        deleting="deletionTimestamp" in metadata,
        node=(pod.get("spec") or {}).get("nodeName", ""),
        address=status.get("podIP", ""),
        termination=_termination(status, container),
    )


def _container(status: Manifest) -> Manifest:
    for container in status.get("containerStatuses") or ():
        if container["name"] == names.CONTAINER:
            found: Manifest = container
            return found
    return {}


def _termination(status: Manifest, container: Manifest) -> Termination | None:
    ended = (container.get("state") or {}).get("terminated")
    if ended is None:
        if status.get("phase") != "Failed":
            return None
        # Evicted or rejected by kubelet: no container tells anything, the pod does.
        message = Report(message=status.get("message", ""))
        return Termination(137, status.get("reason", "Evicted"), 0.0, message)
    reason = status.get("reason") or ended.get("reason", "")
    return Termination(ended["exitCode"], reason, seconds(ended.get("finishedAt")), _report(ended.get("message", "")))


def _report(message: str) -> Report:
    """The trainer's JSON, or the log tail kubelet put in its place."""
    try:
        return msgspec.json.decode(message, type=Report)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # not JSON, not text, or nested beyond reason
        return Report(message=message)


def seconds(timestamp: str | None) -> float:
    """Kubernetes time (RFC 3339) as unix seconds; 0 for none."""
    return datetime.datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def timestamp(unix_seconds: float) -> str:
    """Unix seconds as Kubernetes writes time: RFC 3339, UTC, whole seconds."""
    moment = datetime.datetime.fromtimestamp(int(unix_seconds), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
