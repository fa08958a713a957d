"""Pods of jobs in namespaces that enforce Pod Security, on a real API server: whom "restricted" admits, and whom not.

The operator's own pod is admitted by every release that the other tests install: their namespaces enforce it too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.cluster import ClusterError, ControlPlane
from chart.conftest import add_namespace
from resnetboost_operator.cli import job_file
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.gang import gang

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
# What else of a job reaches its pods.
EVERYTHING = (
    "template.env=[{name: A, value: b}]",
    "template.resources={limits: {cpu: 2, memory: 4Gi}}",
    "template.volumes=[{name: data, persistentVolumeClaim: {claimName: data}}]",
    "template.volumeMounts=[{name: data, mountPath: /data, readOnly: true}]",
    "checkpoint.claimName=checkpoints",
    "storage.secretName=keys",
    "device.perNode=2",
)


@pytest.fixture(scope="module")
def restricted(plane: ControlPlane) -> Iterator[str]:
    yield from labelled(plane, "restricted")


@pytest.fixture(scope="module")
def baseline(plane: ControlPlane) -> Iterator[str]:
    yield from labelled(plane, "baseline")


def labelled(plane: ControlPlane, level: str) -> Iterator[str]:
    name = add_namespace(plane, {"pod-security.kubernetes.io/enforce": level})
    yield name
    plane.client.send("DELETE", f"/api/v1/namespaces/{name}")


def pods(example: str, *changes: str) -> list[dict[str, Any]]:
    """The pods of an example's first gang."""
    written = job_file.load(EXAMPLES / f"{example}.yaml", list(changes))
    written["metadata"]["uid"] = "0c4a3bd5-4d3b-4f43-9c35-1f0e7a3f0f10"
    job = parse_job(written)
    return [found for found in gang(job, job.spec.stages[0], 0) if found["kind"] == "Pod"]


def refusals(plane: ControlPlane, namespace: str, found: list[dict[str, Any]]) -> list[str]:
    """What the API server says against these pods. It stores none."""
    said = []
    for pod in found:
        pod["metadata"]["namespace"] = namespace
        try:
            plane.client.send("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except ClusterError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
@pytest.mark.parametrize("changes", [(), EVERYTHING], ids=["plain", "everything"])
def test_restricted_admits_ranks_on_cpus_and_gpus(
    plane: ControlPlane, restricted: str, kind: str, changes: tuple[str, ...]
) -> None:
    found = pods("npz", f"device.type={kind}", "device.count=2", *changes)
    assert len(found) == 2
    assert refusals(plane, restricted, found) == []


def test_ascend_needs_its_driver_from_the_node_or_from_the_runtime(
    plane: ControlPlane, restricted: str, baseline: str
) -> None:
    """docs/security.md: hostPath is all that keeps ranks on Ascend out."""
    for namespace in (restricted, baseline):
        found = pods("npz-ascend")
        said = refusals(plane, namespace, found)
        assert len(said) == len(found)
        assert all("hostPath" in one and "securityContext" not in one for one in said), said
        assert refusals(plane, namespace, pods("npz-ascend", "device.driverMounts=false")) == []


def test_restricted_refuses_what_a_rank_would_be_without_its_security_context(
    plane: ControlPlane, restricted: str
) -> None:
    (first, *_) = pods("npz")
    del first["spec"]["securityContext"]
    (said,) = refusals(plane, restricted, [first])
    assert "runAsNonRoot" in said
