"""What may go wrong around a launcher: its template process, address, token and peers, and a stop at any moment."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from resnetboost_api import names
from resnetboost_api.connection import NONCE_BYTES, connect
from resnetboost_api.launcher import HelloLauncher, RankReport, StartAttempt
from resnetboost_trainer.launcher import leading
from resnetboost_trainer.launcher.launcher import Launcher
from resnetboost_trainer.launcher.processes import ENV_TEMPLATE
from support import launched
from support.launched import PORT, SECONDS, TOKEN, Process, operator_of, reported
from support.trainerconfig import GOOD

LONG = {**GOOD, "epochs": 1000, "checkpoint": {"everySteps": 5}}


@pytest.fixture
def host() -> str:
    return launched.address()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for found in started:
        found.end()


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await scene()

    asyncio.run(limited())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def template_of(found: Process) -> int:
    """The launcher's template process, once it runs its own program.

    Before that it has the launcher's environment, and the launcher waits for it within `Popen`: a child stopped there
    would stop the launcher too.
    """
    while not any(runs_as_template(pid) for pid in found.children()):
        assert found.process.poll() is None
        await asyncio.sleep(0.02)
    return found.children()[0]


def runs_as_template(pid: int) -> bool:
    return f"{ENV_TEMPLATE}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def message(found: Process) -> dict[str, object]:
    words: dict[str, object] = json.loads(found.message.read_text())
    return words


def test_a_stop_does_not_wait_for_an_import(tmp_path: Path, host: str, processes: list[Process]) -> None:
    """A template process that hangs stands for one that imports MindSpore on a busy node."""
    found = Process(tmp_path, host, LONG)
    processes.append(found)

    async def scene() -> None:
        os.kill(await template_of(found), signal.SIGSTOP)
        await operator_of(host)  # so the launcher's own handler stands
        found.process.terminate()

    play(scene)
    assert found.process.wait(SECONDS) == 16
    assert message(found)["class"] == "Interrupted"


def test_a_stop_before_anything_was_imported_is_heard(tmp_path: Path, host: str, processes: list[Process]) -> None:
    found = Process(tmp_path, host, LONG)
    processes.append(found)
    status = Path(f"/proc/{found.process.pid}/status")
    while not int(status.read_text().partition("SigCgt:\t")[2].split()[0], 16) & 1 << (signal.SIGTERM - 1):
        assert found.process.poll() is None
    found.process.terminate()
    assert found.process.wait(SECONDS) == 16
    assert message(found)["class"] == "Interrupted"


def test_a_killed_template_process_is_the_end_of_its_rank_and_the_next_has_a_new_one(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    found = Process(tmp_path, host, LONG)
    processes.append(found)

    async def scene() -> None:
        operator = await operator_of(host)
        await reported(operator, lambda report: report.running == 1)
        template, rank = found.children()
        os.kill(template, signal.SIGKILL)
        report = await reported(operator, lambda report: len(report.ended) == 1)
        assert report.ended[0].exit_code == 137
        assert gone(rank), "it is reported when it is dead"
        await operator.send(StartAttempt(1, {**LONG, "attempt": 1}, 8119))
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 1))
        assert len(found.children()) == 2

    play(scene)


def test_there_are_never_two_ranks_however_fast_attempts_follow(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    found = Process(tmp_path, host, LONG)
    processes.append(found)

    async def scene() -> None:
        operator = await operator_of(host)
        await reported(operator, lambda report: report.running == 1)
        for attempt in range(1, 9):
            await operator.send(StartAttempt(attempt, {**LONG, "attempt": attempt}, 8119))
            if attempt % 2:
                wanted = attempt
                await reported(operator, lambda report: (report.attempt, report.running) == (wanted, 1))  # noqa: B023
            _, *ranks = found.children()
            assert sum(not gone(rank) for rank in ranks) <= 1
        await reported(operator, lambda report: (report.attempt, report.running) == (8, 1))
        assert len(found.children()) == 2

    play(scene)


def test_a_stop_during_the_back_off_is_no_failure_of_the_attempt_before(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    found = Process(tmp_path, host, {**GOOD, "epochs": -3})
    processes.append(found)

    async def scene() -> None:
        operator = await operator_of(host)
        await reported(operator, lambda report: len(report.ended) == 1)
        await operator.send(StartAttempt(1, {**GOOD, "attempt": 1}, 8119, delay_seconds=600))
        await reported(operator, lambda report: report.attempt == 1)
        found.process.terminate()

    play(scene)
    assert found.process.wait(SECONDS) == 16
    assert message(found)["class"] == "Interrupted"


def test_a_launcher_whose_port_is_taken_runs_its_rank_all_the_same(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    with socket.create_server((host, PORT)):
        found = Process(tmp_path, host, {**GOOD, "epochs": 1})
        processes.append(found)
        assert found.process.wait(SECONDS) == 0
    assert message(found)["class"] == "Succeeded"


@pytest.mark.parametrize(
    "variables",
    [{names.ENV_LAUNCHER_TOKEN: "/nowhere/token"}, {names.ENV_WORLD_SIZE: "two"}, {names.ENV_LAUNCHER: "host:port"}],
    ids=lambda variables: next(iter(variables)),
)
def test_a_launcher_that_cannot_be_is_the_rank_itself(
    tmp_path: Path, host: str, processes: list[Process], variables: dict[str, str]
) -> None:
    found = Process(tmp_path, host, {**GOOD, "epochs": -3}, **variables)
    processes.append(found)
    assert found.process.wait(SECONDS) == 10


class Idle:
    """Ranks that only run."""

    async def start(self, *_: object) -> "Idle":
        return self

    async def started(self) -> None:
        pass

    async def wait(self) -> tuple[int, str]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        pass


@contextlib.asynccontextmanager
async def leader(host: str, size: int) -> AsyncIterator[Launcher]:
    found = Launcher(0, size, 0, Idle())
    found.lead(host, PORT, TOKEN)
    run = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def test_a_launcher_that_falls_silent_is_lost(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(leading, "ALIVE_SECONDS", 0.1)

    async def scene() -> None:
        async with leader(host, 2):
            operator = await operator_of(host)
            silent = await connect(host, PORT, TOKEN, HelloLauncher(1))
            await silent.send(RankReport(1, 0, running=True))
            await reported(operator, lambda report: report.connected == 2)
            await reported(operator, lambda report: report.connected == 1)

    play(scene)


def test_who_has_not_greeted_gets_no_room(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader hangs up at the length of the first message, before it takes the message in."""
    monkeypatch.setattr(leading, "SILENCE_SECONDS", 10 * SECONDS)  # that is not why

    async def scene() -> None:
        async with leader(host, 2):
            await operator_of(host)
            reader, writer = await asyncio.open_connection(host, PORT)
            writer.write(bytes(NONCE_BYTES) + struct.pack(">I", 1 << 19) + bytes(32))
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

    play(scene)
