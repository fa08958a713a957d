"""Launchers of a gang over real connections, with played ranks; and a launcher as a process, with real ones."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api.connection import Broken, Connection, connect
from resnetboost_api.launcher import (
    HelloLauncher,
    HelloOperator,
    RankReport,
    StartAttempt,
)
from resnetboost_trainer.launcher import leading, state
from resnetboost_trainer.launcher.launcher import Launcher
from support import launched
from support.launched import PORT, SECONDS, TOKEN, Process, operator_of, reported
from support.trainerconfig import GOOD


class PlayedRank:
    """A rank that ends when the test or its launcher says so."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def started(self) -> None:
        pass

    async def wait(self) -> tuple[int, str]:
        return await self.ended

    def terminate(self) -> None:
        self.end(16, "saved")

    def kill(self) -> None:
        self.end(137)

    def end(self, code: int, message: str = "") -> None:
        if not self.ended.done():
            self.ended.set_result((code, message))


class PlayedRanks:
    """Every rank that a launcher started."""

    def __init__(self) -> None:
        self.all: list[tuple[int, PlayedRank]] = []

    async def start(self, attempt: int, config: Mapping[str, Any] | None, coordinator_port: int | None) -> PlayedRank:
        assert all(rank.ended.done() for _, rank in self.all), "two ranks of one launcher"
        self.all.append((attempt, PlayedRank()))
        return self.newest

    @property
    def newest(self) -> PlayedRank:
        return self.all[-1][1]


class Gang:
    """The launchers of one gang in this process."""

    def __init__(self, size: int, host: str) -> None:
        self.host, self.size = host, size
        self.ranks = [PlayedRanks() for _ in range(size)]
        self.launchers = [Launcher(index, size, 0, ranks) for index, ranks in enumerate(self.ranks)]
        self.runs: list[asyncio.Task[int]] = []

    def start(self, *indexes: int, through: str = "") -> None:
        for index in indexes or range(self.size):
            launcher = self.launchers[index]
            launcher.lead(self.host, PORT, TOKEN) if index == 0 else launcher.follow(through or self.host, PORT, TOKEN)
            self.runs.append(asyncio.create_task(launcher.run()))

    async def operator(self) -> Connection:
        return await operator_of(self.host)

    def close(self) -> None:
        for run in self.runs:
            run.cancel()


def play(scene: Callable[[Gang], Awaitable[None]], size: int, host: str) -> None:
    async def run() -> None:
        gang = Gang(size, host)
        try:
            async with asyncio.timeout(SECONDS):
                await scene(gang)
        finally:
            gang.close()

    asyncio.run(run())


class Network:
    """What followers have between them and their leader. While it is cut it swallows every byte; connections stay."""

    def __init__(self, leader: str) -> None:
        self.host, self._leader = launched.address(), leader
        self.cut = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._join, self.host, PORT)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._leader, PORT)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.cut:
                    target.write(data)
        except OSError:
            pass
        finally:
            target.close()


@pytest.fixture
def host() -> str:
    return launched.address()


def test_a_gang_restarts_in_place_by_one_command(host: str) -> None:
    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        await reported(operator, lambda report: report.running == 5)
        gang.ranks[3].newest.end(137, "words")
        report = await reported(operator, lambda report: len(report.ended) == 1)
        assert [(end.index, end.exit_code, end.message) for end in report.ended] == [(3, 137, "words")]
        await operator.send(StartAttempt(1, {"attempt": 1}, 8119))
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 5))
        assert [[attempt for attempt, _ in ranks.all] for ranks in gang.ranks] == [[0, 1]] * 5

    play(scene, 5, host)


def test_a_launcher_that_connects_late_gets_the_command(host: str) -> None:
    async def scene(gang: Gang) -> None:
        gang.start(0)
        operator = await gang.operator()
        await operator.send(StartAttempt(4, {"attempt": 4}, 8119))
        await reported(operator, lambda report: (report.attempt, report.running) == (4, 1))
        gang.start(1)
        await reported(operator, lambda report: (report.attempt, report.running) == (4, 2))
        assert gang.ranks[1].all[-1][0] == 4

    play(scene, 2, host)


def test_launchers_without_an_answer_end_with_their_ranks_exit_codes(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "UNANSWERED_SECONDS", 0.2)

    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        await reported(operator, lambda report: report.running == 2)
        gang.ranks[0].newest.end(13)
        gang.ranks[1].newest.end(14)
        assert await asyncio.gather(*gang.runs) == [13, 14]
        assert gang.launchers[1].state.report().end is not None

    play(scene, 2, host)


def test_the_leader_notices_a_launcher_that_is_gone(host: str) -> None:
    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        await reported(operator, lambda report: report.connected == 3)
        gang.runs[2].cancel()
        report = await reported(operator, lambda report: report.connected == 2)
        assert report.running == 2

    play(scene, 3, host)


