"""`Job.apply` and `ClusterJob` against a real API server."""

import json
import threading
from pathlib import Path

import pytest

from beds.operator import Space
from beds.operator.namespace import JOB
from resnetboost import ClusterJob, Job, JobError, UserError
from resnetboost_api import names
from support import clusterjobs

pytestmark = pytest.mark.slow

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.fixture(autouse=True)
def _kubeconfig(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(space.plane.kubeconfig))


def write(space: Space, status: dict[str, object], name: str = "digits") -> None:
    """Write a job's status as the operator would."""
    path = f"/apis/{names.API_VERSION}/namespaces/{space.namespace}/{JOB}/{name}/status"
    space.plane.client.send("PUT", path, {**space.get(JOB, name), "status": status})


def test_a_job_is_created_updated_and_deleted(space: Space) -> None:
    job = Job.load(DIGITS)
    first = job.apply(space.namespace)
    again = job.replace({"runPolicy.suspend": True}).apply(space.namespace)
    assert (first.name, first.uid) == ("digits", again.uid)
    assert space.get(JOB, "digits")["spec"]["runPolicy"]["suspend"] is True
    assert job.apply(space.namespace).uid == first.uid
    assert space.get(JOB, "digits")["spec"]["runPolicy"].get("suspend", False) is False, "a field that was left out"
    first.delete()
    first.delete()
    assert space.names_of(JOB) == []


def test_changes_of_the_status_are_followed_to_the_end(space: Space) -> None:
    job = Job.load(DIGITS).apply(space.namespace)
    seen: list[tuple[str, int | None]] = []
    for status in job.follow(timeout=120):
        seen.append((status.phase, status.progress.step if status.progress is not None else None))
        if len(seen) == 1:
            write(space, clusterjobs.running())
        elif status.phase == "Running":
            write(space, clusterjobs.complete())
    assert [phase for phase, _ in seen] == ["Pending", "Running", "Complete"]
    assert seen[1][1] == 264
    assert job.wait(timeout=60).phase == job.status.phase == "Complete"


def test_a_loop_may_be_left_early_and_a_deadline_passes(space: Space) -> None:
    before = set(threading.enumerate())
    job = Job.load(DIGITS).apply(space.namespace)
    for status in job.follow():
        assert status.phase == "Pending"
        break
    with pytest.raises(TimeoutError, match="job digits has not ended in time"):
        job.wait(timeout=0.2)
    assert set(threading.enumerate()) <= before


def test_a_deleted_job_ends_the_wait_and_a_later_one_of_its_name_is_another(space: Space) -> None:
    job = Job.load(DIGITS).apply(space.namespace)
    with pytest.raises(UserError, match="was deleted before its end"):
        for _ in job.follow(timeout=60):
            space.delete(JOB, "digits")
    Job.load(DIGITS).apply(space.namespace)
    with pytest.raises(UserError, match=f"there is no job digits in namespace {space.namespace}"):
        _ = job.status
    job.delete()
    assert space.names_of(JOB) == ["digits"]
    assert ClusterJob("digits", space.namespace).status.phase == "Pending"


def test_what_the_cluster_refuses_is_a_sentence(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = Job.load(DIGITS).replace({"failurePolicy.maxRestarts": 5})
    with pytest.raises(JobError, match="0 is too small; use at least 1"):
        job.replace({"stages[0].epochs": 0}).apply(space.namespace)
    job.apply(space.namespace)
    with pytest.raises(UserError, match="cannot change once the job exists"):
        job.replace({"seed": 5}).apply(space.namespace)
    space.change("digits", failurePolicy={"maxRestarts": 3})  # somebody else's kubectl edit
    with pytest.raises(UserError, match=r"conflict .*maxRestarts.*; force=True takes these fields over"):
        job.apply(space.namespace)
    job.apply(space.namespace, force=True)
    assert space.get(JOB, "digits")["spec"]["failurePolicy"]["maxRestarts"] == 5
    elsewhere = json.loads(space.plane.kubeconfig.read_text())
    elsewhere["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(json.dumps(elsewhere))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(UserError, match="is this the right cluster, and is it up"):
        job.apply(space.namespace)
