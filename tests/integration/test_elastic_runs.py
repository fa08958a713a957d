"""`resnetboost run` of a folder on another number of ranks: fewer, refused ones, and as many as before."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resnetboost_operator.runs import metricsfile
from support import wholerun
from support.wholerun import Run, checkpointed

pytestmark = pytest.mark.slow

EPOCHS = 8
STEPS = 22 * EPOCHS


def job(count: int = 2, **stage: Any) -> dict[str, Any]:
    settings = {"name": "base", "algorithm": "Momentum", "localBatchSize": 32, "epochs": EPOCHS}
    return wholerun.job(settings | stage, count=count, checkpoint={"everySteps": 5})


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """Give the runs that start within so many cores, one per rank: a rank with more adds up in another order."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(ours)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def interrupted(folder: Path, job: dict[str, Any], step: int) -> str:
    """Run until a checkpoint of that step or a later one, and stop; return the output."""
    run = Run(folder, job).start()
    run.wait(checkpointed(step))
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    code, output = run.finish()
    assert code == 16, output
    return " ".join(output.split())


def test_a_run_of_two_ranks_goes_on_with_one_and_then_with_two(tmp_path: Path) -> None:
    undisturbed, moved = tmp_path / "undisturbed", tmp_path / "moved"
    for folder in (undisturbed, moved):
        folder.mkdir()
    with cores(2):
        code, output = Run(undisturbed, job()).start().finish()
        assert code == 0, output
        interrupted(moved, job(), 5)
    with cores(1):
        output = interrupted(moved, job(1), 70)
    assert "1 rank does the work of the 2 that define this run" in output
    assert "1 CPU rank · global batch 64" in output
    with cores(2):
        code, output = Run(moved, job()).start().finish()
    assert code == 0, output
    ours, theirs = (metricsfile.read(folder / "run" / "metrics.csv") for folder in (moved, undisturbed))
    assert len(ours.steps) == STEPS
    ranks = ours.column("ranks")
    for column in ("loss", "test_loss", "learning_rate"):
        assert ours.column(column) == pytest.approx(theirs.column(column), rel=1e-5, nan_ok=True)
    assert sorted(set(ranks)) == [1, 2] and (ranks[0], ranks[-1]) == (2, 2)
    assert theirs.column("ranks") == [2] * STEPS
    report = (moved / "run" / "report.html").read_text()
    assert "number of ranks" in report


def test_a_number_that_does_not_divide_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path, job(), 5)
    kept = (tmp_path / "run" / "job.yaml").read_text()
    code, output = Run(tmp_path, job(4)).start().finish()
    assert code == 10
    for part in ("device.count: 4", "defined by 2 ranks", "use 1 or 2", "--fresh"):
        assert part in " ".join(output.split())
    assert (tmp_path / "run" / "job.yaml").read_text() == kept
