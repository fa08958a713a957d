"""Reads event files with TensorBoard's own reader, which also checks their sums."""

import subprocess
from pathlib import Path

import msgspec

from beds.trackers import packages

_READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
scalars = {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
json.dump(scalars, sys.stdout)
"""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each point, by tag, as TensorBoard shows them: without what a later attempt replaced."""
    done = subprocess.run(
        [packages.python(), "-c", _READER, folder], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=dict[str, list[tuple[int, float]]])
