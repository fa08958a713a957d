"""Starts the trainer's commands as processes of their own, which end with this one."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from resnetboost_operator.errors import UserError
from resnetboost_operator.local import container

TRAINER = "resnetboost_trainer"


def run(command: str, words: Sequence[str], **options: Any) -> int:
    """Run that command of the trainer, which gets SIGTERM and SIGHUP too; return its exit code.

    Options that are None or False are left out. Raises `UserError` if the trainer is not installed.
    """
    check_installed(command)
    given = [word for name, value in options.items() for word in _option(name, value)]
    line = [sys.executable, "-m", TRAINER, command, *given, "--", *words]
    line = container.tied(line, os.sched_getaffinity(0))
    with subprocess.Popen(line, env={**os.environ, **unicode_variables()}) as process, _passing_on(process):
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C, which the terminal also sent to the process: it had a moment to end by itself
            process.kill()
            raise
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send SIGTERM and SIGHUP on to the process; an ignored signal (nohup) stays ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, lambda received, _: process.send_signal(received))
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [] if value is None or value is False else [option] if value is True else [option, str(value)]


def unicode_variables() -> dict[str, str]:
    """Environment of a Python that reads paths as UTF-8 and prints '?' for what a stream cannot encode."""
    encoding = os.environ.get("PYTHONIOENCODING", "")
    streams = {"PYTHONIOENCODING": f"{encoding}:replace"} if encoding and ":" not in encoding else {}
    return {"PYTHONUTF8": "1"} | streams


def check_installed(command: str) -> None:
    """Raise `UserError` if the trainer, which executes the command, is not installed."""
    if importlib.util.find_spec(TRAINER) is None:
        reason = f"resnetboost {command} needs the trainer, and its package {TRAINER} is not installed here"
        raise UserError(f"{reason}; use the .venv of `make setup`, or the trainer's image")
