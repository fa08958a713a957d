"""`python -m resnetboost_trainer track CONFIG FILE...`: sends files and the outcome of a run to its trackers."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from resnetboost_trainer import config
from resnetboost_trainer.cli import options


def main(words: Sequence[str]) -> int:
    """Send them, for a few seconds at most; return the exit code."""
    arguments = parser().parse_args(words)
    return options.main("track", lambda: _track(arguments))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = argparse.ArgumentParser("python -m resnetboost_trainer track", description=__doc__)
    made.add_argument("config", metavar="CONFIG", type=Path, help="config file of the run's last attempt")
    made.add_argument("files", metavar="FILE", nargs="*", type=Path, help="files to send")
    made.add_argument("--checkpoints", type=Path, help="folder of the run's checkpoints")
    made.add_argument("--outcome", default="Succeeded", help="how it ended: Succeeded or a class of failures")
    made.add_argument("--message", default="", help="a sentence about that")
    return made


def _track(arguments: argparse.Namespace) -> int:
    settings = config.load(arguments.config)
    if settings.tracking is None:
        return 0
    from resnetboost_trainer.tracking import registry

    tracking = registry.started(settings, arguments.checkpoints, parameters={})
    for path in arguments.files:
        tracking.save(path.name, path)
    tracking.end(arguments.outcome, arguments.message)
    return 0
