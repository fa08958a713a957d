"""Shared parts of the commands that use a trained network: arguments, error handling, JSON output."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from resnetboost_trainer.failures import TrainingError, classify
from resnetboost_trainer.models import arch

DEVICES = ("CPU", "Ascend", "GPU")
SOURCE = (
    "a run's folder (see --which), a checkpoint's folder, or a file of weights (.safetensors, .pth), here or in object "
    "storage (s3://bucket/path)"
)


def parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all of these commands have."""
    made = argparse.ArgumentParser(f"python -m resnetboost_trainer {command}", description=description)
    made.add_argument("source", metavar="SOURCE", help=SOURCE)
    made.add_argument(
        "--which",
        metavar="best|last|averaged|STEP",
        help="checkpoint of a run's folder to use; averaged: the averaged weights of the last one (default: last)",
    )
    add_weights(made)
    made.add_argument("--model", choices=(*arch.LARGE, *arch.SMALL), help="network that it must be (default: any)")
    return made


def add_weights(made: argparse.ArgumentParser) -> None:
    """Add the option that selects a checkpoint's weights."""
    made.add_argument(
        "--weights",
        choices=("averaged", "trained"),
        help="weights of a checkpoint to use (default: averaged, if it has them)",
    )


def add_device(made: argparse.ArgumentParser) -> None:
    """Add the option for the device."""
    made.add_argument("--device", choices=DEVICES, default="CPU", help="device to compute on (default: CPU)")


def main(command: str, act: Callable[[], int]) -> int:
    """Run a command and return its exit code; for an error, print one sentence and return its class's code."""
    os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=f"resnetboost {command}: %(message)s")
    try:
        return act()
    except BrokenPipeError:
        raise  # the reader of the output has left, as `head` does
    except Exception as error:
        failure = classify(error)
        if type(failure) is TrainingError:
            logging.exception("internal error")
        print(f"resnetboost {command}: {failure}", file=sys.stderr)
        return failure.exit_code


def show(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
