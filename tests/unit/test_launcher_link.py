"""The operator's link to a leader's launcher, over real sockets: authentication, commands, loss, hostile leaders."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from resnetboost_api.connection import Broken, Connection
from resnetboost_api.launcher import Alive, GangReport, HelloOperator, RankEnd, StartAttempt
from resnetboost_operator import launcher_client
from resnetboost_operator.controller.launcher_links import LauncherLinks
from resnetboost_operator.launcher_client import Link
from resnetboost_operator.observed.pods import PodView

TOKEN = b"the gang's"
REPORT = GangReport(0, 2, 2)
COMMAND = StartAttempt(attempt=1, config={"attempt": 1}, coordinator_port=8119)
SECONDS = 10.0

Act = Callable[[Connection], Awaitable[None]]


class Leader:
    """A leader on a free port; `act` is its part after it was greeted with its own `token`."""

    def __init__(self, act: Act, token: bytes = TOKEN) -> None:
        self.heard: asyncio.Queue[object] = asyncio.Queue()
        self.connections = 0
        self._act, self._token = act, token

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = Connection(reader, writer)
        with contextlib.suppress(Broken, ConnectionError):
            await connection.greet(self._token, server=True)
            self.heard.put_nowait(await connection.receive())
            await self._act(connection)
            while True:
                self.heard.put_nowait(await connection.receive())
        connection.close()

    async def next(self, kind: type) -> object:
        """The next message of that kind."""
        async with asyncio.timeout(SECONDS):
            while not isinstance(found := await self.heard.get(), kind):
                pass
        return found


@contextlib.asynccontextmanager
async def linked(leader: Leader, token: bytes = TOKEN) -> AsyncIterator[tuple[Link, asyncio.Event]]:
    """A link to the leader, and an event for each call of `changed`."""
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    changed = asyncio.Event()
    link = Link("127.0.0.1", token, changed.set, port)
    try:
        yield link, changed
    finally:
        link.close()
        server.close()


async def reports(connection: Connection) -> None:
    await connection.send(REPORT)


async def until(changed: asyncio.Event, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await changed.wait()
            changed.clear()


async def says_nothing(connection: Connection) -> None:
    pass


def test_the_leader_is_greeted_and_its_report_heard() -> None:
    async def run() -> None:
        leader = Leader(reports)
        async with linked(leader) as (link, changed):
            assert isinstance(await leader.next(HelloOperator), HelloOperator)
            await until(changed, lambda: link.report == REPORT)

    asyncio.run(run())


def test_a_command_is_sent_once_over_a_connection() -> None:
    async def run() -> None:
        leader = Leader(reports)
        async with linked(leader) as (link, changed):
            await until(changed, lambda: link.report is not None)
            link.send(COMMAND)
            link.send(COMMAND)
            assert await leader.next(StartAttempt) == COMMAND
            assert isinstance(await leader.next(Alive), Alive)
            assert leader.heard.empty()

    asyncio.run(run())


def test_after_a_loss_the_report_is_gone_and_the_command_is_sent_again() -> None:
    async def run() -> None:
        async def dies_of_its_first_command(connection: Connection) -> None:
            await connection.send(REPORT)
            while leader.connections == 1:
                if isinstance(await connection.receive(), StartAttempt):
                    connection.close()

        leader = Leader(dies_of_its_first_command)
        async with linked(leader) as (link, changed):
            await until(changed, lambda: link.report is not None)
            link.send(COMMAND)
            await until(changed, lambda: link.report is None)
            await until(changed, lambda: link.report is not None)
            link.send(COMMAND)
            assert await leader.next(StartAttempt) == COMMAND
            assert leader.connections == 2

    asyncio.run(run())


@pytest.mark.parametrize("ours", [b"another job's", b""])
def test_a_leader_with_another_token_is_not_heard(ours: bytes) -> None:
    async def run() -> None:
        leader = Leader(reports)
        async with linked(leader, ours) as (link, _changed):
            async with asyncio.timeout(SECONDS):
                while leader.connections < 2:  # it was refused, and tried again
                    await asyncio.sleep(0.05)
            assert link.report is None
            assert leader.heard.empty(), "nor does it hear us"

    asyncio.run(run())


def test_a_leader_that_does_not_stop_talking_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_client, "MOST_MESSAGES", 50)

    async def floods(connection: Connection) -> None:
        for number in range(1000):
            await connection.send(GangReport(0, number, 2))

    async def run() -> None:
        leader = Leader(floods)
        async with linked(leader) as (link, changed):
            await until(changed, lambda: link.report is None and leader.connections > 1)

    asyncio.run(run())


HOSTILE = [
    b"\xff\xff\xff\xff" + bytes(64),  # a length of 4 GiB
    bytes(36),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4,
    b"",
]


@pytest.mark.parametrize("raw", HOSTILE, ids=["long", "zeros", "http", "silent"])
def test_what_is_no_launcher_is_not_heard(raw: bytes) -> None:
    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(16) + raw)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        link = Link("127.0.0.1", TOKEN, lambda: None, server.sockets[0].getsockname()[1])
        await asyncio.sleep(0.3)
        assert link.report is None
        link.close()
        server.close()

    asyncio.run(run())


def test_a_report_beyond_its_bounds_breaks_the_link() -> None:
    async def lies(connection: Connection) -> None:
        await connection.send(REPORT)
        await connection.send(GangReport(0, 2, 2, tuple(RankEnd(index, 0, 1) for index in range(17))))

    async def run() -> None:
        leader = Leader(lies)
        async with linked(leader) as (link, changed):
            await until(changed, lambda: link.report is None and leader.connections > 1)

    asyncio.run(run())


def test_the_token_differs_for_every_job_and_key() -> None:
    tokens = {launcher_client.token(key, uid) for key in (b"a" * 32, b"b" * 32) for uid in ("u-1", "u-2")}
    assert len(tokens) == 4
    assert all(len(found) == 64 for found in tokens)


def pod(uid: str) -> PodView:
    common = {"namespace": "default", "job_name": "digits", "job_uid": "u", "stage": "base", "attempt": 0, "index": 0}
    state = {"phase": "Running", "ready": True, "deleting": False, "node": "n", "address": "127.0.0.1"}
    return PodView(name=uid, uid=uid, disruption="", waiting=None, termination=None, **common, **state)  # type: ignore[arg-type]


def test_a_job_has_one_link_which_goes_with_it() -> None:
    async def run() -> None:
        links = LauncherLinks(b"k" * 32, lambda uid: None)
        before = len(asyncio.all_tasks())
        for _ in range(3):
            links.follow("u-1", pod("p-1"), None)
        assert len(asyncio.all_tasks()) == before + 1
        links.follow("u-1", pod("p-2"), COMMAND)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before + 1
        links.follow("u-1", None, None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before
        assert links.report("u-1") is None
        links.close()

    asyncio.run(run())
