"""A coordination.k8s.io Lease: its fields, read from and written to manifests."""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names


class Lease(msgspec.Struct, frozen=True):
    """Fields of a Lease. `holder` is '' if nobody leads; `version` is the resourceVersion, '' for a new lease.

    `pod` is the holder's pod in the lease's namespace, '' if it does not run in one. `labels` and `annotations` are
    those set by others.
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
    """Read a lease from its manifest."""
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
    """The manifest of a lease."""
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
