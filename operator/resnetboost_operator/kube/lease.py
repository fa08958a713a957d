"""A coordination.k8s.io Lease: who leads, read and written; when one may be taken. No clock but the one passed in."""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """What a lease says. `holder` is '' where nobody leads; `version` is for the next write, '' for a new lease."""

    holder: str
    duration_seconds: float
    acquire_time: str = ""
    renew_time: str = ""
    transitions: int = 0
    version: str = ""


def read(obj: Mapping[str, Any]) -> Lease:
    """A lease as the API server has it."""
    spec = obj.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        acquire_time=spec.get("acquireTime") or "",
        renew_time=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        version=obj["metadata"]["resourceVersion"],
    )


def manifest(name: str, namespace: str, lease: Lease) -> dict[str, Any]:
    """The object to be written."""
    metadata = {"name": name, "namespace": namespace}
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

    def is_free(self, lease: Lease, identity: str, now: float) -> bool:
        """Whether it may be taken: nobody's, our own of a former life, or not renewed for its whole duration."""
        if self._lease != lease:
            self._lease, self._since = lease, now
        return lease.holder in ("", identity) or now >= self._since + lease.duration_seconds
