"""A ResNetBoostJob as the shell keeps it: read once, small, with what its next write needs; it decides nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator import api, names
from resnetboost_operator import status as statuses
from resnetboost_operator.kubeclient.cache import version_of
from resnetboost_operator.manifests.devices import PUBLISHED, Images
from resnetboost_operator.status import Status


class JobRecord(msgspec.Struct, frozen=True):
    """One version of a job. `deleting`: only the garbage collector still has business with it.

    `problem` says why `job` is None: definition and operator are of different versions. `created` is a time as
    Kubernetes writes it.
    """

    uid: str
    namespace: str
    name: str
    version: int
    deleting: bool
    job: api.Job | None
    status: Status
    problem: str
    created: str = ""

    @property
    def label(self) -> str:
        """How people name it: namespace/name."""
        return f"{self.namespace}/{self.name}"


def read(obj: Mapping[str, Any], images: Images = PUBLISHED) -> JobRecord:
    """Read a job; what this operator does not understand becomes its `problem` and raises nothing."""
    metadata = obj["metadata"]
    job, status, problem = None, Status(), ""
    try:
        status = statuses.from_dict(obj.get("status"))
        job = images.filled_in(api.parse(dict(obj)))
    except (msgspec.ValidationError, KeyError) as error:
        problem = f"this operator does not understand the job: {error}; bring operator and CRD to the same version"
    return JobRecord(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        version=version_of(obj),
        deleting="deletionTimestamp" in metadata,
        job=job,
        status=status,
        problem=problem,
        created=metadata.get("creationTimestamp", ""),
    )


def with_status(record: JobRecord) -> dict[str, Any]:
    """The object to be written to the job's status: for this very job and version, or the API server refuses it."""
    metadata = {
        "name": record.name,
        "namespace": record.namespace,
        "uid": record.uid,
        "resourceVersion": str(record.version),
    }
    status = statuses.to_dict(record.status)
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": status}
