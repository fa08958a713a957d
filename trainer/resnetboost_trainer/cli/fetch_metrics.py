"""`python -m resnetboost_trainer fetch-metrics ADDRESS DIR`: fetches what a report needs of a job in object storage."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from resnetboost_trainer.checkpoint import fetched
from resnetboost_trainer.cli import options

# The last manifest of each stage, the earliest first, beside the folder of checkpoints with the metrics.
STAGES, CHECKPOINTS = "stages.json", "checkpoints"


def main(words: Sequence[str]) -> int:
    """Fetch it; return the exit code."""
    arguments = parser().parse_args(words)
    return options.main("report", lambda: _fetch(arguments.address, arguments.folder))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = argparse.ArgumentParser("python -m resnetboost_trainer fetch-metrics", description=__doc__)
    made.add_argument("address", metavar="ADDRESS", help="address in object storage above the checkpoints of a job")
    made.add_argument("folder", metavar="DIR", type=Path, help="folder to write to")
    return made


def _fetch(address: str, folder: Path) -> int:
    manifests = fetched.metrics(address, "DIR", folder / CHECKPOINTS)
    (folder / STAGES).write_bytes(msgspec.json.encode(manifests))
    return 0
