"""Commands that are the trainer's: started as processes of its own, since the operator may be installed without it."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from resnetboost_operator.errors import UserError

TRAINER = "resnetboost_trainer"


def run(command: str, words: Sequence[str]) -> int:
    """The exit code of that command of the trainer, which says by itself what it did. Raises UserError without one."""
    check_installed(command)
    given = [sys.executable, "-m", TRAINER, command, *words]
    code = subprocess.run(given, env={**os.environ, **unicode_variables()}, check=False).returncode
    return code if code >= 0 else 128 - code


def unicode_variables() -> dict[str, str]:
    """Have Python take paths for UTF-8 in any locale; what a stream has no sign for becomes a question mark."""
    encoding = os.environ.get("PYTHONIOENCODING", "")
    streams = {"PYTHONIOENCODING": f"{encoding}:replace"} if encoding and ":" not in encoding else {}
    return {"PYTHONUTF8": "1"} | streams


def check_installed(command: str) -> None:
    """Raises UserError where there is no trainer to do that command."""
    if importlib.util.find_spec(TRAINER) is None:
        reason = f"resnetboost {command} is done by the trainer, and the package {TRAINER} is not installed here"
        raise UserError(f"{reason}; use the .venv of `make setup`, or the trainer's image")
