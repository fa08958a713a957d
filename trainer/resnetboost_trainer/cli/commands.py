"""What `python -m resnetboost_trainer COMMAND ...` does beside training; each command is a module with a `main`.

`resnetboost` starts these as child processes, because the operator has neither numpy nor MindSpore. A config file that
has a command's name is given as ./NAME.
"""

import importlib
from collections.abc import Sequence

_MODULES = {"tomindrecord": "to_mindrecord"}
ALL = ("card", "convert", "eval", "export", "predict", "profile", "tomindrecord")


def run(command: str, words: Sequence[str]) -> int:
    """The exit code of that command, which alone is imported."""
    return int(importlib.import_module(f"resnetboost_trainer.cli.{_MODULES.get(command, command)}").main(words))
