"""What the store knows of Workloads and PodGroups: whose they are, when they count, and whose pass they call for."""

from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.job import Job
from resnetboost_operator.observed.capabilities import COSCHEDULING, KUEUE, POD_GROUP_APIS, VOLCANO, Capabilities
from resnetboost_operator.scheduling.kueue import workload as workloads
from support.scheduled import pod_group, workload
from support.simulation import job

JOB = replace(job(device={"type": "CPU", "count": 2}), uid="u-1")
BOTH = Capabilities(gangs_enabled=True, kueue_enabled=True)


class Known:
    """A store with one job, where both optional APIs are served and listed."""

    def __init__(self, enabled: Capabilities = BOTH, namespaces: tuple[str, ...] = ()) -> None:
        self.calls: list[str] = []
        self.store = Store(namespaces, self.calls.append, enabled=enabled)
        self.version = 0
        self.store.jobs.apply_event("ADDED", self.versioned({"metadata": {"name": JOB.name, "namespace": "default"}}))
        self.store.jobs.synced = self.store.nodes.synced = True
        for cache in self.store.pods.values():
            cache.synced = True

    @property
    def record(self) -> JobRecord:
        record = self.store.jobs.get(JOB.uid)
        assert record is not None
        return record

    @property
    def groups(self) -> list[tuple[str, int]]:
        return [(group.api, group.attempt) for group in self.store.pod_groups_of(self.record)]

    def serve(self, *apis: str) -> "Known":
        self.store.serve(frozenset(apis))
        self.calls.clear()
        return self

    def list_nothing(self, api: str) -> None:
        for cache in self.store.objects_of(api).caches.values():
            cache.begin_list()
            cache.end_list(self.version)

    def event(self, kind: str, obj: dict[str, Any], **metadata: Any) -> None:
        obj["metadata"] |= metadata
        self.store.objects_of(obj["apiVersion"]).caches[""].apply_event(kind, self.versioned(obj))

    def versioned(self, found: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        found["metadata"] = {"uid": "u-1", **found["metadata"], "resourceVersion": str(self.version)}
        return found


@pytest.fixture
def known() -> Known:
    found = Known().serve(KUEUE, VOLCANO)
    for api in (KUEUE, VOLCANO):
        found.list_nothing(api)
    found.calls.clear()
    return found


def test_a_workload_is_its_jobs_and_calls_for_its_pass(known: Known) -> None:
    known.event("ADDED", workload(JOB), uid="w")
    assert known.calls == ["u-1"]
    found = known.store.workload_of(known.record)
    assert found is not None
    assert (found.name, found.queue, found.version) == (workloads.name(JOB), "team-a", str(known.version))
    known.event("DELETED", workload(JOB), uid="w")
    assert known.store.workload_of(known.record) is None
    assert set(known.calls) == {"u-1"}


def test_groups_are_of_all_attempts_and_only_of_apis_that_are_served(known: Known) -> None:
    for attempt in range(2):
        known.event("ADDED", pod_group(JOB, VOLCANO, attempt), uid=f"g-{attempt}")
    known.event("ADDED", pod_group(JOB, COSCHEDULING), uid="elsewhere")
    assert known.groups == [(VOLCANO, 0), (VOLCANO, 1)]
    assert set(known.calls) == {"u-1"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": []},
        {"ownerReferences": None},
        {"ownerReferences": [{"kind": "ResNetBoostJob", "name": JOB.name, "uid": "u-1"}]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": JOB.name, "uid": "u-1", "controller": True}]},
        {"ownerReferences": [{**workload(JOB)["metadata"]["ownerReferences"][0], "uid": "u-0"}]},
        {"namespace": "elsewhere"},
    ],
    ids=[
        "no owner",
        "owners null",
        "an owner that controls nothing",
        "another kind",
        "another uid",
        "another namespace",
    ],
)
@pytest.mark.parametrize("manifest", [workload(JOB), pod_group(JOB, VOLCANO)], ids=["a Workload", "a PodGroup"])
def test_what_only_looks_like_the_jobs_is_ignored(
    known: Known, manifest: dict[str, Any], metadata: dict[str, Any]
) -> None:
    known.event("ADDED", {**manifest, "metadata": {**manifest["metadata"]}}, uid="forged", **metadata)
    assert known.store.workload_of(known.record) is None
    assert known.groups == []


def test_a_forged_workload_of_another_name_does_not_replace_the_jobs(known: Known) -> None:
    known.event("ADDED", workload(JOB, "a-forged"), uid="f")
    assert known.store.workload_of(known.record) is None
    known.event("ADDED", workload(JOB), uid="w")
    found = known.store.workload_of(known.record)
    assert found is not None
    assert found.uid == "w"


@pytest.mark.parametrize("other", [replace(JOB, uid="u-0"), replace(JOB, name="forged")], ids=["uid", "name"])
def test_what_an_earlier_or_another_job_owns_is_not_this_ones(known: Known, other: Job) -> None:
    known.event("ADDED", workload(other), uid="w")
    known.event("ADDED", pod_group(other, VOLCANO), uid="g", name="digits-base-0")
    assert known.store.workload_of(known.record) is None
    assert known.groups == []


@pytest.mark.parametrize(
    "labels", [None, {}, {"resnetboost.io/job-uid": "u-1"}, {"resnetboost.io/attempt": 1}], ids=str
)
def test_a_group_without_the_labels_is_ignored(known: Known, labels: Any) -> None:
    known.event("ADDED", pod_group(JOB, VOLCANO), uid="g", labels=labels)
    known.event("ADDED", pod_group(JOB, VOLCANO), uid="h", name="of-another-name")
    assert known.groups == []
    assert known.calls == []


def test_an_answer_to_a_write_is_known_at_once_and_calls_for_the_next_pass(known: Known) -> None:
    known.store.workloads.apply_response(known.versioned(workload(JOB)))
    known.store.apply_pod_group_response(known.versioned(pod_group(JOB, VOLCANO)))
    assert known.store.workload_of(known.record) is not None
    assert known.groups == [(VOLCANO, 0)]
    assert known.calls == ["u-1", "u-1"]


@pytest.mark.parametrize(
    ("enabled", "wanted"),
    [
        (Capabilities(), {}),
        (Capabilities(kueue_enabled=True), {KUEUE: "workloads"}),
        (Capabilities(gangs_enabled=True), dict.fromkeys(POD_GROUP_APIS, "podgroups")),
    ],
    ids=["nothing", "queues", "gangs"],
)
def test_nothing_is_asked_for_without_the_right_to_use_it(enabled: Capabilities, wanted: dict[str, str]) -> None:
    known = Known(enabled)
    assert known.store.optional_apis == wanted
    assert known.store.discovered == known.store.synced == (not wanted), "an operator without options waits for none"


def test_it_is_synced_only_once_it_knows_what_is_served_and_has_listed_that() -> None:
    known = Known()
    assert not known.store.synced
    known.serve(KUEUE, VOLCANO)
    assert not known.store.synced
    known.list_nothing(KUEUE)
    assert not known.store.synced
    known.list_nothing(VOLCANO)
    assert known.store.synced
    known.store.invalidate()
    assert not known.store.synced, "a new leader lists again"


def test_an_api_counts_from_its_first_list_on_and_then_every_job_is_planned_anew() -> None:
    known = Known()
    assert known.store.capabilities == BOTH
    known.serve(KUEUE, VOLCANO)
    assert not known.store.capabilities.kueue, "a job must not lose its place because its Workload was not read yet"
    known.list_nothing(KUEUE)
    assert known.store.capabilities == replace(BOTH, kueue=True)
    assert known.calls == ["u-1"]
    known.list_nothing(VOLCANO)
    assert known.store.capabilities == replace(BOTH, kueue=True, pod_groups=frozenset({VOLCANO}))
    known.calls.clear()
    known.list_nothing(VOLCANO)
    assert known.calls == [], "a list that shows nothing new calls for nothing"


def test_with_two_namespaces_an_api_counts_once_both_are_listed() -> None:
    known = Known(namespaces=("a", "b")).serve(VOLCANO)
    first, second = known.store.pod_groups[VOLCANO].caches.values()
    first.end_list(1)
    assert not known.store.capabilities.pod_groups
    second.end_list(1)
    assert known.store.capabilities.pod_groups == {VOLCANO}


def test_what_is_not_served_any_more_is_forgotten_and_every_job_is_planned_anew(known: Known) -> None:
    known.event("ADDED", workload(JOB), uid="w")
    known.event("ADDED", pod_group(JOB, VOLCANO), uid="g")
    known.calls.clear()
    known.store.serve(frozenset({VOLCANO}))
    assert known.store.workload_of(known.record) is None
    assert known.groups == [(VOLCANO, 0)]
    assert "u-1" in known.calls
    assert known.store.capabilities == replace(BOTH, pod_groups=frozenset({VOLCANO}))
    assert known.store.synced
    known.store.serve(frozenset({KUEUE, VOLCANO}))
    assert not known.store.synced, "it is back, and must be listed before it counts"
