"""A rank's standard error on its way through the launcher, over real pipes: unchanged, whatever it is, and its end."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from resnetboost_trainer.launcher import ranklog
from resnetboost_trainer.launcher.ranklog import TAIL_BYTES, RankLog

CASES = {
    "text": b"Traceback (most recent call last):\nSegmentation fault\n",
    "binary": bytes(range(256)) * 4096,
    "endless line": b"x" * (1 << 20),
    "nothing": b"",
}


def written(data: bytes, target: int) -> str:
    """What is kept of a process that writes that to its standard error, which goes on to `target`."""

    async def run() -> str:
        log = RankLog(target)
        program = "import sys; sys.stderr.buffer.write(sys.stdin.buffer.read())"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=log.writing) as process:
            os.close(log.writing)
            await asyncio.to_thread(process.communicate, data)
        return await log.tail()

    return asyncio.run(run())


@pytest.mark.parametrize("data", CASES.values(), ids=CASES)
def test_whatever_a_rank_writes_arrives_unchanged_and_its_end_is_kept(data: bytes, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as target:
        kept = written(data, target.fileno())
    assert (tmp_path / "log").read_bytes() == data
    assert kept == data[-TAIL_BYTES:].decode(errors="replace")


def test_a_line_arrives_while_the_rank_runs_on() -> None:
    async def run() -> bytes:
        reading, target = os.pipe()
        log = RankLog(target)
        os.write(log.writing, b"no newline")
        found = await asyncio.to_thread(os.read, reading, 100)
        os.close(log.writing)
        await log.tail()
        os.close(reading)
        os.close(target)
        return found

    assert asyncio.run(run()) == b"no newline"


def test_a_rank_whose_log_nobody_reads_any_more_goes_on() -> None:
    reading, target = os.pipe()
    os.close(reading)
    assert written(b"x" * (1 << 20), target) == "x" * TAIL_BYTES
    os.close(target)


def test_a_process_that_keeps_the_log_open_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranklog, "END_SECONDS", 0.1)
    before = threading.active_count()

    async def run() -> None:
        reading, target = os.pipe()
        log = RankLog(target)
        os.write(log.writing, b"last words")
        await asyncio.to_thread(os.read, reading, 100)
        assert await log.tail() == "last words"
        os.close(log.writing)
        await log.tail()
        os.close(reading)
        os.close(target)

    asyncio.run(run())
    assert threading.active_count() <= before + 1
