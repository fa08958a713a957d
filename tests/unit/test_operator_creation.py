"""Creation of a gang's objects: how each answer of the API server is handled."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator.controller import creation_pool
from resnetboost_operator.controller.creation_pool import LEAST_IN_FLIGHT, PODS_PER_CONNECTION, CreationPool
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient import client
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.manifests.config_map import config_map
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed.capabilities import VOLCANO
from support.scheduled import pod_group
from support.scriptedserver import Answer, ScriptedServer, refuses, says
from support.simulation import job

JOB = replace(job(device={"type": "CPU", "count": 3}), uid="u-1")
STAGE = JOB.spec.stages[0]
RECORD = JobRecord(
    uid=JOB.uid, namespace="default", name="digits", version=7, deleting=False, job=JOB, status=Status(), problem=""
)
POD = pod_manifest(JOB, STAGE, 0, 1)
CONFIG = config_map(JOB, STAGE, 0)
TAKEN = refuses(409, "AlreadyExists", 'pods "digits-base-0-1" already exists')


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.02))


def existing(pod: dict[str, Any], version: int = 9, owner: dict[str, Any] | None = None, **metadata: Any) -> Any:
    """The pod as the API server stores it."""
    found = {**pod["metadata"], "uid": f"uid-of-{pod['metadata']['name']}", "resourceVersion": str(version), **metadata}
    if owner is not None:
        found["ownerReferences"] = [{**pod["metadata"]["ownerReferences"][0], **owner}]
    return {**pod, "metadata": found}


class Bed:
    """A creation pool and its store. `wanted`: whether the jobs still need their gangs."""

    def __init__(self, server: ScriptedServer) -> None:
        self.wanted = True
        self.calls: list[str] = []
        self._changed = asyncio.Event()
        self.store = Store((), lambda uid: None)
        self.gangs = CreationPool(server.client, self.store, lambda job: self.wanted, self._call)

    def _call(self, uid: str) -> None:
        self.calls.append(uid)
        self._changed.set()

    async def created(self, manifests: Sequence[dict[str, Any]], record: JobRecord = RECORD) -> None:
        """Wait until no creation of the job is in progress."""
        self.gangs.ensure(record, manifests)
        while self.gangs.busy(record.uid):
            self._changed.clear()
            await self._changed.wait()

    def pods(self, record: JobRecord = RECORD) -> list[str]:
        return sorted(pod.name for pod in self.store.pods_of(record))


def created(wanted: Sequence[dict[str, Any]], *answers: Answer) -> tuple[str, list[str], list[str]]:
    """The refusal, the names of the pods in the store afterwards, and the requests."""

    async def play() -> tuple[str, list[str], list[str]]:
        async with ScriptedServer(answers) as server, asyncio.timeout(60):
            bed = Bed(server)
            await bed.created(wanted)
            assert bed.calls, "the next pass must see what came of it"
            return bed.gangs.obstacle(RECORD.uid), bed.pods(), server.requests

    return asyncio.run(play())


def test_pods_that_were_created_are_known_before_the_watch_tells_of_them() -> None:
    obstacle, known, _ = created([POD], says(existing(POD), 201))
    assert (obstacle, known) == ("", ["digits-base-0-1"])


def test_config_maps_are_created_before_pods() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(3)]
    _, _, requests = created([CONFIG, *pods], says(CONFIG, 201), *(says(existing(pod), 201) for pod in pods))
    assert [request.rpartition("/")[2] for request in requests] == ["configmaps", "pods", "pods", "pods"]


def test_the_group_of_pods_is_there_before_them_and_known_at_once() -> None:
    group = pod_group(JOB, VOLCANO)

    async def play() -> tuple[list[str], list[str]]:
        answers = [TAKEN, says(existing(group)), says(existing(POD), 201)]
        async with ScriptedServer(answers) as server, asyncio.timeout(60):
            bed = Bed(server)
            bed.store.serve(frozenset({VOLCANO}))
            await bed.created([group, POD])
            return server.requests, [found.name for found in bed.store.pod_groups_of(RECORD)]

    requests, known = asyncio.run(play())
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
    assert requests == [f"POST {path}", f"GET {path}/digits-base-0", "POST /api/v1/namespaces/default/pods"]
    assert known == ["digits-base-0"]


def test_our_own_pod_from_before_a_crash_is_adopted() -> None:
    obstacle, known, requests = created([POD], TAKEN, says(existing(POD)))
    assert (obstacle, known) == ("", ["digits-base-0-1"])
    assert requests[1] == "GET /api/v1/namespaces/default/pods/digits-base-0-1"


GOING = "Pod digits-base-0-1 is still being deleted"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(existing(POD, deletionTimestamp="2026-01-01T00:00:00Z"), GOING, id="ours, but going"),
        pytest.param(
            existing(POD, labels={**POD["metadata"]["labels"], names.LABEL_ATTEMPT: "8"}), GOING, id="other attempt"
        ),
        pytest.param(
            existing(POD, owner={"uid": "u-0"}),
            "Pod digits-base-0-1 of an earlier job of this name is still being deleted",
            id="of an earlier job of that name",
        ),
    ],
)
def test_the_name_of_a_terminating_pod_is_waited_for(found: Any, words: str) -> None:
    obstacle, known, _ = created([POD], TAKEN, says(found))
    assert (obstacle, known) == (words, [])


def test_a_name_that_became_free_meanwhile_is_waited_for() -> None:
    obstacle, _, _ = created([POD], TAKEN, refuses(404, "NotFound"))
    assert obstacle == "Pod digits-base-0-1 was still being deleted"


def test_a_config_map_of_an_earlier_job_blocks_the_pods() -> None:
    obstacle, known, requests = created([CONFIG, POD], TAKEN, says(existing(CONFIG, owner={"uid": "u-0"})))
    assert obstacle == "ConfigMap digits-base-0-u-1 of an earlier job of this name is still being deleted"
    assert known == []
    assert [request.split()[0] for request in requests] == ["POST", "GET"], "no pod was asked for"


async def taken_by_an_earlier_job(request: web.Request) -> web.StreamResponse:
    answer = TAKEN if request.method == "POST" else says(existing(POD, owner={"uid": "u-0"}))
    return await answer(request)


def test_pods_of_an_earlier_job_cost_few_requests() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(300)]
    _, _, requests = created(pods, *[taken_by_an_earlier_job] * 600)
    assert len(requests) <= 2 * len(pods) / PODS_PER_CONNECTION


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(existing(POD, ownerReferences=[]), id="nobody's"),
        pytest.param(existing(POD, owner={"kind": "Job"}), id="another kind's"),
        pytest.param(existing(POD, owner={"controller": False}), id="only referring to the job"),
        pytest.param(existing(POD, owner={"name": "other"}), id="another job's"),
    ],
)
def test_a_name_of_a_foreign_object_is_a_refusal_with_a_remedy(found: Any) -> None:
    obstacle, known, _ = created([POD], TAKEN, says(found))
    assert obstacle == "Pod digits-base-0-1 exists and is not this job's: delete it, or rename the job"
    assert known == []


def test_a_refusal_stops_the_creation() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(3)]
    words = 'configmaps "digits-base-0" is forbidden: exceeded quota'
    obstacle, _, requests = created([CONFIG, *pods], refuses(403, "Forbidden", words))
    assert obstacle == words
    assert len(requests) == 1


def test_a_quota_error_per_pod_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(3)]
    answers = [
        refuses(403, "Forbidden", f'pods "digits-base-0-{index}" is forbidden: exceeded quota') for index in range(3)
    ]
    created(pods, *answers)
    assert len([record for record in caplog.records if "exceeded quota" in record.message]) == 1


def test_two_pods_counted_into_a_quota_at_once_are_no_refusal() -> None:
    answers = [refuses(409, "Conflict", "resourcequotas: modified"), says(existing(POD), 201)]
    obstacle, known, _ = created([POD], *answers)
    assert (obstacle, known) == ("", ["digits-base-0-1"])


def of_another_job(name: str) -> tuple[JobRecord, dict[str, Any]]:
    """Another job of that name, and its rank 0."""
    other = replace(JOB, name=name, uid=f"u-{name}")
    return replace(RECORD, uid=other.uid, name=name, job=other), pod_manifest(other, STAGE, 0, 0)


def test_a_waiting_pod_does_not_delay_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_pool, "IN_FLIGHT", 1)
    record, other = of_another_job("other")

    async def play() -> list[str]:
        answers = [refuses(429, Retry_After="60"), says(existing(other), 201)]
        async with ScriptedServer(answers) as server, asyncio.timeout(60):
            bed = Bed(server)
            bed.gangs.ensure(RECORD, [POD])
            while not server.requests:
                await asyncio.sleep(0.01)
            await bed.created([other], record)
            await bed.gangs.close()
            return bed.pods(record)

    assert asyncio.run(play()) == ["other-base-0-0"]


class HangingWebhook:
    """An API server where pods of all jobs but one are blocked by a webhook that never answers."""

    def __init__(self, spared: str) -> None:
        self.spared = spared
        self.hanging: set[str] = set()
        self.most = 0
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = body["metadata"]["name"]
        self.asked.append(name)
        if name.startswith(self.spared):
            return await says(existing(body), 201)(request)
        self.hanging.add(name)
        self.most = max(self.most, len(self.hanging))
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            self.hanging.discard(name)
        raise AssertionError("nobody ever answers")


async def behind(hook: HangingWebhook, large: Sequence[str], script: Callable[[Bed], Awaitable[None]]) -> Bed:
    """Result of the script, with jobs of 1000 pods queued before it, each blocked by the webhook."""
    async with ScriptedServer(itertools.repeat(hook)) as server, asyncio.timeout(60):
        bed = Bed(server)
        for name in large:
            record, pod = of_another_job(name)
            assert record.job is not None
            bed.gangs.ensure(record, [pod, *(pod_manifest(record.job, STAGE, 0, index) for index in range(1, 1000))])
        while len(hook.hanging) < min(LEAST_IN_FLIGHT * len(large), creation_pool.IN_FLIGHT):
            await asyncio.sleep(0.01)
        await script(bed)
        await bed.gangs.close()
        return bed


def test_a_hanging_webhook_does_not_delay_other_jobs() -> None:
    record, pod = of_another_job("spared")
    hook = HangingWebhook("spared")

    async def script(bed: Bed) -> None:
        await bed.created([pod], record)

    bed = asyncio.run(behind(hook, ["large", "huge"], script))
    assert bed.pods(record) == ["spared-base-0-0"]
    assert hook.most == 2 * LEAST_IN_FLIGHT, "nobody gets more before it gets an answer"


def test_many_hanging_jobs_do_not_delay_another_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_pool, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(creation_pool, "IN_FLIGHT", 2 * LEAST_IN_FLIGHT)
    monkeypatch.setattr(creation_pool, "SLOW_IN_FLIGHT", LEAST_IN_FLIGHT + 3)
    record, pod = of_another_job("spared")
    hook = HangingWebhook("spared")
    told: list[str] = []

    async def script(bed: Bed) -> None:
        await bed.created([pod], record)
        told.extend(bed.gangs.obstacle(f"u-job{number}") for number in range(2))

    bed = asyncio.run(behind(hook, [f"job{number}" for number in range(2)], script))
    assert bed.pods(record) == ["spared-base-0-0"]
    assert "no answer for 0.3 s to the creation of Pod job0-base-0-0; does a webhook hang?" in told


def test_creation_of_unwanted_pods_is_cancelled() -> None:
    hook = HangingWebhook("nobody")
    following = replace(RECORD, status=Status(stage="base", attempt=1))
    pods = [pod_manifest(JOB, STAGE, 1, index) for index in range(3)]

    async def play() -> tuple[list[str], list[str]]:
        async with ScriptedServer(itertools.repeat(hook)) as server, asyncio.timeout(60):
            bed = Bed(server)
            bed.gangs.ensure(RECORD, [pod_manifest(JOB, STAGE, 0, index) for index in range(100)])
            await until(lambda: len(hook.hanging) == LEAST_IN_FLIGHT)
            bed.gangs.ensure(following, pods)
            await until(lambda: len(hook.hanging) == 3)
            now = sorted(hook.hanging)
            bed.gangs.forget(RECORD.uid)
            await until(lambda: not hook.hanging)
            assert not bed.gangs.busy(RECORD.uid)
            return now, hook.asked

    now, asked = asyncio.run(play())
    assert now == [f"digits-base-1-{index}" for index in range(3)]
    assert len(asked) == LEAST_IN_FLIGHT + 3


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_repeated_passes_create_nothing_twice() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(3)]

    async def play() -> tuple[list[str], list[str]]:
        asked_again = asyncio.Event()

        async def late(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            await asked_again.wait()
            return await says(existing(body), 201)(request)

        async with ScriptedServer([says(CONFIG, 201), *[late] * 3]) as server, asyncio.timeout(60):
            bed = Bed(server)
            bed.gangs.ensure(RECORD, [CONFIG, *pods])
            await until(lambda: len(server.requests) == 4)
            bed.gangs.ensure(RECORD, [CONFIG, *pods])
            asked_again.set()
            await until(lambda: not bed.gangs.busy(RECORD.uid))
            assert bed.gangs.ensure(RECORD, [CONFIG]).done
            return bed.pods(), server.requests

    known, requests = asyncio.run(play())
    assert (len(known), len(requests)) == (3, 4)


def test_a_pass_is_due_once_the_last_requests_begin_and_pods_that_it_finds_join_them() -> None:
    names_of = {index: pod_manifest(JOB, STAGE, 0, index)["metadata"]["name"] for index in range(3)}

    async def play() -> tuple[list[str], list[str]]:
        answered = asyncio.Event()

        async def late(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            await answered.wait()
            return await says(existing(body), 201)(request)

        def missing(*indexes: int) -> dict[str, Callable[[], dict[str, Any]]]:
            return {names_of[index]: partial(pod_manifest, JOB, STAGE, 0, index) for index in indexes}

        async with ScriptedServer([late] * 3) as server, asyncio.timeout(60):
            bed = Bed(server)
            bed.gangs.ensure(RECORD, [], missing(0, 1))
            assert bed.calls == [RECORD.uid], "no request has an answer yet"
            assert bed.gangs.busy(RECORD.uid) and not bed.gangs.queued(RECORD.uid)
            bed.gangs.ensure(RECORD, [], missing(0, 1, 2))
            await until(lambda: len(server.requests) == 3)
            answered.set()
            await until(lambda: not bed.gangs.busy(RECORD.uid))
            return bed.pods(), server.requests

    known, requests = asyncio.run(play())
    assert (known, len(requests)) == (sorted(names_of.values()), 3)


def test_a_large_gang_gets_more_requests_at_once_with_each_answer() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(300)]
    now, most = 0, 0

    async def slowly(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        body = await request.json()
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        return await says(existing(body), 201)(request)

    _, known, _ = created(pods, *[slowly] * 300)
    assert len(known) == 300
    assert LEAST_IN_FLIGHT < most <= 300 // PODS_PER_CONNECTION


def test_creation_ends_when_it_is_no_longer_wanted() -> None:
    pods = [pod_manifest(JOB, STAGE, 0, index) for index in range(3)]

    async def play() -> list[str]:
        async with ScriptedServer(says(existing(pod), 201) for pod in pods) as server:
            bed = Bed(server)
            bed.wanted = False
            await bed.created([CONFIG, *pods])
            return server.requests

    assert asyncio.run(play()) == []
