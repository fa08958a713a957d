"""Reconciliation of one job against a scripted API server that refuses, conflicts or fails."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from aiohttp import web

from resnetboost_api.status import Condition, Progress, Status
from resnetboost_operator import progress_client
from resnetboost_operator.controller import creation_pool
from resnetboost_operator.controller import reconciler as reconcilers
from resnetboost_operator.controller.kueue_lookups import KueueLookups
from resnetboost_operator.controller.launcher_links import LauncherLinks
from resnetboost_operator.controller.progress_poller import ProgressPoller
from resnetboost_operator.controller.reconciler import Reconciler
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.writer import Cluster
from resnetboost_operator.job import parse_job
from resnetboost_operator.kubeclient.errors import Conflict
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed import pods
from resnetboost_operator.planning.actions import Plan
from resnetboost_operator.validation import schema
from support.scriptedserver import Answer, ScriptedServer, refuses, says

SPEC = {
    "device": {"type": "CPU", "count": 1},
    "model": {"name": "resnet20", "numClasses": 10},
    "dataset": {"name": "digits"},
    "stages": [{"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8}],
}
METADATA = {"name": "digits", "namespace": "default", "uid": "u-1", "generation": 1}
OBJECT = schema.defaulted(
    {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "metadata": METADATA, "spec": SPEC}
)
JOB = parse_job(OBJECT)
POD = pod_manifest(JOB, JOB.spec.stages[0], 0, 0)
EARLIER = "ConfigMap digits-base-0-u-1 of an earlier job of this name is still being deleted"


class Bed:
    """A reconciler of one job, and a scripted API server.

    `status_answers` answer status writes before they succeed; `earlier`: objects of an earlier job take all names.
    """

    def __init__(self) -> None:
        self.version = 100
        self.requests: list[str] = []
        self.statuses: list[dict[str, Any]] = []
        self.deletions: list[dict[str, Any]] = []
        self.status_answers: list[Answer] = []
        self.pod_answer: Answer | None = None
        self.earlier = False

    def connect(self, server: ScriptedServer) -> None:
        self.metrics = server.metrics
        self.store = Store((), lambda uid: None)
        self.polled = asyncio.Event()
        self.polling = ProgressPoller(lambda uid: self.polled.set())
        self.called = asyncio.Event()
        self.links = LauncherLinks(b"key", lambda uid: self.called.set())
        self.cluster = Cluster(server.client, self.store, "me", lambda uid: self.called.set(), self.links.token)
        lookups = KueueLookups(server.client, self.store)
        self.reconciler = Reconciler(self.store, self.cluster, lookups, self.polling, self.links, server.metrics)
        self.store.jobs.apply_event("ADDED", self.stored(OBJECT))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        return await self._answer(request, json.loads(await request.read() or b"{}"))(request)

    def _answer(self, request: web.Request, body: dict[str, Any]) -> Answer:
        if request.path.endswith("/status"):
            self.statuses.append(body["status"])
            return self.status_answers.pop(0) if self.status_answers else says(self.stored(OBJECT | body))
        if request.method == "DELETE":
            self.deletions.append(body)
            return refuses(409, "Conflict")
        if self.pod_answer is not None and request.path.endswith("/pods"):
            return self.pod_answer
        if not self.earlier or request.path.endswith("/events"):
            return says(self.stored(body), 201)
        if request.method == "POST":
            return refuses(409, "AlreadyExists")
        owner = {**POD["metadata"]["ownerReferences"][0], "uid": "u-0"}
        return says(self.stored({"metadata": {"ownerReferences": [owner]}}))

    def stored(self, body: dict[str, Any]) -> dict[str, Any]:
        """The object as the API server stores it then."""
        self.version += 1
        new = {"uid": f"uid-{self.version}"} | body["metadata"] | {"resourceVersion": str(self.version)}
        return {**body, "metadata": new}

    @property
    def running(self) -> str:
        """Message of the condition Running in the last status written."""
        found = {one["type"]: one["message"] for one in self.statuses[-1]["conditions"]}
        return str(found["Running"])

    def posts(self, plural: str) -> int:
        return sum(request.startswith("POST") and request.endswith(plural) for request in self.requests)

    async def passed(self) -> float:
        """Seconds until the next pass after all creations have ended; infinite if none is due."""
        wait = await self.reconciler.reconcile("u-1")
        if self.cluster.creates("u-1"):
            while self.cluster.creates("u-1"):
                self.called.clear()
                await self.called.wait()
            return 0.0  # a pass was enqueued
        return float("inf") if wait is None else wait


def played(script: Callable[[Bed], Awaitable[None]]) -> Bed:
    """The bed after the script has run."""

    async def play() -> Bed:
        bed = Bed()
        async with ScriptedServer(itertools.repeat(bed.answer)) as server:
            bed.connect(server)
            async with asyncio.timeout(60):
                await script(bed)
            bed.polling.close()
            await bed.cluster.close(1.0)
        return bed

    return asyncio.run(play())


@pytest.fixture(autouse=True)
def every_status_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcilers, "SOFT_WRITE_SECONDS", 0.0)


def test_leftovers_of_an_earlier_job_are_reported_and_retried_later() -> None:
    async def script(bed: Bed) -> None:
        bed.earlier = True
        assert await bed.passed() == 0.0, "to tell people"
        assert await bed.passed() > 0.0

    bed = played(script)
    assert EARLIER in bed.running
    assert (bed.posts("configmaps"), bed.posts("pods")) == (1, 0)


INVALID = (
    'Pod "digits-base-0-0" is invalid: spec.containers[0].resources.requests: must be less than or equal to cpu limit'
)
POLICY = 'pods "digits-base-0-0" is forbidden: ValidatingAdmissionPolicy "p" with binding "b" denied request: no'


@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        (refuses(422, "Invalid", INVALID), "Failed"),
        (refuses(422, "Invalid", POLICY), "Starting"),
        (refuses(403, "Forbidden", "exceeded quota: compute"), "Starting"),
    ],
    ids=["an invalid pod", "a policy's no", "a quota"],
)
def test_only_a_permanent_refusal_fails_the_job_at_once(answer: Answer, phase: str) -> None:
    async def script(bed: Bed) -> None:
        bed.pod_answer = answer
        assert await bed.passed() == 0.0, "to tell people"
        await bed.passed()

    bed = played(script)
    assert (bed.statuses[-1]["phase"], bed.posts("pods")) == (phase, 1)
    if phase == "Failed":
        assert INVALID in bed.running


def test_a_refusal_is_cleared_when_its_cause_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_pool, "BLOCKED", Backoff(0.0, 0.0))

    async def script(bed: Bed) -> None:
        bed.earlier = True
        await bed.passed()
        await bed.passed()
        assert EARLIER in bed.running
        bed.earlier = False
        await bed.passed()
        await bed.passed()

    bed = played(script)
    assert EARLIER not in bed.running
    assert bed.posts("pods") == 1


def test_a_refusal_is_forgotten_when_nothing_is_left_to_create() -> None:
    async def script(bed: Bed) -> None:
        bed.earlier = True
        await bed.passed()
        await bed.passed()
        assert EARLIER in bed.running
        bed.store.pods[""].apply_event("ADDED", bed.stored(POD))
        assert await bed.passed() == 0.0, "to tell people"
        assert await bed.passed() > 0.0

    assert EARLIER not in played(script).running


def test_repeated_conflicts_are_retried_with_back_off() -> None:
    waits: list[float] = []

    async def script(bed: Bed) -> None:
        bed.status_answers = [refuses(409, "Conflict")] * 6
        waits.extend([await bed.passed() for _ in range(6)])
        await bed.passed()
        bed.status_answers = [refuses(409, "Conflict")]
        bed.store.pods[""].apply_event("MODIFIED", bed.stored(POD))
        waits.append(await bed.passed())

    played(script)
    assert waits[5] >= 16.0
    assert waits[0] <= 1.0
    assert waits[6] <= 1.0


def test_a_refused_status_is_written_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tells(address: str) -> Progress:
        return Progress(stage="base", attempt=0, step=7, heartbeat=1)

    monkeypatch.setattr(progress_client, "progress", tells)

    async def script(bed: Bed) -> None:
        await bed.passed()
        bed.polling.follow("u-1", pods.view(POD), 0.0)
        await bed.polled.wait()
        bed.status_answers = [refuses(422, "Invalid", "status.progress.step: Invalid value")]
        await bed.passed()

    refused, written = played(script).statuses[-2:]
    assert refused["progress"]["step"] == 7
    assert "progress" not in written


def test_an_admission_is_counted_once_it_is_written_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's answers are given by the plan here; what makes it plan so is tested elsewhere."""

    def decided(*ignored: object) -> Plan:
        return Plan(wanted)

    def status(admitted: Literal["True", "False"], seconds: float) -> Status:
        found = Condition("Admitted", admitted, "Any", "", pods.timestamp(1e9 + seconds))
        return Status(phase="Queued" if admitted == "False" else "Starting", stage="base", conditions=(found,))

    wanted = status("False", 0)
    monkeypatch.setattr(reconcilers, "plan", decided)

    async def script(bed: Bed) -> None:
        nonlocal wanted
        await bed.passed()
        wanted = status("True", 40)
        bed.status_answers = [refuses(409, "Conflict")]
        await bed.passed()
        assert b"resnetboost_operator_admissions_total 0.0" in bed.metrics.text()
        await bed.passed()
        await bed.passed()

    text = played(script).metrics.text()
    assert b"resnetboost_operator_admissions_total 1.0" in text
    assert b"resnetboost_operator_admission_wait_seconds_sum 40.0" in text


def test_a_finished_job_is_deleted_only_at_the_observed_version() -> None:
    async def script(bed: Bed) -> None:
        record = bed.store.jobs.get("u-1")
        assert record is not None
        with pytest.raises(Conflict):
            await bed.cluster.expire(record)

    (deletion,) = played(script).deletions
    assert deletion["preconditions"] == {"uid": "u-1", "resourceVersion": "101"}


def test_pods_that_come_while_a_status_is_written_are_not_created_again() -> None:
    async def script(bed: Bed) -> None:
        async def late(request: web.Request) -> web.StreamResponse:
            bed.store.pods[""].apply_event("ADDED", bed.stored(POD))
            return await says(bed.stored(OBJECT | {"status": bed.statuses[-1]}))(request)

        bed.status_answers = [late]
        await bed.passed()

    assert played(script).posts("pods") == 0
