"""API client and watch against a scripted server on loopback: errors, broken connections, expired watches."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from resnetboost_operator.kubeclient import client, reflector
from resnetboost_operator.kubeclient.cache import Cache
from resnetboost_operator.kubeclient.client import RetryPolicy
from resnetboost_operator.kubeclient.errors import ApiError, Conflict, NotLeading, Refused, Unavailable
from resnetboost_operator.kubeclient.reflector import Reflector
from resnetboost_operator.kubeclient.resources import CONFIG_MAPS, JOB_STATUS, LEASES, PODS, SERVICES, Verb
from resnetboost_operator.kubeclient.retry import Backoff
from support.scriptedserver import Answer, ScriptedServer, hangs_up, refuses, says, streams

TWICE = RetryPolicy(tries=2, timeout_seconds=5.0)
Script = Callable[[ScriptedServer], Awaitable[Any]]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.02))
    monkeypatch.setattr(reflector, "BACKOFF", Backoff(0.01, 0.02))


def played(script: Script, *answers: Answer) -> tuple[Any, ScriptedServer]:
    """Result or exception of the script when the server gives these answers."""

    async def play() -> tuple[Any, ScriptedServer]:
        async with ScriptedServer(answers) as server:
            try:
                return await script(server), server
            except ApiError as error:
                return error, server

    return asyncio.run(play())


async def create(server: ScriptedServer) -> bytes:
    return await server.client.request("create", PODS, "here", body={"kind": "Pod"}, retries=TWICE)


def counted(server: ScriptedServer, verb: str, resource: str, code: str) -> float | None:
    labels = {"verb": verb, "resource": resource, "code": code}
    return server.metrics.registry.get_sample_value("resnetboost_operator_api_requests_total", labels)


@pytest.mark.parametrize(
    "mood",
    [refuses(429), refuses(500), refuses(503), hangs_up(), refuses(409, "Conflict")],
    ids=["too many requests", "internal error", "unavailable", "no answer", "quota contention"],
)
def test_temporary_errors_are_retried(mood: Answer) -> None:
    answer, server = played(create, mood, says({"done": True}))
    assert answer == b'{"done": true}'
    assert server.requests == ["POST /api/v1/namespaces/here/pods"] * 2


def test_retries_are_limited() -> None:
    answer, server = played(create, refuses(503), refuses(503), says({}))
    assert isinstance(answer, Unavailable)
    assert len(server.requests) == 2


def test_retry_after_is_obeyed() -> None:
    async def timed(server: ScriptedServer) -> float:
        began = asyncio.get_running_loop().time()
        await create(server)
        return asyncio.get_running_loop().time() - began

    waited, _ = played(timed, refuses(429, Retry_After="1"), says({}))
    assert waited >= 1.0


@pytest.mark.parametrize("selector", [None, "", " "], ids=["none", "empty", "blank"])
def test_a_delete_without_a_selector_is_refused(selector: str | None) -> None:
    query = {} if selector is None else {"labelSelector": selector}

    async def sweep(server: ScriptedServer) -> None:
        for resource in (PODS, CONFIG_MAPS, SERVICES):
            with pytest.raises(ValueError, match="without a label selector"):
                await server.client.request("deletecollection", resource, "here", query=query)

    assert played(sweep)[1].requests == []


@pytest.mark.parametrize("verb", ["delete", "patch", "get"])
def test_a_request_without_a_name_never_goes_to_the_collection(verb: Verb) -> None:
    async def nameless(server: ScriptedServer) -> None:
        with pytest.raises(ValueError, match="without a name"):
            await server.client.request(verb, PODS, "here", "")

    assert played(nameless)[1].requests == []


@pytest.mark.parametrize("code", [400, 403, 422])
def test_a_refusal_is_not_repeated_and_keeps_the_servers_words(code: int) -> None:
    answer, server = played(create, refuses(code, message="exceeded quota: gpus"))
    assert isinstance(answer, Refused)
    assert answer.words == "exceeded quota: gpus"
    assert len(server.requests) == 1


def test_a_conflict_of_versions_is_not_repeated() -> None:
    async def update(server: ScriptedServer) -> bytes:
        return await server.client.request("update", JOB_STATUS, "here", "digits", body={}, retries=TWICE)

    answer, server = played(update, refuses(409, "Conflict"))
    assert isinstance(answer, Conflict)
    assert server.requests == ["PUT /apis/resnetboost.io/v1alpha1/namespaces/here/resnetboostjobs/digits/status"]


def test_a_standby_writes_only_its_lease() -> None:
    async def write(server: ScriptedServer) -> None:
        server.client.may_write = lambda: False
        await server.client.request("get", PODS, "here", "a")
        await server.client.request("create", LEASES, "here", body={})
        await create(server)

    answer, server = played(write, says({}), says({}), says({}))
    assert isinstance(answer, NotLeading)
    assert [request.split()[0] for request in server.requests] == ["GET", "POST"]


def test_losing_the_lease_ends_the_retries() -> None:
    async def write(server: ScriptedServer) -> bytes:
        server.client.may_write = lambda: not server.requests
        return await create(server)

    answer, server = played(write, refuses(503), says({}))
    assert isinstance(answer, NotLeading)
    assert len(server.requests) == 1


def test_requests_without_a_right_are_not_sent() -> None:
    async def ask(server: ScriptedServer) -> None:
        with pytest.raises(ValueError, match="no right to update on pods"):
            await server.client.request("update", PODS, "here", "a", body={})

    assert played(ask)[1].requests == []


def test_requests_are_counted_by_verb_resource_and_code() -> None:
    _, server = played(create, hangs_up(), says({}, 201))
    assert counted(server, "create", "pods", "error") == 1
    assert counted(server, "create", "pods", "201") == 1


# The watch


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": name, "name": name, "resourceVersion": str(version)}}


def page(version: int, *names: str, more: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), "continue": more}
    return says({"metadata": metadata, "items": [thing(name, version) for name in names]})


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": thing(name, version)}


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def watched(wanted: set[str], *answers: Answer) -> ScriptedServer:
    """The server, after the watch has cached exactly the wanted names."""

    async def script(server: ScriptedServer) -> None:
        cache: Cache[str] = Cache(lambda obj: str(obj["metadata"]["name"]), lambda before, after: None)
        await until_known(Reflector(server.client, PODS, cache, labels="a=b"), cache, wanted)

    result, server = played(script, *answers)
    assert result is None
    return server


async def until_known(watch: Reflector, cache: Cache[str], wanted: set[str]) -> None:
    """Run the watch until exactly these names are cached."""
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while not cache.synced or set(cache) != wanted:
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def queries(server: ScriptedServer, word: str) -> list[str]:
    return [request for request in server.requests if word in request]


def test_a_list_in_pages_and_then_a_watch_from_its_version() -> None:
    server = watched({"a", "b", "c"}, page(7, "a", more="next"), page(7, "b"), streams(event("ADDED", "c", 8)))
    first, second, third = server.requests
    assert first == "GET /api/v1/pods?labelSelector=a%3Db&limit=500"
    assert second.endswith("&continue=next")
    assert "resourceVersion=7" in third
    assert "allowWatchBookmarks=true" in third


@pytest.mark.parametrize(
    "end",
    [streams(event("ADDED", "b", 8)), streams({"type": "BOOKMARK", "object": thing("", 8)})],
    ids=["after an event", "after a bookmark"],
)
def test_an_ended_watch_resumes_at_its_version(end: Answer) -> None:
    server = watched({"a", "z"}, page(7, "a"), end, streams(event("DELETED", "b", 9), event("ADDED", "z", 10)))
    assert len(queries(server, "limit=")) == 1
    assert "resourceVersion=8" in queries(server, "watch=true")[1]


@pytest.mark.parametrize(
    "end", [streams(GONE), refuses(410, "Expired")], ids=["told in the stream", "told instead of it"]
)
def test_an_expired_version_relists_and_removes_missing_objects(end: Answer) -> None:
    server = watched({"b"}, page(7, "a"), end, page(20, "b"), streams())
    assert len(queries(server, "limit=")) == 2


def test_a_problem_ends_when_the_watch_is_open_again() -> None:
    async def silence(request: web.Request) -> web.StreamResponse:
        opened = web.StreamResponse()
        await opened.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        return opened

    async def script(server: ScriptedServer) -> None:
        found = Reflector(server.client, PODS, Cache(dict, lambda before, after: None))
        task = asyncio.create_task(found.run())
        async with asyncio.timeout(60):
            for wanted in (True, False):
                while bool(found.trouble) is not wanted or "not listed" in found.trouble:
                    await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    result, server = played(script, page(7, "a"), *([refuses(503)] * 10), silence)
    assert result is None
    assert len(server.requests) == 12


def test_a_watch_that_starts_over_lists_what_it_may_have_missed() -> None:
    async def script(server: ScriptedServer) -> None:
        cache: Cache[str] = Cache(lambda obj: str(obj["metadata"]["name"]), lambda before, after: None)
        pods = Reflector(server.client, PODS, cache)
        await until_known(pods, cache, {"a"})
        pods.reset()
        await until_known(pods, cache, {"b"})

    pages = iter([page(7, "a"), page(20, "b")])

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (streams() if "watch" in request.query else next(pages))(request)

    result, server = played(script, *[answer] * 100)
    assert result is None
    assert len(queries(server, "limit=")) == 2


@pytest.mark.parametrize(
    "trouble",
    [hangs_up(), refuses(503), refuses(403), says("this is no API server"), streams({"no": "event"})],
    ids=["no answer", "unavailable", "forbidden", "a page", "nonsense"],
)
def test_no_error_ends_the_watch_loop(trouble: Answer) -> None:
    server = watched({"a", "b"}, page(7, "a"), trouble, trouble, streams(event("ADDED", "b", 8)))
    assert len(queries(server, "limit=")) == 1


def test_the_list_is_retried_until_it_succeeds() -> None:
    server = watched({"a"}, refuses(403), refuses(403), says([]), page(7, "a"), streams())
    assert len(queries(server, "limit=")) == 4
