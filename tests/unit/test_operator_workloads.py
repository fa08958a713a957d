"""How a job's Workload is written, and what is looked up for it, against a server that plays the API server."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from resnetboost_operator.controller import kueue_lookups, workload_writer, workqueue
from resnetboost_operator.controller.events import EventRecorder
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.kueue_lookups import KueueLookups
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workload_writer import WorkloadWriter
from resnetboost_operator.kubeclient.errors import Conflict, NotLeading
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.observed import ownership
from resnetboost_operator.observed.capabilities import KUEUE, Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.planning.actions import WorkloadWrite
from resnetboost_operator.scheduling.kueue import workload as workloads
from support.scheduled import admission, workload
from support.scriptedserver import Answer, ScriptedServer, refuses, says
from support.simulation import job

JOB = replace(job(device={"type": "CPU", "count": 2}), uid="u-1", queue="team-a")
NAME = workloads.name(JOB)
PATH = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
CREATE = WorkloadWrite("create", NAME, workload(JOB))
PATCH = WorkloadWrite("patch", NAME, {"metadata": {"uid": "w", "resourceVersion": "7"}, "spec": {"queueName": "b"}})
PATCH_STATUS = WorkloadWrite("patch-status", NAME, {"metadata": {"uid": "w"}, "status": {"admission": None}})
DELETE = WorkloadWrite("delete", NAME, {"metadata": {"uid": "w"}})
FLAVOR = {"metadata": {"name": "fast"}, "spec": {"nodeLabels": {"example.com/chip": "fast"}}}


class Bed:
    """A store, a writer and lookups. `answers` are by 'METHOD path'; the last of several is repeated."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[str] = []
        self.bodies: list[Any] = []
        self.calls: list[str] = []

    def answer(self, request: str, *answers: Answer) -> None:
        self.answers[request] = list(answers)

    def connect(self, server: ScriptedServer) -> None:
        self.server = server
        self.store = Store((), self.calls.append, enabled=Capabilities(kueue_enabled=True))
        metadata = {"name": JOB.name, "namespace": "default", "uid": "u-1", "resourceVersion": "1"}
        self.store.jobs.apply_event("ADDED", {"metadata": metadata})
        self.store.serve(frozenset({KUEUE}))
        self.store.workloads.caches[""].end_list(5)
        self.recorder = EventRecorder(server.client, "me")
        self.writer = WorkloadWriter(server.client, self.store, self.recorder)
        self.lookups = KueueLookups(server.client, self.store)
        self.calls.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        wanted = f"{request.method} {request.path}"
        body = json.loads(await request.read() or b"null")
        if request.path.endswith("/events"):
            return await says(body, 201)(request)
        self.requests.append(wanted)
        self.bodies.append(body)
        answers = self.answers.get(wanted, [refuses(404, "NotFound")])
        return await (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    @property
    def record(self) -> JobRecord:
        record = self.store.jobs.get("u-1")
        assert record is not None
        return record

    async def write(self, *writes: WorkloadWrite) -> float | None:
        return await self.writer.write(self.record, writes)


def played(script: Callable[[Bed], Awaitable[None]]) -> Bed:
    async def play() -> Bed:
        bed = Bed()

        async with ScriptedServer(itertools.repeat(bed.handle)) as server, asyncio.timeout(20):
            bed.connect(server)
            await script(bed)
            await bed.recorder.close(5.0)
        return bed

    return asyncio.run(play())


def stored(version: int = 8, name: str = "", **status: Any) -> dict[str, Any]:
    """The Workload as the API server has it."""
    found = workload(JOB, name, **status)
    found["metadata"] |= {"uid": "w", "resourceVersion": str(version)}
    return found


def test_each_kind_of_write_is_its_request_with_its_precondition() -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", says(stored(), 201))
        bed.answer(f"PATCH {PATH}/{NAME}", says(stored(9)))
        bed.answer(f"PATCH {PATH}/{NAME}/status", says(stored(10)))
        bed.answer(f"DELETE {PATH}/{NAME}", says({"kind": "Status", "status": "Success"}))
        for write in (CREATE, PATCH, PATCH_STATUS, DELETE):
            assert await bed.write(write) is None

    bed = played(script)
    assert bed.requests == [
        f"POST {PATH}",
        f"PATCH {PATH}/{NAME}",
        f"PATCH {PATH}/{NAME}/status",
        f"DELETE {PATH}/{NAME}",
    ]
    assert bed.bodies[:3] == [CREATE.body, PATCH.body, PATCH_STATUS.body]
    assert bed.bodies[3] == {"preconditions": {"uid": "w"}, "propagationPolicy": "Background"}


def test_what_was_written_is_known_at_once_and_calls_for_the_next_plan() -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", says(stored(), 201))
        await bed.write(CREATE)
        found = bed.store.workload_of(bed.record)
        assert found is not None
        assert (found.uid, found.version, bed.calls) == ("w", "8", ["u-1"])

    played(script)


@pytest.mark.parametrize(
    "answer", [refuses(409, "Conflict"), refuses(404, "NotFound")], ids=["it has changed", "it is gone"]
)
@pytest.mark.parametrize("write", [PATCH, PATCH_STATUS], ids=["patch", "status"])
def test_what_was_decided_for_another_version_is_decided_anew(write: WorkloadWrite, answer: Answer) -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"PATCH {PATH}/{NAME}" + ("/status" if write is PATCH_STATUS else ""), answer)
        with pytest.raises(Conflict):
            await bed.write(write)
        assert bed.writer.obstacle("u-1") == ""

    assert len(played(script).requests) == 1


