"""Store of observed jobs and pods: deleted pods, and which job each event enqueues."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import launcher_client
from resnetboost_operator.controller import jobs
from resnetboost_operator.controller import store as stores
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.gang import gang
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.planning.actions import Deletion
from resnetboost_operator.validation import schema
from support.simulation import job

JOB = replace(job(device={"type": "CPU", "count": 2}), uid="u-1")


class Known:
    """A store with one job of two pods on two nodes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.store = Store((), self.calls.append)
        self.version = 0
        self.job_event("ADDED", JOB)
        for index in range(2):
            self.node(f"node-{index}")
            self.pod("ADDED", index)
        self.calls.clear()

    @property
    def record(self) -> JobRecord:
        record = self.store.jobs.get("u-1")
        assert record is not None
        return record

    @property
    def going(self) -> list[str]:
        return sorted(pod.name for pod in self.store.pods_of(self.record) if pod.deleting)

    def job_event(self, kind: str, wanted: Job, **metadata: Any) -> None:
        self.store.jobs.apply_event(kind, self._versioned(obj(wanted, **metadata)))

    def pod(
        self,
        kind: str,
        index: int,
        owner: Job = JOB,
        status: dict[str, Any] | None = None,
        attempt: int = 0,
        **metadata: Any,
    ) -> None:
        pod = {**pod_manifest(owner, owner.spec.stages[0], attempt, index), "status": status or {}}
        pod["metadata"] |= {"uid": f"pod-{index}", **metadata}
        pod["spec"]["nodeName"] = f"node-{index}"
        self.store.pods[""].apply_event(kind, self._versioned(pod))

    def node(
        self,
        name: str,
        ready: str = "True",
        kind: str = "MODIFIED",
        uid: str = "",
        since: str | None = "2026-01-01T00:00:00Z",
    ) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}
        node = {"metadata": {"name": name, "uid": uid or name}, "status": status}
        self.store.nodes.apply_event(kind, self._versioned(node))

    def _versioned(self, found: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        return found


def obj(wanted: Job, **metadata: Any) -> dict[str, Any]:
    spec = {
        "device": {"type": "CPU", "count": 2},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": [{"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8}],
    }
    found = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "spec": spec}
    found["metadata"] = {"name": wanted.name, "namespace": wanted.namespace}
    complete: dict[str, Any] = schema.defaulted(found)
    complete["metadata"] |= {"uid": wanted.uid, "generation": 1, **metadata}
    return complete


@pytest.fixture
def known() -> Known:
    return Known()


def test_pods_mount_the_secret_of_their_operators_key() -> None:
    mounted = set()
    for key in (b"a" * 32, b"b" * 32):
        store = Store((), print, launcher_key=launcher_client.key_id(key))
        found = store.read_job(obj(JOB, resourceVersion="1")).job
        assert found is not None
        secret, *_, pod = gang(found, found.spec.stages[0], 0)
        assert secret["metadata"]["name"] in str(pod["spec"]["volumes"])
        mounted.add(secret["metadata"]["name"])
    assert len(mounted) == 2


def test_a_job_is_observed_with_its_pods(known: Known) -> None:
    assert [pod.name for pod in known.store.pods_of(known.record)] == ["digits-base-0-0", "digits-base-0-1"]
    known.pod("MODIFIED", 0, annotations={"a": "b"})
    assert known.calls == [], "nothing that a plan could see has changed"
    known.pod("MODIFIED", 0, deletionTimestamp="2026-01-01T00:00:00Z")
    assert known.calls == ["u-1"]


def test_a_pod_of_the_same_owner_in_another_namespace_is_not_the_jobs(known: Known) -> None:
    known.pod("ADDED", 5, namespace="elsewhere")
    assert len(known.store.pods_of(known.record)) == 2


def test_a_pod_whose_owner_has_the_jobs_uid_but_another_name_is_not_the_jobs(known: Known) -> None:
    known.pod("ADDED", 5, owner=replace(JOB, name="forged"))
    assert len(known.store.pods_of(known.record)) == 2


@pytest.mark.parametrize("forged", [{"owner": replace(JOB, name="forged")}, {"namespace": "elsewhere"}])
def test_a_forged_pods_tombstone_does_not_replace_the_ranks(known: Known, forged: dict[str, Any]) -> None:
    end = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 1}}}]}
    known.pod("DELETED", 0, status=end)
    known.pod("DELETED", 0, status=end, **{"uid": "forged"} | forged)
    record = replace(known.record, status=Status(stage="base"))
    assert [pod.uid for pod in known.store.tombstones_of(record)] == ["pod-0"]


def ended(code: int) -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": code}}}]}


def test_a_ranks_tombstone_is_not_replaced_by_an_older_attempts(known: Known) -> None:
    known.pod("ADDED", 0, attempt=1, uid="new")
    known.pod("DELETED", 0, attempt=1, status=ended(10), uid="new")
    known.pod("DELETED", 0, status=ended(137))  # a pod of the older attempt that ended late
    record = replace(known.record, status=Status(stage="base", attempt=1))
    (pod,) = known.store.tombstones_of(record)
    assert pod.termination is not None
    assert (pod.attempt, pod.termination.exit_code) == (1, 10)


def test_tombstones_are_kept_until_the_status_has_moved_on(known: Known) -> None:
    known.pod("ADDED", 0, attempt=1, uid="new")
    known.pod("DELETED", 0, attempt=1, status=ended(10), uid="new")
    heard = [
        len(known.store.tombstones_of(replace(known.record, status=Status(stage="base", attempt=attempt))))
        for attempt in (0, 1, 1, 2, 1)
    ]
    assert heard == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "metadata",
    [{"labels": {}}, {"labels": None}, {"ownerReferences": []}, {"ownerReferences": None}, {"labels": {"a": 1}}],
    ids=["no labels", "labels null", "no owner", "owners null", "labels of numbers"],
)
def test_a_pod_that_only_looks_like_ours_is_ignored(known: Known, metadata: dict[str, Any]) -> None:
    known.pod("ADDED", 5, **metadata)
    assert len(known.store.pods_of(known.record)) == 2
    assert known.calls == []


