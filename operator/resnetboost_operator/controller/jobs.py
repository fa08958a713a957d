"""A ResNetBoostJob as the store keeps it: parsed once, with what the next status write needs."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.kubeclient.cache import version_of
from resnetboost_operator.manifests.devices import PUBLISHED, Images


class JobRecord(msgspec.Struct, frozen=True):
    """One version of a job. `deleting` is True once it has a deletion timestamp.

    `problem` says why `job` is None: CRD and operator are of different versions. `created` is a Kubernetes timestamp.
    """

    uid: str
    namespace: str
    name: str
    version: int
    deleting: bool
    job: Job | None
    status: Status
    problem: str
    created: str = ""

    @property
    def label(self) -> str:
        """The job's name in messages: namespace/name."""
        return f"{self.namespace}/{self.name}"


def read(obj: Mapping[str, Any], images: Images = PUBLISHED, launcher_key: str = "") -> JobRecord:
    """Read a job; one that cannot be parsed gets a `problem` instead of an exception."""
    metadata = obj["metadata"]
    job, status, problem = None, Status(), ""
    try:
        status = statuses.from_dict(obj.get("status"))
        job = replace(images.filled_in(parse_job(dict(obj))), launcher_key=launcher_key)
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
    """Body of a status update; the API server refuses it for another uid or resourceVersion of the job."""
    metadata = {
        "name": record.name,
        "namespace": record.namespace,
        "uid": record.uid,
        "resourceVersion": str(record.version),
    }
    status = statuses.to_dict(record.status)
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": status}
