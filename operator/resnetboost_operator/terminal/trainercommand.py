"""Commands that are the trainer's: started as processes of its own, since the operator may be installed without it."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from resnetboost_operator.errors import UserError

TRAINER = "resnetboost_trainer"


def run(command: str, words: Sequence[str]) -> int:
    """The exit code of that command of the trainer, which says by itself what it did. Raises UserError without one."""
    check_installed(command)
    code = subprocess.run([sys.executable, "-m", TRAINER, command, *words], check=False).returncode
    return code if code >= 0 else 128 - code


def check_installed(command: str) -> None:
    """Raises UserError where there is no trainer to do that command."""
    if importlib.util.find_spec(TRAINER) is None:
        reason = f"resnetboost {command} is done by the trainer, and the package {TRAINER} is not installed here"
        raise UserError(f"{reason}; use the .venv of `make setup`, or the trainer's image")
