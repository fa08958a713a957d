"""Starts the trainer's commands as processes of their own."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from resnetboost_operator.errors import UserError

TRAINER = "resnetboost_trainer"


def run(command: str, words: Sequence[str], **options: Any) -> int:
    """Run that command of the trainer; return its exit code. Raises `UserError` if the trainer is not installed.

    Options that are None or False are left out.
    """
    check_installed(command)
    given = [word for name, value in options.items() for word in _option(name, value)]
    line = [sys.executable, "-m", TRAINER, command, *given, "--", *words]
    code = subprocess.run(line, env={**os.environ, **unicode_variables()}, check=False).returncode
    return code if code >= 0 else 128 - code


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
