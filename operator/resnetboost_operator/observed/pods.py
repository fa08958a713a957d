"""PodView: a pod read from its Kubernetes form, with the fields that planning needs."""

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from resnetboost_api import names
from resnetboost_api.status import Amount, BestCheckpoint, Count, EarlyStop, PreflightResult, Ratio
from resnetboost_operator.ranktable import annotations
from resnetboost_operator.status import Marks

Manifest = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """Where a training diverged: the step, counted from 1, and how many batches of the data order were used by then."""

    step: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    batch: Count


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of a trainer's termination message. Untrusted, so every field is optional."""

    failure_class: str = msgspec.field(default="", name="class")
    message: str = ""
    step: Count | None = None
    checkpoint_step: Count | None = None
    top1: Ratio | None = None
    top5: Ratio | None = None
    test_loss: Amount | None = None
    total_steps: Count | None = None
    loss: Amount | None = None
    accuracy: Ratio | None = None
    resumed_step: Count | None = None
    skipped: Marks = ()
    fault: Fault | None = None
    preflight: PreflightResult | None = None
    best: BestCheckpoint | None = None
    stopped_early: EarlyStop | None = None


class Termination(msgspec.Struct, frozen=True, gc=False):
    """How a container ended. `finished_at` is in unix seconds (kubelet reports whole seconds).

    Without an `exit_code` it never started: kubelet evicted or rejected the pod. `by_launcher`: the rank ended, by the
    report of its launcher, but the container runs on.
    """

    exit_code: int | None
    reason: str
    finished_at: float
    report: Report
    by_launcher: bool = False


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Why a pod does not run yet, as the scheduler or kubelet reports it (`Unschedulable`, `ErrImagePull` ...)."""

    reason: str
    message: str


class PodView(msgspec.Struct, frozen=True, gc=False):
    """One pod of a job; `index` is its place in the gang, `address` its IP or ''.

    `disruption` is reason and message of the condition DisruptionTarget (an eviction, a preemption, a taint) or ''.
    `created` (unix seconds) is by the API server's clock; `looked_at`: a scheduler has judged or bound it.
    `devices` are the annotations of a device plugin, `rank_table` is the digest in the operator's
    annotation, or ''. `gates` are the names of its scheduling gates, `avoids` those of the nodes that its affinity
    excludes. `bound` (unix seconds): when a scheduler bound it to its node, 0 if it did not say. `config_map` is the
    name of the config map that it mounts, or ''.
    """

    namespace: str
    name: str
    uid: str
    job_name: str
    job_uid: str
    stage: str
    attempt: int
    index: int
    phase: str
    ready: bool
    deleting: bool
    node: str
    address: str
    disruption: str
    waiting: Waiting | None
    termination: Termination | None
    devices: Mapping[str, str] = {}
    rank_table: str = ""
    gates: tuple[str, ...] = ()
    avoids: tuple[str, ...] = ()
    created: float = 0.0
    looked_at: bool = True
    bound: float = 0.0
    config_map: str = ""

    @property
    def container_ended(self) -> bool:
        """Whether kubelet has seen the end of the container, or never let it begin."""
        return self.termination is not None and not self.termination.by_launcher


def view(pod: Manifest) -> PodView:
    """Read a pod of a job. Raises ValueError for a pod that only pretends to be one.

    Anybody may write labels and owners. A rank's pod has exactly one valid name, and names are unique in a namespace:
    so no other pod with this `job_name` and `job_uid` can pass for the same rank.
    """
    metadata, status, spec = pod["metadata"], pod.get("status") or {}, pod.get("spec") or {}
    node = spec.get("nodeName", "")
    labels, annotated = metadata.get("labels") or {}, metadata.get("annotations") or {}
    stage = labels.get(names.LABEL_STAGE, "")
    attempt, index = int(labels.get(names.LABEL_ATTEMPT, "")), int(labels.get(names.LABEL_INDEX, ""))
    owner = _owner(metadata)
    if metadata["name"] != names.pod(owner["name"], stage, attempt, index):
        raise ValueError(f"pod {metadata['name']} is not named as its labels say")
    container = _container(status)
    return PodView(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        job_name=owner["name"],
        job_uid=owner["uid"],
        stage=stage,
        attempt=attempt,
        index=index,
        phase=status.get("phase", "Pending"),
        ready=bool(container.get("ready")),
        deleting="deletionTimestamp" in metadata,
        node=node,
        address=status.get("podIP", ""),
        disruption=_disruption(status),
        waiting=_waiting(status, container, node),
        termination=_termination(status, container),
        devices={key: annotated[key] for key in annotations.KEYS if key in annotated},
        rank_table=annotated.get(names.ANNOTATION_RANK_TABLE, ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        avoids=_avoids(spec),
        created=seconds(metadata.get("creationTimestamp")),
        bound=seconds(_condition(status, "PodScheduled", "True").get("lastTransitionTime")),
        config_map=_config_map(spec),
        looked_at=bool(node) or any(found.get("type") == "PodScheduled" for found in status.get("conditions") or ()),
    )


def _avoids(spec: Manifest) -> tuple[str, ...]:
    """The nodes that the required affinity excludes by name."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    fields = (field for term in required.get("nodeSelectorTerms") or () for field in term.get("matchFields") or ())
    return tuple(name for field in fields if field.get("operator") == "NotIn" for name in field.get("values") or ())


