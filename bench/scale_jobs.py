"""The two contenders of bench.scale: a ResNetBoostJob and an Indexed Job with the same pods."""

import json
import uuid
from pathlib import Path
from typing import Any, Protocol

from beds.cluster import ControlPlane
from beds.operator import jobs
from resnetboost_api import names
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.pod import pod as pod_manifest

CRD = Path("crds/resnetboostjobs.yaml")
NAMESPACE = "scale"
_OURS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/resnetboostjobs"
_THEIRS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_BACKGROUND = {"propagationPolicy": "Background"}
_MERGE = "application/merge-patch+json"


class Contender(Protocol):
    """Creates `size` pods by one kind of job."""

    size: int

    def create(self) -> None:
        """Apply the job."""

    def delete(self) -> None:
        """Delete the job; its pods follow."""


def prepare(plane: ControlPlane) -> None:
    """Wait until pods can be created in the namespace."""
    plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    plane.processes.wait_until(lambda: plane.client.answers(account), account)


class Gang:
    """A ResNetBoostJob."""

    def __init__(self, plane: ControlPlane, size: int) -> None:
        self.size = size
        self._client = plane.client
        self.name = f"gang-{uuid.uuid4().hex[:8]}"

    def create(self) -> None:
        """A job that restarts without a back-off, so that only the operator's work takes time."""
        self._client.send("POST", _OURS, jobs.job(self.name, ranks=self.size))

    def status(self, plane: ControlPlane) -> dict[str, Any]:
        """The job as it is now."""
        found: dict[str, Any] = json.loads(plane.client.get(f"{_OURS}/{self.name}"))
        return found

    def fail(self, pod: str) -> None:
        """End that pod with exit code 1."""
        self._client.send("PATCH", f"{_PODS}/{pod}", {"metadata": {"annotations": {"exit-code": "1"}}}, _MERGE)

    def delete(self) -> None:
        """Deletes the pods too: the garbage collector would take longer."""
        self.delete_job()
        self._client.send("DELETE", _PODS, {"gracePeriodSeconds": 0})

    def delete_job(self) -> None:
        """Delete the job alone; the garbage collector deletes its pods."""
        self._client.send("DELETE", f"{_OURS}/{self.name}", _BACKGROUND)


class IndexedJob:
    """Kubernetes' own Job with completion mode Indexed, all pods at once."""

    def __init__(self, plane: ControlPlane, size: int) -> None:
        self.size = size
        self._client = plane.client
        self._name = f"indexed-{uuid.uuid4().hex[:8]}"
        self._template = {"spec": _pod_spec(plane, size)}

    def create(self) -> None:
        """Its pods have the spec of our rank 1, which is that of all ranks but one."""
        spec = {
            "completionMode": "Indexed",
            "completions": self.size,
            "parallelism": self.size,
            "backoffLimit": 0,
            "template": self._template,
        }
        self._client.send("POST", _THEIRS, {"metadata": {"name": self._name}, "spec": spec})

    def delete(self) -> None:
        """Waits for the pods: the Job's controller removes their finalizers one by one."""
        self._client.send("DELETE", f"{_THEIRS}/{self._name}", _BACKGROUND)
        self._client.send("DELETE", _PODS, {"gracePeriodSeconds": 0})


def _pod_spec(plane: ControlPlane, size: int) -> Any:
    """The pod spec the operator makes of the defaulted job (by a dry run: nothing is created)."""
    job = parse_job(plane.client.send("POST", f"{_OURS}?dryRun=All", jobs.job("template", ranks=size)))
    return json.loads(json.dumps(pod_manifest(job, job.spec.stages[0], 0, 1)["spec"]))
