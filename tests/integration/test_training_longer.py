"""More epochs for a finished run of one real rank: same bits as a longer run, or a new annealing stage."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.wholerun import Run, completed, job

pytestmark = pytest.mark.slow

EPOCH = 22  # steps


def annealed(epochs: int, **rate: Any) -> dict[str, Any]:
    """A job of one stage, whose learning rate covers its epochs by default."""
    learning_rate = {"peak": 0.1, "warmupEpochs": 0.5} | rate
    stage = {"name": "base", "algorithm": "Momentum", "epochs": epochs, "localBatchSize": 64}
    return job(stage | {"learningRate": learning_rate}, count=1)


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return completed(tmp_path_factory.mktemp("two"), annealed(2))


def results(run: Run) -> list[tuple[str, str, int]]:
    return [(stage["name"], stage["state"], stage["attempts"]) for stage in run.status()["stages"]]


def last_manifest(run: Run, stage: str) -> dict[str, Any]:
    found = max(run.out.glob(f"checkpoints/*/{stage}/attempt-*/step-*"), key=lambda path: path.name)
    told: dict[str, Any] = json.loads((found / "manifest.json").read_text())
    return told


def test_a_complete_run_that_goes_on_ends_with_the_bits_of_one_that_was_as_long_from_the_start(
    two_epochs: Run, tmp_path: Path
) -> None:
    completed(tmp_path, annealed(1, scheduleEpochs=2))
    run = completed(tmp_path, annealed(2, scheduleEpochs=2))
    assert run.weights() == two_epochs.weights()
    assert results(run) == [("base", "Complete", 2)]
    assert [line.split(",")[2] for line in (run.out / "metrics.csv").read_text().splitlines()[1:]] == [
        str(step) for step in range(1, 2 * EPOCH + 1)
    ]


def test_behind_an_annealed_stage_another_one_follows_from_its_weights_with_batches_of_its_own(two_epochs: Run) -> None:
    before = two_epochs.weights()
    run = Run(two_epochs.out.parent, annealed(3)).start()
    code, output = run.finish()
    assert code == 0, output
    assert "stage base-2 follows, from its weights and with its settings, for 1 more" in output
    assert results(run) == [("base", "Complete", 1), ("base-2", "Complete", 1)]
    assert run.weights() == before, "what was trained is as it was"
    (log,) = (run.out / "logs").glob("digits-base-2-*-0.log")
    assert f"stage base-2 starts from the weights of stage base, step {2 * EPOCH}" in log.read_text()
    first, second = last_manifest(run, "base"), last_manifest(run, "base-2")
    assert (first["lineage"], second["step"]) == (0, EPOCH)
    assert second["lineage"] != 0
    assert run.status()["stages"][1]["top1"] > 0.8