def _config_map(spec: Manifest) -> str:
    volumes = (volume for volume in spec.get("volumes") or () if volume.get("name") == names.VOLUME_CONFIG)
    return next(((volume.get("configMap") or {}).get("name", "") for volume in volumes), "")


def _owner(metadata: Manifest) -> Manifest:
    """The owner reference to the pod's job."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and (owner.get("apiVersion"), owner.get("kind")) == (names.API_VERSION, names.KIND):
            found: Manifest = owner
            return found
    raise ValueError(f"pod {metadata['name']} has no owner of kind {names.KIND}")


def _container(status: Manifest) -> Manifest:
    for container in status.get("containerStatuses") or ():
        if container["name"] == names.CONTAINER:
            found: Manifest = container
            return found
    return {}


def _condition(status: Manifest, kind: str, value: str) -> Manifest:
    """The condition of that type, if it has that value."""
    found = (found for found in status.get("conditions") or () if found.get("type") == kind)
    return next((condition for condition in found if condition.get("status") == value), {})


def _disruption(status: Manifest) -> str:
    """The reason why the pod is evicted, then who says so and for whom; '' if it is not."""
    found = _condition(status, "DisruptionTarget", "True")
    return f"{found.get('reason', '')}: {found.get('message', '')}".strip(": ")


def _waiting(status: Manifest, container: Manifest, node: str) -> Waiting | None:
    if status.get("phase", "Pending") != "Pending":
        return None
    # An interrupted scheduler may leave the condition on a pod that it has bound.
    unscheduled = {} if node else _condition(status, "PodScheduled", "False")
    found = unscheduled or (container.get("state") or {}).get("waiting") or {}
    return Waiting(found.get("reason", ""), found.get("message", "")) if found else None


def _termination(status: Manifest, container: Manifest) -> Termination | None:
    ended = (container.get("state") or {}).get("terminated")
    if ended is None:
        if status.get("phase") != "Failed":
            return None
        # No container has a status, only the pod.
        report = Report(message=f"{status.get('reason', '')}: {status.get('message', '')}".strip(": "))
        return Termination(None, status.get("reason", "Evicted"), 0.0, report)
    reason = status.get("reason") or ended.get("reason", "")
    return Termination(
        ended["exitCode"], reason, seconds(ended.get("finishedAt")), read_report(ended.get("message", ""))
    )


def read_report(message: str) -> Report:
    """The trainer's report, or the log tail that kubelet put in its place."""
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
