"""Whole THOR runs of one real rank, killed before, after and between updates, end in the same bits.

The trace rule keeps some layers and stops others during the run, so its state must be restored too.
"""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from support import onerank

pytestmark = pytest.mark.slow

BASE = Path("checkpoints/uid/base")
THOR = {"frequency": 5, "traceRule.updateAbove": 0.8, "traceRule.stopBelow": 0.32, "traceRule.smoothing": 0.5}
CHANGES = [f"stages[0].thor.{field}={value}" for field, value in THOR.items()]


def train(folder: Path, attempt: int, **checkpoint: Any) -> Path:
    onerank.train(folder, attempt, example="digits-thor", changes=CHANGES, **checkpoint)
    return folder / BASE / f"attempt-{attempt}"


def decisions(attempt: Path) -> dict[int, tuple[int, ...]]:
    """Decisions about the layers at each update, by 0-based step."""
    with (attempt / "metrics.csv").open() as file:
        return {
            int(row["step"]) - 1: tuple(int(row[f"layers_{name}"]) for name in ("updated", "kept", "stopped", "failed"))
            for row in csv.DictReader(file)
            if row["damping"]
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only attempt of a run, with all its checkpoints."""
    return train(tmp_path_factory.mktemp("undisturbed"), attempt=0)


def test_updates_are_due_every_so_many_steps_and_the_trace_rule_decides(undisturbed: Path) -> None:
    told = decisions(undisturbed)
    assert list(told) == list(range(0, onerank.STEPS, 5))
    assert told[0] == (20, 0, 0, 0)
    assert {sum(counts) for counts in told.values()} == {20}
    updated, kept, stopped, failed = zip(*told.values(), strict=True)
    assert any(updated[1:])
    assert any(kept)
    assert any(stopped)
    assert list(stopped) == sorted(stopped), "one that was stopped came back"
    assert not any(failed)


@pytest.mark.parametrize("steps", [5, 6, 19], ids=["before an update", "after it", "between two"])
def test_a_rank_killed_after_any_checkpoint_resumes_to_the_same_bits(
    steps: int, undisturbed: Path, tmp_path: Path
) -> None:
    left = tmp_path / BASE / "attempt-0"
    shutil.copytree(undisturbed / f"step-{steps:08d}", left / f"step-{steps:08d}")
    resumed = train(tmp_path, attempt=1, everySteps=onerank.STEPS)
    assert onerank.final_weights(resumed) == onerank.final_weights(undisturbed)
    expected = {step: counts for step, counts in decisions(undisturbed).items() if step >= steps}
    assert decisions(resumed) == expected
