"""Leader election: a candidate against a scripted server that holds the Lease."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from resnetboost_operator.controller import leaderelection as leaders
from resnetboost_operator.controller.leaderelection import LeaderElector, LeaseLost
from support.scriptedserver import Answer, ScriptedServer, hangs_up, refuses, says

NOBODY = refuses(404, "NotFound")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RENEW_SECONDS", "RETRY_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(leaders, name, 0.01)


def lease(holder: str, version: int = 1, renewed: str = "2026-01-01T00:00:00.000000Z") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 2}
    return {"metadata": {"name": "lease", "resourceVersion": str(version)}, "spec": spec}


async def acquire_and_keep(leader: LeaderElector) -> str:
    """Acquire the lease and renew it until it is lost; returns the reason."""
    await leader.acquire()
    assert leader.is_leading()
    try:
        await leader.renew()
    except LeaseLost as error:
        return str(error)


def played(script: Callable[[LeaderElector], Awaitable[Any]], *answers: Answer) -> tuple[Any, list[str]]:
    """The script's result, and the methods of the requests."""

    async def play() -> tuple[Any, list[str]]:
        async with ScriptedServer(answers) as server:
            leader = LeaderElector(server.client, "ops", "lease", "me")
            async with asyncio.timeout(60):
                result = await script(leader)
            return result, [request.split()[0] for request in server.requests]

    return asyncio.run(play())


async def acquire(leader: LeaderElector) -> bool:
    await leader.acquire()
    return leader.is_leading()


def test_a_lease_that_does_not_exist_is_created() -> None:
    assert played(acquire, NOBODY, says(lease("me"), 201)) == (True, ["GET", "POST"])


@pytest.mark.parametrize("holder", ["", "me"], ids=["nobody's", "ours of a former life"])
def test_a_free_lease_is_taken(holder: str) -> None:
    assert played(acquire, says(lease(holder)), says(lease("me", 2))) == (True, ["GET", "PUT"])


@pytest.mark.parametrize(
    ("answers", "methods"),
    [
        ((NOBODY, refuses(409, "AlreadyExists")), ["GET", "POST"]),
        ((says(lease("")), refuses(409, "Conflict")), ["GET", "PUT"]),
    ],
    ids=["while creating", "while taking"],
)
def test_a_second_candidate_waits(answers: tuple[Answer, ...], methods: list[str]) -> None:
    found = played(acquire, *answers, says(lease("you", 3)), says(lease("", 4)), says(lease("me", 5)))
    assert found == (True, [*methods, "GET", "GET", "PUT"])


def test_a_missing_right_is_reported_until_granted() -> None:
    async def script(leader: LeaderElector) -> list[str]:
        found = [leader.trouble]
        acquiring = asyncio.create_task(leader.acquire())
        while not acquiring.done():
            await asyncio.sleep(0)
            found += [leader.trouble] if leader.trouble != found[-1] else []
        return found

    found, _ = played(script, refuses(403), refuses(503), says(lease("")), says(lease("me", 2)))
    assert len(found) == 3, "an answer that comes late is no trouble of its own"
    assert (found[0], found[-1]) == ("not requested yet", "")


@pytest.mark.parametrize("trouble", [refuses(403), refuses(503)], ids=["forbidden", "unavailable"])
def test_temporary_errors_are_waited_out(trouble: Answer) -> None:
    assert played(acquire, trouble, trouble, says(lease("")), says(lease("me", 2)))[0] is True


def test_a_lease_taken_by_another_is_lost() -> None:
    why, _ = played(acquire_and_keep, NOBODY, says(lease("me"), 201), refuses(409, "Conflict"), says(lease("you", 9)))
    assert why == "you took the lease"


def test_a_lease_taken_by_another_process_of_our_name_is_lost_too() -> None:
    why, _ = played(acquire_and_keep, NOBODY, says(lease("me"), 201), refuses(409, "Conflict"), says(lease("me", 9)))
    assert why == "me took the lease"


