"""Polling a rank's /progress: how each answer, or none, is classified."""

import asyncio
import errno
import gzip
import json
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Awaitable, Callable

import pytest

from resnetboost_api.status import Progress
from resnetboost_operator import progress_client
from resnetboost_operator.controller.progress_poller import ProgressPoller
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed import pods as podviews
from resnetboost_operator.observed.pods import PodView
from support.simulation import job

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BODY = json.dumps({"stage": "base", "attempt": 0, "step": 7}).encode()
ANSWER = b"HTTP/1.0 200 OK\r\n\r\n" + BODY


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_client, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(progress_client, "CONNECT_SECONDS", 0.1)


def asked(talk: Talk, host: str = "127.0.0.1") -> Progress | None:
    """Result of polling a rank that answers like this."""

    async def play() -> Progress | None:
        server = await asyncio.start_server(talk, host, 0)
        async with server:
            return await progress_client.progress(*server.sockets[0].getsockname()[:2])

    return asyncio.run(play())


def saying(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    return talk


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def test_a_rank_that_answers_is_understood() -> None:
    told = asked(saying(ANSWER))
    assert told is not None
    assert told.step == 7


async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    asked_for = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 302 Found\r\nLocation: /else\r\n\r\n" if b"/progress" in asked_for else ANSWER)
    writer.close()


@pytest.mark.parametrize(
    "talk",
    [
        saying(b"nonsense"),
        saying(b""),
        saying(b"HTTP/1.0 500 \r\n\r\n" + BODY),
        redirecting,
        saying(ANSWER + b" " * progress_client.LIMIT_BYTES),
        saying(b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(BODY)),
        saying(b"HTTP/1.0 200 OK\r\nLong: " + b"a" * (1 << 20) + b"\r\n\r\n" + BODY),
        saying(b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 50_000),
        saying(b'HTTP/1.0 200 OK\r\n\r\n{"stage": 7}'),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + BODY),
        silent,
    ],
    ids=[
        "nonsense",
        "nothing",
        "an-error",
        "a-redirection",
        "too-long",
        "compressed",
        "a-long-header",
        "deep-nesting",
        "a-wrong-type",
        "cut-off",
        "silence",
    ],
)
def test_a_useless_answer_counts_as_silence(talk: Talk) -> None:
    assert asked(talk) is None


def test_connections_are_not_kept_alive() -> None:
    async def play() -> tuple[Progress | None, bytes]:
        rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
            rest.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            told = await progress_client.progress(*server.sockets[0].getsockname()[:2])
            return told, await asyncio.wait_for(rest, 60)

    told, rest = asyncio.run(play())
    assert told is not None
    assert rest == b""


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert asked(saying(ANSWER)) is not None


def test_a_rank_at_an_ipv6_address_is_understood() -> None:
    assert asked(saying(ANSWER), "::1") is not None


def test_a_refused_connection_counts_as_silence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert asyncio.run(progress_client.progress("127.0.0.1", unused.getsockname()[1])) is None


def test_a_connection_timeout_counts_as_unreachable() -> None:
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())  # the backlog is full: Linux drops further connections, as a firewall does
        with pytest.raises(progress_client.Unreachable):
            asyncio.run(progress_client.progress(*full.getsockname()))


@pytest.mark.parametrize("code", [errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_a_missing_route_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    async def no_route(*_: object) -> None:
        raise OSError(code, "no route")

    monkeypatch.setattr(BaseSelectorEventLoop, "sock_connect", no_route)
    with pytest.raises(progress_client.Unreachable):
        asyncio.run(progress_client.progress("10.0.0.1"))


def rank_0(uid: str) -> PodView:
    wanted = job()
    pod = pod_manifest(wanted, wanted.spec.stages[0], 0, 0)
    pod["metadata"]["uid"] = uid
    return podviews.view({**pod, "status": {"phase": "Running", "podIP": "10.0.0.1"}})


def unreachable_after(monkeypatch: pytest.MonkeyPatch, *questions: tuple[PodView, bool]) -> list[bool]:
    """Whether rank 0 counts as unreachable after each poll of such a pod, which can be reached or not."""

    async def play() -> list[bool]:
        answered = asyncio.Event()
        asking, seen = ProgressPoller(lambda uid: answered.set()), []
        for pod, is_way in questions:
            monkeypatch.setattr(progress_client, "progress", way if is_way else no_way)
            asking.follow("u-1", pod, 0.0)
            await answered.wait()
            answered.clear()
            seen.append(asking.unreachable("u-1"))
        return seen

    return asyncio.run(play())


async def way(address: str) -> Progress | None:
    return None


async def no_way(address: str) -> Progress | None:
    raise progress_client.Unreachable(address)


def test_unreachable_ends_with_the_first_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    first = rank_0("pod-1")
    assert unreachable_after(monkeypatch, (first, False), (first, False), (first, True)) == [True, True, False]


def test_a_rank_that_was_reached_before_is_silent_and_not_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rank_0("pod-1"), rank_0("pod-2")
    assert unreachable_after(monkeypatch, (first, True), (first, False), (second, False)) == [False, False, True]


def test_a_new_pod_is_not_unreachable_before_its_first_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> tuple[bool, bool]:
        answered = asyncio.Event()
        asking = ProgressPoller(lambda uid: answered.set())
        monkeypatch.setattr(progress_client, "progress", no_way)
        asking.follow("u-1", rank_0("pod-1"), 0.0)
        await answered.wait()
        before = asking.unreachable("u-1")
        asking.follow("u-1", rank_0("pod-2"), 60.0)
        after = asking.unreachable("u-1")
        asking.close()
        return before, after

    assert asyncio.run(play()) == (True, False)
