"""What the commands that use a trained network look like: where it comes from, how they end, JSON for programs."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resnetboost_trainer.failures import TrainingError, classify
from resnetboost_trainer.models import arch

DEVICES = ("CPU", "Ascend", "GPU")
SOURCE = "a run's folder (its newest checkpoint), a checkpoint's folder, or a file of weights (.safetensors, .pth)"


def parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """With what all of these commands take."""
    made = argparse.ArgumentParser(f"python -m resnetboost_trainer {command}", description=description)
    made.add_argument("source", metavar="SOURCE", type=Path, help=SOURCE)
    add_weights(made)
    made.add_argument("--model", choices=(*arch.LARGE, *arch.SMALL), help="what it has to be (default: any)")
    return made


def add_weights(made: argparse.ArgumentParser) -> None:
    """The option for which weights of a checkpoint are meant."""
    made.add_argument(
        "--weights",
        choices=("averaged", "trained"),
        help="which of a checkpoint's (default: averaged where it has them)",
    )


def add_device(made: argparse.ArgumentParser) -> None:
    """The option for where it is computed."""
    made.add_argument("--device", choices=DEVICES, default="CPU", help="where to compute (default: CPU)")


def main(command: str, act: Callable[[], int]) -> int:
    """The exit code of `act`; a failure becomes one sentence and its class's code."""
    os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=f"resnetboost {command}: %(message)s")
    try:
        return act()
    except Exception as error:
        failure = classify(error)
        if type(failure) is TrainingError:
            logging.exception("internal error")
        print(f"resnetboost {command}: {failure}", file=sys.stderr)
        return failure.exit_code


def show(value: Any) -> None:
    """As JSON, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
