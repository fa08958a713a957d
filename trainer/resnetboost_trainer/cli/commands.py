"""Dispatches `python -m resnetboost_trainer COMMAND ...` to the command's module, which has a `main`.

`resnetboost` starts these commands as child processes, because the operator has neither numpy nor MindSpore. A config
file named like a command must be given as ./NAME.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_MODULES = {"tomindrecord": "to_mindrecord"}
ALL = (
    "card",
    "convert",
    "doctor",
    "eval",
    "export",
    "fetch-metrics",
    "lr-find",
    "predict",
    "profile",
    "to-mindrecord",
    "tomindrecord",
    "track",
)


def run(command: str, words: Sequence[str]) -> int:
    """Import the module of that command, run it and return its exit code; 1 where the reader of its output has left."""
    module = _MODULES.get(command, command.replace("-", "_"))
    main = importlib.import_module(f"resnetboost_trainer.cli.{module}").main
    try:
        code = int(main(words))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its exit
        return 1
    return code


def unknown(word: str) -> str | None:
    """Return what is wrong with a first argument that is neither a command nor a config file."""
    if Path(word).exists() or not word.replace("-", "").replace("_", "").isalpha():
        return None  # a path that is missing is reported when it is read
    return f"{word} is neither a command nor a config file; the commands are {', '.join(ALL)}"
