"""A real gang of two ranks under launchers: restarted in place it ends with the bits of an undisturbed run."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from resnetboost_api import names
from resnetboost_api.launcher import StartAttempt
from support import launched, sharedgraphs
from support.launched import PORT, Process, operator_of, reported
from support.trainerconfig import GOOD

pytestmark = pytest.mark.slow

CHECKPOINT = {"everySteps": 5, "keep": 100, "resume": "IfPresent", "keepCompiledGraphs": True}
CONFIG = {**GOOD, "epochs": 2, "localBatchSize": 64, "checkpoint": CHECKPOINT}
SECONDS = 240.0
LAST = "step-00000022"


class Gang:
    """Launchers of two ranks, each at an address of its own."""

    def __init__(self, folder: Path) -> None:
        self.stage, self.leader = folder / "0" / "checkpoints" / "uid" / "base", launched.address()
        sharedgraphs.give(self.stage, "two ranks of test_launcher_gang")
        hosts = self.leader, launched.address()
        self.ranks = [self._launcher(folder, rank, host) for rank, host in enumerate(hosts)]

    def _launcher(self, folder: Path, rank: int, host: str) -> Process:
        own = folder / str(rank)
        own.mkdir(parents=True, exist_ok=True)
        variables = {
            names.ENV_RANK: str(rank),
            names.ENV_WORLD_SIZE: "2",
            names.ENV_COORDINATOR: f"{self.leader}:{names.PORT_COORDINATOR}",
            names.ENV_LAUNCHER: f"{self.leader}:{PORT}",
            "OMP_NUM_THREADS": "1",
        }
        return Process(own, host, CONFIG, **variables)

    def finish(self) -> list[int]:
        """Exit codes of both launchers."""
        codes = [rank.process.wait(SECONDS) for rank in self.ranks]
        sharedgraphs.collect(self.stage)
        return codes

    def weights(self, attempt: int) -> dict[str, bytes]:
        """The last checkpoint's arrays."""
        found = {path.name: path.read_bytes() for path in self.stage.glob(f"attempt-{attempt}/{LAST}/*.safetensors")}
        assert found, sorted(self.stage.rglob("*"))
        return found


@pytest.fixture
def gangs() -> Iterator[list[Gang]]:
    started: list[Gang] = []
    yield started
    for rank in (rank for gang in started for rank in gang.ranks):
        rank.end()


@pytest.mark.parametrize("killed", [0, 1])
def test_a_gang_restarted_in_place_ends_with_the_same_bits(tmp_path: Path, gangs: list[Gang], killed: int) -> None:
    undisturbed = Gang(tmp_path / "undisturbed")
    gangs.append(undisturbed)
    assert undisturbed.finish() == [0, 0]

    gang = Gang(tmp_path / "disturbed")
    gangs.append(gang)
    launchers = [rank.process.pid for rank in gang.ranks]

    async def scene() -> None:
        operator = await operator_of(gang.leader)
        await reported(operator, lambda report: report.running == 2)
        while not list(gang.stage.glob("attempt-0/step-*")):
            assert all(rank.process.poll() is None for rank in gang.ranks)
            await asyncio.sleep(0.02)
        template, *children = gang.ranks[killed].children()
        os.kill(max(children), signal.SIGKILL)
        report = await reported(operator, lambda report: len(report.ended) > 0)
        assert killed in [end.index for end in report.ended]
        await operator.send(StartAttempt(1, {**CONFIG, "attempt": 1}, names.PORT_COORDINATOR + 1))
        await reported(operator, lambda report: (report.attempt, report.running) == (1, 2))
        assert gang.ranks[killed].children()[0] == template, "no import for the second attempt"

    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await scene()

    asyncio.run(limited())
    assert [rank.process.pid for rank in gang.ranks] == launchers
    assert gang.finish() == [0, 0]
    assert gang.weights(1) == undisturbed.weights(0)