def test_who_does_not_lead_writes_no_workload() -> None:
    async def script(bed: Bed) -> None:
        bed.server.client.may_write = lambda: False
        for write in (CREATE, PATCH, PATCH_STATUS, DELETE):
            with pytest.raises(NotLeading):
                await bed.write(write)

    assert played(script).requests == []


@pytest.mark.parametrize(
    "answer",
    [
        refuses(403, "Forbidden", "workloads.kueue.x-k8s.io is forbidden: no such right"),
        refuses(422, "Invalid", "Workload NAME is invalid: spec.queueName: no"),
    ],
    ids=["forbidden", "invalid"],
)
def test_a_refusal_is_an_obstacle_and_is_tried_again_only_after_a_while(answer: Answer) -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", answer)
        wait = await bed.write(CREATE)
        assert wait is not None
        assert wait > 0
        assert "no" in bed.writer.obstacle("u-1")
        for _ in range(3):
            again = await bed.write(CREATE)
            assert again is not None
            assert 0 < again <= wait
        assert len(bed.requests) == 1

    played(script)


def test_a_webhook_that_hangs_leaves_passes_to_other_jobs() -> None:
    async def script(bed: Bed) -> None:
        released = asyncio.Event()

        async def hangs(request: web.Request) -> web.StreamResponse:
            await released.wait()
            return await refuses(500)(request)

        bed.answer(f"POST {PATH}", hangs)
        writes = [asyncio.create_task(bed.write(CREATE)) for _ in range(workqueue.LIMIT)]
        done, hanging = await asyncio.wait(writes, timeout=2)
        waits = [task.result() for task in done]
        assert waits, "some passes are left for jobs that need nothing of Kueue"
        assert all(wait is not None and wait > 0 for wait in waits)
        released.set()
        await asyncio.gather(*hanging)
        bed.answer(f"POST {PATH}", says(stored(), 201))
        bed.writer.forget("u-1")
        assert await bed.write(CREATE) is None, "afterwards all are written again"

    played(script)


def test_a_refusal_is_forgotten_once_the_write_succeeds_or_is_not_wanted_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload_writer, "REFUSED", Backoff(0.0, 0.0))

    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", refuses(403), refuses(403), says(stored(), 201))
        await bed.write(CREATE)
        assert bed.writer.obstacle("u-1") == "no"
        assert await bed.write() is None
        assert bed.writer.obstacle("u-1") == ""
        await bed.write(CREATE)
        assert bed.writer.obstacle("u-1") == "no"
        assert await bed.write(CREATE) is None
        assert bed.writer.obstacle("u-1") == ""

    played(script)


def test_a_refused_patch_is_no_reason_not_to_delete() -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"PATCH {PATH}/{NAME}", refuses(403))
        bed.answer(f"DELETE {PATH}/{NAME}", says({"kind": "Status"}))
        assert await bed.write(PATCH) is not None
        assert bed.writer.obstacle("u-1") == "", "the pods of a job with quota are let in all the same"
        assert await bed.write(DELETE) is None

    assert [request.split()[0] for request in played(script).requests] == ["PATCH", "DELETE"]


