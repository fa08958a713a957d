"""Where runs are by default, and the paths of those that are named. Quick to import: commands begin with it."""

import os
from pathlib import Path

RUNS = Path("runs")  # where `resnetboost run` writes run folders
JOB = "job.yaml"


def named(source: str) -> str:
    """The path of a run that is named as in ./runs; else `source`, which is a path, a file or an address."""
    run = RUNS / source
    is_name = os.sep not in source and not Path(source).is_file() and not (Path(source) / JOB).is_file()
    return str(run) if is_name and (run / JOB).is_file() else source