def test_a_partition_between_the_leader_and_the_others_is_seen_and_mended(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(leading, "ALIVE_SECONDS", 0.1)

    async def scene(gang: Gang) -> None:
        network = Network(host)
        gang.start(0)
        operator = await gang.operator()
        async with await network.serve():
            gang.start(1, 2, through=network.host)
            await reported(operator, lambda report: report.running == 3)
            network.cut = True
            await reported(operator, lambda report: report.connected == 1)
            await operator.send(StartAttempt(1, {"attempt": 1}, 8119))
            await reported(operator, lambda report: (report.attempt, report.running) == (1, 1))
            started = [[attempt for attempt, _ in ranks.all] for ranks in gang.ranks]
            assert started == [[0, 1], [0], [0]], "who cannot be reached goes on as before"
            network.cut = False
            await reported(operator, lambda report: (report.attempt, report.running) == (1, 3))
        assert [[attempt for attempt, _ in ranks.all] for ranks in gang.ranks] == [[0, 1]] * 3

    play(scene, 3, host)


@pytest.mark.parametrize(
    "hello", [HelloOperator(), HelloLauncher(1), HelloLauncher(0), HelloLauncher(7), RankReport(1, 0)], ids=repr
)
def test_who_does_not_know_the_token_commands_nobody(host: str, hello: Any) -> None:
    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        await reported(operator, lambda report: report.running == 2)
        with pytest.raises(Broken):
            stranger = await connect(host, PORT, b"another token", hello)
            await stranger.send(StartAttempt(9, {}, 8119))
            await stranger.receive()
        assert gang.launchers[0].state.attempt == 0

    play(scene, 2, host)


def test_a_launcher_of_the_gang_cannot_command_the_leader_or_speak_for_another(host: str) -> None:
    async def scene(gang: Gang) -> None:
        gang.start(0)
        operator = await gang.operator()
        for message in (StartAttempt(9, {}, 8119), RankReport(0, 0), RankReport(1, 0, running=True)):
            liar = await connect(host, PORT, TOKEN, HelloLauncher(2))
            await liar.send(message)
            liar.close()
        await operator.send(StartAttempt(1, {"attempt": 1}, 8119))
        report = await reported(operator, lambda report: report.attempt >= 1 and report.running > 0)
        assert (report.attempt, report.running, report.connected) == (1, 1, 1)

    play(scene, 3, host)


GARBAGE = {"nothing": b"", "text": b"GET / HTTP/1.1\r\n\r\n" * 9, "a huge length": b"n" * 16 + b"\xff" * 200}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_its_connection_alone(host: str, data: bytes) -> None:
    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        reader, writer = await asyncio.open_connection(host, PORT)
        writer.write(data)
        if data:
            await reader.read()  # until the leader closes it
        writer.close()
        await operator.send(StartAttempt(1, {"attempt": 1}, 8119))
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 2))

    play(scene, 2, host)


def test_frames_that_are_sent_again_are_refused(host: str) -> None:
    async def scene(gang: Gang) -> None:
        gang.start()
        operator = await gang.operator()
        frame = operator.sealed(StartAttempt(1, {"attempt": 1}, 8119))
        operator._writer.write(frame)
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 2))
        operator._writer.write(frame)
        with pytest.raises(Broken):
            while True:
                await operator.receive()

    play(scene, 2, host)


# A launcher as a process


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for found in started:
        found.end()


def test_a_killed_rank_is_started_again_and_a_stopped_launcher_ends_with_its_ranks_code(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    """Real ranks: kill -9, a command, a checkpointed end by SIGTERM, the rank's own words for kubelet."""
    config = {**GOOD, "epochs": 1000, "checkpoint": {"everySteps": 5}}
    found = Process(tmp_path, host, config)
    processes.append(found)

    async def scene() -> None:
        operator = await operator_of(host)
        await reported(operator, lambda report: report.running == 1)
        rank = found.children()[-1]
        os.kill(rank, signal.SIGKILL)
        report = await reported(operator, lambda report: len(report.ended) == 1)
        assert report.ended[0].exit_code == 137
        assert rank not in found.children(), "a dead rank is reaped"
        await operator.send(StartAttempt(1, {**config, "attempt": 1}, 8119))
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 1))
        while not list(tmp_path.glob("checkpoints/*/*/attempt-1/step-*")):
            assert found.process.poll() is None
            await asyncio.sleep(0.05)
        found.process.terminate()

    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await scene()

    asyncio.run(limited())
    assert found.process.wait(SECONDS) == 16
    words = json.loads(found.message.read_text())
    assert (words["class"], words["exitCode"]) == ("Interrupted", 16)
    assert words["checkpointStep"] > 0


def test_the_end_of_the_log_of_a_rank_that_crashed_is_reported(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    found = Process(tmp_path, host, {**GOOD, "epochs": 1000, "checkpoint": {"everySteps": 5}})
    processes.append(found)

    async def scene() -> None:
        operator = await operator_of(host)
        await reported(operator, lambda report: report.running == 1)
        while not list(tmp_path.glob("checkpoints/*/*/attempt-0/step-*")):
            assert found.process.poll() is None
            await asyncio.sleep(0.05)
        os.kill(found.children()[-1], signal.SIGSEGV)
        (end,) = (await reported(operator, lambda report: len(report.ended) == 1)).ended
        assert (end.exit_code, len(end.message) > 40) == (139, True)
        assert end.message in (tmp_path / "log").read_text()

    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await scene()

    asyncio.run(limited())


def test_no_rank_outlives_its_launcher(tmp_path: Path, host: str, processes: list[Process]) -> None:
    found = Process(tmp_path, host, {**GOOD, "epochs": 1000})
    processes.append(found)

    async def scene() -> None:
        async with asyncio.timeout(SECONDS):
            await reported(await operator_of(host), lambda report: report.running == 1)

    asyncio.run(scene())
    descendants = found.children()
    assert len(descendants) == 2, "the template process and the rank"
    watched = [os.pidfd_open(pid) for pid in descendants]
    found.process.kill()
    for descriptor in watched:
        with open(descriptor, "rb"):
            signal_of_end = asyncio.run(_readable(descriptor))
            assert signal_of_end


async def _readable(descriptor: int) -> bool:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    async with asyncio.timeout(SECONDS):
        await ended.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    return True


def test_a_wrong_configuration_ends_the_container_as_without_a_launcher(
    tmp_path: Path, host: str, processes: list[Process]
) -> None:
    found = Process(tmp_path, host, {**GOOD, "epochs": -3})
    processes.append(found)
    assert found.process.wait(SECONDS) == 10
    assert "epochs" in json.loads(found.message.read_text())["message"]