@pytest.mark.parametrize("write", [CREATE, PATCH_STATUS], ids=["create", "status"])
def test_a_webhook_that_is_down_holds_up_no_pass_and_is_shown(
    write: WorkloadWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnetboost_operator.kubeclient.client.BACKOFF", Backoff(0.0, 0.0))

    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", refuses(500))
        bed.answer(f"PATCH {PATH}/{NAME}/status", refuses(500))
        wait = await bed.write(write)
        assert wait is not None
        assert wait > 0
        assert bool(bed.writer.obstacle("u-1")) == (write is CREATE)

    played(script)


def test_the_workload_of_a_creation_before_a_crash_is_found() -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"POST {PATH}", refuses(409, "AlreadyExists"))
        bed.answer(f"GET {PATH}/{NAME}", says(stored()))
        assert await bed.write(CREATE) is None
        assert bed.store.workload_of(bed.record) is not None
        assert bed.calls == ["u-1"]

    played(script)


@pytest.mark.parametrize(
    "metadata", [{"ownerReferences": []}, {"labels": {}, "resourceVersion": "3"}], ids=["another's", "not selected"]
)
def test_a_workload_in_the_way_is_an_obstacle(metadata: dict[str, Any]) -> None:
    async def script(bed: Bed) -> None:
        found = stored()
        found["metadata"] |= metadata
        bed.answer(f"POST {PATH}", refuses(409, "AlreadyExists"))
        bed.answer(f"GET {PATH}/{NAME}", says(found))
        assert await bed.write(CREATE) is not None
        assert "exists and is not this job's" in bed.writer.obstacle("u-1")

    played(script)


FLAVORS = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
CLASSES = "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses"


def admitted(*flavors: str) -> Any:
    return ownership.workload(stored(admission=admission(*flavors)))


def test_flavors_and_priority_are_asked_for_by_name_and_remembered() -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"GET {FLAVORS}/fast", says(FLAVOR))
        bed.answer(f"GET {CLASSES}/high", says({"metadata": {"name": "high"}, "value": 100}))
        wanted = replace(JOB, queue_priority="high")
        for _ in range(2):
            found = await bed.lookups.find(wanted, admitted("fast"))
            assert found.flavors == {"fast": Flavor({"example.com/chip": "fast"})}
            assert (found.priority, found.retry_seconds) == (100, None)

    assert sorted(played(script).requests) == [f"GET {FLAVORS}/fast", f"GET {CLASSES}/high"]


def test_the_priority_of_the_pods_is_that_of_the_queue_without_a_label() -> None:
    async def script(bed: Bed) -> None:
        bed.answer("GET /apis/scheduling.k8s.io/v1/priorityclasses/low", says({"value": -5}))
        spec = replace(JOB.spec, scheduling=replace(JOB.spec.scheduling, priority_class_name="low"))
        assert (await bed.lookups.find(replace(JOB, spec=spec), None)).priority == -5

    played(script)


def test_what_is_missing_is_looked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(bed: Bed) -> None:
        bed.answer(f"GET {FLAVORS}/fast", refuses(404, "NotFound"), says(FLAVOR))
        found = await bed.lookups.find(JOB, admitted("fast"))
        assert (found.flavors, found.retry_seconds) == ({}, kueue_lookups.MISSING_SECONDS)
        assert (await bed.lookups.find(JOB, admitted("fast"))).flavors == {}
        assert len(bed.requests) == 1, "not in every pass"

    async def soon(bed: Bed) -> None:
        bed.answer(f"GET {FLAVORS}/fast", refuses(404, "NotFound"), says(FLAVOR))
        await bed.lookups.find(JOB, admitted("fast"))
        found = await bed.lookups.find(JOB, admitted("fast"))
        assert found.flavors.keys() == {"fast"}
        assert found.retry_seconds is None

    played(script)
    monkeypatch.setattr(kueue_lookups, "MISSING_SECONDS", 0.0)
    played(soon)


def test_what_was_known_stays_through_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue_lookups, "KNOWN_SECONDS", 0.0)

    async def script(bed: Bed) -> None:
        bed.answer(f"GET {FLAVORS}/fast", says(FLAVOR), refuses(403), refuses(404, "NotFound"))
        for _ in range(3):
            found = await bed.lookups.find(JOB, admitted("fast"))
            assert found.flavors.keys() == {"fast"}
        assert len(bed.requests) == 2, "after an error not in every pass"

    played(script)


def test_nothing_is_looked_up_for_a_job_without_a_queue_or_a_cluster_without_kueue() -> None:
    async def script(bed: Bed) -> None:
        wanted = replace(JOB, queue_priority="high")
        await bed.lookups.find(replace(wanted, queue=""), None)
        bed.store.serve(frozenset())
        await bed.lookups.find(wanted, admitted("fast"))

    assert played(script).requests == []
