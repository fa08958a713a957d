"""What the creation of a gang's objects makes of each answer of the API server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from resnetboost_operator import manifests, names
from resnetboost_operator.kube import client
from resnetboost_operator.kube import creation as creations
from resnetboost_operator.kube.creation import PODS_PER_CONNECTION, Creation, Outcome
from resnetboost_operator.kube.jobs import JobRecord
from resnetboost_operator.kube.retry import Backoff
from resnetboost_operator.kube.store import Store
from resnetboost_operator.status import Status
from scriptedserver import Answer, ScriptedServer, refuses, says
from simulation import job

JOB = replace(job(device={"type": "CPU", "count": 3}), uid="u-1")
STAGE = JOB.spec.stages[0]
RECORD = JobRecord(
    uid=JOB.uid, namespace="default", name="digits", version=7, deleting=False, job=JOB, status=Status(), problem=""
)
POD = manifests.pod(JOB, STAGE, 0, 1)
CONFIG = manifests.config_map(JOB, STAGE, 0)
TAKEN = refuses(409, "AlreadyExists", 'pods "digits-base-0-1" already exists')


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.02))


def existing(pod: dict[str, Any], version: int = 9, owner: dict[str, Any] | None = None, **metadata: Any) -> Any:
    """The pod as the API server has it."""
    found = {**pod["metadata"], "uid": f"uid-of-{pod['metadata']['name']}", "resourceVersion": str(version), **metadata}
    if owner is not None:
        found["ownerReferences"] = [{**pod["metadata"]["ownerReferences"][0], **owner}]
    return {**pod, "metadata": found}


def created(wanted: Sequence[dict[str, Any]], *answers: Answer) -> tuple[Outcome, list[str], list[str]]:
    """The outcome, the names of the pods that the store then knows, and the requests."""

    async def play() -> tuple[Outcome, list[str], list[str]]:
        async with ScriptedServer(answers) as server:
            store = Store((), lambda uid: None)
            outcome = await Creation(server.client, store).create(RECORD, wanted, lambda: True)
            return outcome, sorted(pod.name for pod in store.pods_of(RECORD)), server.requests

    return asyncio.run(play())


def test_pods_that_were_created_are_known_before_the_watch_tells_of_them() -> None:
    outcome, known, _ = created([POD], says(existing(POD), 201))
    assert (outcome, known) == (Outcome(created=1), ["digits-base-0-1"])


def test_what_pods_refer_to_is_there_before_the_first_of_them_is_asked_for() -> None:
    pods = [manifests.pod(JOB, STAGE, 0, index) for index in range(3)]
    _, _, requests = created([CONFIG, *pods], says(CONFIG, 201), *(says(existing(pod), 201) for pod in pods))
    assert [request.rpartition("/")[2] for request in requests] == ["configmaps", "pods", "pods", "pods"]


def test_a_pod_of_our_own_from_before_a_crash_is_taken_as_it_is() -> None:
    outcome, known, requests = created([POD], TAKEN, says(existing(POD)))
    assert (outcome, known) == (Outcome(created=1), ["digits-base-0-1"])
    assert requests[1] == "GET /api/v1/namespaces/default/pods/digits-base-0-1"


GOING = "Pod digits-base-0-1 is still going"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(existing(POD, deletionTimestamp="2026-01-01T00:00:00Z"), GOING, id="ours, but going"),
        pytest.param(
            existing(POD, labels={**POD["metadata"]["labels"], names.LABEL_ATTEMPT: "8"}), GOING, id="other attempt"
        ),
        pytest.param(
            existing(POD, owner={"uid": "u-0"}),
            "Pod digits-base-0-1 of an earlier job of this name is still going",
            id="of an earlier job of that name",
        ),
    ],
)
def test_a_name_that_becomes_free_by_itself_is_waited_for(found: Any, words: str) -> None:
    outcome, known, _ = created([POD], TAKEN, says(found))
    assert (outcome, known) == (Outcome(blocked=words), [])


def test_a_name_that_became_free_meanwhile_is_waited_for() -> None:
    outcome, _, _ = created([POD], TAKEN, refuses(404, "NotFound"))
    assert outcome == Outcome(blocked="Pod digits-base-0-1 was still going")


def test_no_pod_finds_the_config_map_of_an_earlier_job() -> None:
    outcome, known, requests = created([CONFIG, POD], TAKEN, says(existing(CONFIG, owner={"uid": "u-0"})))
    assert outcome == Outcome(blocked="ConfigMap digits-base-0 of an earlier job of this name is still going")
    assert known == []
    assert [request.split()[0] for request in requests] == ["POST", "GET"], "no pod was asked for"


async def taken_by_an_earlier_job(request: web.Request) -> web.StreamResponse:
    answer = TAKEN if request.method == "POST" else says(existing(POD, owner={"uid": "u-0"}))
    return await answer(request)


def test_pods_of_an_earlier_job_cost_few_requests() -> None:
    pods = [manifests.pod(JOB, STAGE, 0, index) for index in range(300)]
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
def test_a_name_that_a_stranger_has_is_a_refusal_that_says_what_to_do(found: Any) -> None:
    outcome, known, _ = created([POD], TAKEN, says(found))
    assert outcome.refusal == "Pod digits-base-0-1 exists and is not this job's: delete it, or rename the job"
    assert known == []


def test_after_a_refusal_nothing_more_is_asked_for() -> None:
    pods = [manifests.pod(JOB, STAGE, 0, index) for index in range(3)]
    words = 'configmaps "digits-base-0" is forbidden: exceeded quota'
    outcome, _, requests = created([CONFIG, *pods], refuses(403, "Forbidden", words))
    assert outcome.refusal == words
    assert len(requests) == 1


def test_two_pods_counted_into_a_quota_at_once_are_no_refusal() -> None:
    outcome, known, _ = created([POD], refuses(409, "Conflict", "resourcequotas: modified"), says(existing(POD), 201))
    assert (outcome, known) == (Outcome(created=1), ["digits-base-0-1"])


def test_a_pod_that_has_to_wait_does_not_hold_up_those_of_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creations, "IN_FLIGHT", 1)
    others = manifests.pod(JOB, STAGE, 0, 2)

    async def play() -> list[str]:
        answers = [refuses(429, Retry_After="60"), says(existing(others), 201)]
        async with ScriptedServer(answers) as server, asyncio.timeout(10):
            store = Store((), lambda uid: None)
            creation = Creation(server.client, store)
            waiting = asyncio.create_task(creation.create(RECORD, [POD], lambda: True))
            while not server.requests:
                await asyncio.sleep(0.01)
            await creation.create(RECORD, [others], lambda: True)
            waiting.cancel()
            return [pod.name for pod in store.pods_of(RECORD)]

    assert asyncio.run(play()) == ["digits-base-0-2"]


def test_creation_ends_when_it_is_no_longer_wanted() -> None:
    pods = [manifests.pod(JOB, STAGE, 0, index) for index in range(3)]

    async def play() -> list[str]:
        async with ScriptedServer(says(existing(pod), 201) for pod in pods) as server:
            creation = Creation(server.client, Store((), lambda uid: None))
            await creation.create(RECORD, [CONFIG, *pods], lambda: False)
            return server.requests

    assert asyncio.run(play()) == []