def test_a_renewal_with_a_lost_answer_counts() -> None:
    sent: list[dict[str, Any]] = []

    async def swallow(request: Any) -> Any:
        sent.append(await request.json())
        return await refuses(504)(request)

    async def show(request: Any) -> Any:
        return await says({**sent[0], "metadata": {"resourceVersion": "2"}})(request)

    answers = (NOBODY, says(lease("me"), 201), swallow, refuses(409, "Conflict"), show, says(lease("me", 3)))
    why, methods = played(acquire_and_keep, *answers, refuses(409, "Conflict"), says(lease("you", 9)))
    assert methods == ["GET", "POST", "PUT", "PUT", "GET", "PUT", "PUT", "GET"]
    assert why == "you took the lease"


def test_a_deleted_lease_is_created_again() -> None:
    answers = (NOBODY, says(lease("me"), 201), NOBODY, NOBODY, says(lease("me", 5), 201))
    why, methods = played(acquire_and_keep, *answers, refuses(409, "Conflict"), says(lease("you", 9)))
    assert methods == ["GET", "POST", "PUT", "GET", "POST", "PUT", "GET"]
    assert why == "you took the lease"


def test_a_lease_that_cannot_be_renewed_in_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "DEADLINE_SECONDS", 0.5)
    why, _ = played(acquire_and_keep, NOBODY, says(lease("me"), 201), *[hangs_up()] * 1000)
    assert why == "the lease was not renewed for 0.5 s"


def test_foreign_fields_of_the_lease_are_kept() -> None:
    sent: list[dict[str, Any]] = []

    async def renew(request: Any) -> Any:
        sent.append(await request.json())
        return await (refuses(409, "Conflict") if len(sent) == 1 else says(lease("me", 7)))(request)

    async def show(request: Any) -> Any:
        metadata = {"resourceVersion": "6", "labels": {"helm.sh/chart": "new"}}
        return await says({**created[0], "metadata": metadata})(request)

    created: list[dict[str, Any]] = []

    async def create(request: Any) -> Any:
        created.append(await request.json())
        return await says(lease("me"), 201)(request)

    answers = (NOBODY, create, renew, show, renew, refuses(409, "Conflict"), says(lease("you", 9)))
    assert played(acquire_and_keep, *answers)[0] == "you took the lease"
    assert sent[1]["metadata"]["labels"]["helm.sh/chart"] == "new"
    assert sent[1]["metadata"]["resourceVersion"] == "6"


def of_pod(found: dict[str, Any]) -> dict[str, Any]:
    """The same lease with helm's labels and the name of the holder's pod."""
    found["metadata"] |= {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "resnetboost", "resnetboost.io/holder-pod": "theirs"},
    }
    return found


@pytest.mark.parametrize(
    "answer", [NOBODY, says({"status": {"phase": "Failed"}})], ids=["it was deleted", "it was evicted"]
)
def test_a_holder_whose_pod_is_gone_is_not_waited_for(answer: Answer) -> None:
    written: list[dict[str, Any]] = []

    async def take(request: Any) -> Any:
        written.append(await request.json())
        return await says(lease("me", 2))(request)

    answers = (says(of_pod(lease("you"))), answer, take)
    assert played(acquire, *answers) == (True, ["GET", "GET", "PUT"])
    metadata = written[0]["metadata"]
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm", "what others put there stays"
    assert metadata["annotations"] == {"meta.helm.sh/release-name": "resnetboost"}, "this process is in no pod"


@pytest.mark.parametrize(
    "answer", [says({"status": {"phase": "Running"}}), refuses(403)], ids=["it runs", "nobody may ask"]
)
def test_a_holder_that_may_be_there_is_waited_for(answer: Answer) -> None:
    answers = (says(of_pod(lease("you"))), answer, says(lease("")), says(lease("me", 3)))
    assert played(acquire, *answers) == (True, ["GET", "GET", "GET", "PUT"])


def test_a_released_lease_has_no_holder() -> None:
    written: list[dict[str, Any]] = []

    async def take(request: Any) -> Any:
        written.append(await request.json())
        return await says(lease("", 2))(request)

    async def script(leader: LeaderElector) -> bool:
        await leader.acquire()
        await leader.release()
        return leader.is_leading()

    assert played(script, NOBODY, says(lease("me"), 201), take)[0] is False
    assert written[0]["spec"]["holderIdentity"] == ""
    assert written[0]["metadata"]["resourceVersion"] == "1", "only if nobody has taken it meanwhile"
