"""A coordination.k8s.io Lease: who leads, read and written; when one may be taken. No clock but the one passed in."""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator import names


class Lease(msgspec.Struct, frozen=True):
    """What a lease says. `holder` is '' where nobody leads; `version` is for the next write, '' for a new lease.

    `pod` is the holder's in the lease's namespace, '' for a process that runs in none. Labels and annotations are those
    that others have put on it.
    """

    holder: str
    duration_seconds: float
    acquire_time: str = ""
    renew_time: str = ""
    transitions: int = 0
    version: str = ""
    pod: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


def read(obj: Mapping[str, Any]) -> Lease:
    """A lease as the API server has it."""
    spec, metadata = obj.get("spec") or {}, obj["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != names.LABEL_LEASE}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        acquire_time=spec.get("acquireTime") or "",
        renew_time=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        version=metadata["resourceVersion"],
        pod=annotations.pop(names.ANNOTATION_HOLDER_POD, ""),
        labels=labels,
        annotations=annotations,
    )


def manifest(name: str, namespace: str, lease: Lease) -> dict[str, Any]:
    """The object to be written."""
    pod = {names.ANNOTATION_HOLDER_POD: lease.pod} if lease.pod else {}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {**lease.labels, names.LABEL_LEASE: names.LEASE_OF_OPERATOR},
        "annotations": {**lease.annotations, **pod},
    }
    if lease.version:
        metadata["resourceVersion"] = lease.version
    spec = {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": max(1, int(lease.duration_seconds)),
        "acquireTime": lease.acquire_time,
        "renewTime": lease.renew_time,
        "leaseTransitions": lease.transitions,
    }
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def timestamp(now: float) -> str:
    """Unix seconds as Kubernetes' MicroTime."""
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Sighting:
    """Since when a lease has not changed, by this process' clock alone: the holder's may be wrong."""

    def __init__(self) -> None:
        self._lease: Lease | None = None
        self._since = 0.0

    def is_news(self, lease: Lease) -> bool:
        """Whether it was renewed since it was looked at last."""
        return self._lease is not None and self._lease != lease

    def is_free(self, lease: Lease, identity: str, now: float) -> bool:
        """Whether it may be taken: nobody's, our own of a former life, or not renewed for its whole duration."""
        if self._lease != lease:
            self._lease, self._since = lease, now
        return lease.holder in ("", identity) or now >= self._since + lease.duration_seconds
