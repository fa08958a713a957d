"""Processes of the trainer that commands such as eval and card start: how they end with the command."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
PATIENCE_SECONDS = 60.0
# Computes until a signal ends it, and prints first who it is.
COMPUTES = """
import os, sys, time
print(os.getpid(), flush=True)
try:
    while True:
        time.sleep(3600)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGINT, 130),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_the_trainer_ends_with_its_command(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with computing(tmp_path) as (command, trainer):
        command.send_signal(number)
        assert command.wait(PATIENCE_SECONDS) == code
        assert has_ended(trainer, PATIENCE_SECONDS)
        expected = "resnetboost: interrupted\n" if number == signal.SIGINT else ""
        assert command.communicate()[1] == expected


def test_a_hang_up_that_is_ignored_ends_neither(tmp_path: Path) -> None:
    with computing(tmp_path, "nohup") as (command, trainer):
        command.send_signal(signal.SIGHUP)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM, "the later signal ended it"
        assert has_ended(trainer, PATIENCE_SECONDS)


def has_ended(pidfd: int, seconds: float) -> bool:
    """Whether the process ends within the time."""
    return bool(select.select([pidfd], [], [], seconds)[0])


@contextlib.contextmanager
def computing(folder: Path, *before: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A command whose trainer computes without an end, and the trainer's pidfd."""
    package = folder / "resnetboost_trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(COMPUTES)
    with subprocess.Popen(
        [*before, RESNETBOOST, "card", "weights.safetensors"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        trainer = os.pidfd_open(int(command.stdout.readline()))
        try:
            yield command, trainer
        finally:
            command.kill()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(trainer, signal.SIGKILL)
            os.close(trainer)