def test_a_requested_deletion_shows_at_once(known: Known) -> None:
    known.store.expect_deletions([Deletion("digits-base-0-0", "pod-0", 5)])
    assert known.going == ["digits-base-0-0"]
    known.pod("MODIFIED", 0, annotations={"what": "else"})
    assert known.going == ["digits-base-0-0"], "also when the pod changes in another way first"


def test_deletions_of_unseen_pods_expire(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "EXPECTED_SECONDS", -1.0)
    for number in range(100):
        known.store.expect_deletions([Deletion("digits-base-0-0", f"gone-{number}", 5)])
    assert len(known.store._expectations._until) == 1


def test_a_failed_deletion_no_longer_shows(known: Known) -> None:
    deletion = Deletion("digits-base-0-0", "pod-0", 5)
    known.store.expect_deletions([deletion])
    known.store.forget_deletions([deletion])
    assert known.going == []
    assert not known.store.is_deletion_expected(deletion)


def test_a_deletion_without_effect_expires(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "EXPECTED_SECONDS", -1.0)
    deletion = Deletion("digits-base-0-0", "pod-0", 5)
    known.store.expect_deletions([deletion])
    assert known.going == []
    assert not known.store.is_deletion_expected(deletion)


def test_only_an_expired_deletion_calls_for_a_pass(known: Known) -> None:
    assert known.store.expectation_seconds(known.record) is None
    known.store.expect_deletions([Deletion("digits-base-0-0", "pod-0", 60)])
    wait = known.store.expectation_seconds(known.record)
    assert wait is not None
    assert stores.EXPECTED_SECONDS - 5 < wait <= stores.EXPECTED_SECONDS
    known.pod("MODIFIED", 0, deletionTimestamp="2026-01-01T00:00:00Z")
    assert known.store.expectation_seconds(known.record) is None


def test_only_a_shorter_grace_is_requested_again(known: Known) -> None:
    known.store.expect_deletions([Deletion("digits-base-0-0", "pod-0", 5)])
    assert known.store.is_deletion_expected(Deletion("digits-base-0-0", "pod-0", 60))
    assert not known.store.is_deletion_expected(Deletion("digits-base-0-0", "pod-0", 0)), (
        "its node is lost: do not wait"
    )


def test_a_changed_node_enqueues_the_jobs_with_pods_on_it(known: Known) -> None:
    known.node("node-0")
    known.node("node-of-nobody", ready="Unknown")
    assert known.calls == []
    known.node("node-0", ready="Unknown")
    assert known.calls == ["u-1"]
    seen = known.store.nodes_of(known.store.pods_of(known.record))
    assert {name: node.ready for name, node in seen.items()} == {"node-0": False, "node-1": True}


@pytest.mark.parametrize(
    "told", ["1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", None, "yesterday"], ids=["past", "future", "none", "words"]
)
def test_a_nodes_silence_counts_by_the_operators_clock(known: Known, told: str | None) -> None:
    began = time.time()
    known.node("node-0", ready="Unknown", since=told)
    first = silence(known)
    assert began <= first <= time.time()
    known.node("node-0", ready="False", since="2026-01-01T00:00:07Z")
    assert silence(known) == first, "it is no news that it is silent"
    known.node("node-0", ready="True", since=told)
    known.node("node-0", ready="False", since=told)
    assert silence(known) > first


def silence(known: Known) -> float:
    return known.store.nodes_of(known.store.pods_of(known.record))["node-0"].silent_since


def test_a_late_deletion_event_does_not_remove_a_new_node(known: Known) -> None:
    known.node("node-0", ready="Unknown", uid="new")
    known.node("node-0", kind="DELETED")
    seen = known.store.nodes_of(known.store.pods_of(known.record))
    assert not seen["node-0"].ready
    known.node("node-0", ready="Unknown", uid="new", kind="DELETED")
    assert "node-0" not in known.store.nodes_of(known.store.pods_of(known.record))


def test_an_answer_to_a_write_does_not_enqueue_its_job(known: Known) -> None:
    written = {**obj(JOB), "status": {"phase": "Starting"}}
    written["metadata"]["resourceVersion"] = "100"
    known.store.jobs.apply_response(written)
    assert known.record.status.phase == "Starting"
    assert known.calls == []


def test_a_job_that_is_being_deleted_says_so(known: Known) -> None:
    known.job_event("MODIFIED", JOB, deletionTimestamp="2026-01-01T00:00:00Z")
    assert known.record.deleting


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"spec": {"seed": "many"}}, "Expected `int`", id="a spec of another version"),
        pytest.param({"spec": {}}, "missing required field", id="a spec that lacks fields"),
        pytest.param({"status": {"phase": "Dreaming"}}, "Invalid enum value 'Dreaming'", id="a status from the future"),
        pytest.param({"spec": None}, "`null`", id="no spec"),
    ],
)
def test_an_unparsable_job_is_reported_and_kept(change: dict[str, Any], complaint: str) -> None:
    found = obj(JOB)
    found["metadata"]["resourceVersion"] = "1"
    for key, value in change.items():
        found[key] = {**found.get(key, {}), **value} if key == "spec" and value else value
    record = jobs.read(found)
    assert record.job is None
    assert complaint in record.problem
    assert record.problem.endswith("bring operator and CRD to the same version")
    assert record.label == "default/digits"
