"""Whole Adasum runs: killed ranks resume bit for bit, and the tutorial's 2 nodes x 8 devices train."""

import csv
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.wholerun import Run, checkpointed, completed, job

pytestmark = pytest.mark.slow


def adasum(device: dict[str, int], batch: int, stage: dict[str, Any]) -> dict[str, Any]:
    base = {"name": "base", "algorithm": "Adasum", "localBatchSize": batch, "learningRate": {"peak": 0.02}}
    return job(base | stage, device={"type": "CPU", **device}, checkpoint={"everySteps": 7, "keep": 3})


# All features at once: a number of nodes that is no power of two, momentum per node, and THOR's curvature.
THREE = adasum({"count": 3}, batch=24, stage={"epochs": 2, "thor": {"frequency": 5}})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return completed(tmp_path_factory.mktemp("undisturbed"), THREE)


def test_an_undisturbed_run_learns_and_reports_sums(undisturbed: Run) -> None:
    assert undisturbed.status()["stages"][0]["top1"] >= 0.93
    shards = {f"{kind}-{number:04d}.safetensors" for kind in ("rank", "node") for number in range(3)}
    assert set(undisturbed.weights()) == shards | {"model.safetensors", "optimizer.safetensors"}
    with (undisturbed.out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["adasum_gain"]) > 1 for row in rows)
    assert all(-1 <= float(row["adasum_cosine_min"]) <= float(row["adasum_cosine"]) <= 1 for row in rows)
    assert all(0 < float(row["adasum_seconds"]) <= float(row["collective_seconds"]) for row in rows)
    assert any(row["damping"] for row in rows), "THOR never updated its curvature"


def test_a_killed_rank_resumes_to_the_same_bits(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, THREE).start()
    run.wait(checkpointed(14))
    told = run.ask(2, "/metrics")
    for level in ("fold", "gather"):
        assert f'level="{level}",rank="2"' in told, level
    assert 'level="1"' not in told, "the extra rank has no part in a level"
    os.kill(run.rank(2), signal.SIGKILL)
    code, output = run.finish()
    assert code == 0, output
    assert run.status()["restarts"] == 1
    assert run.weights() == undisturbed.weights()


@pytest.mark.long
def test_two_nodes_of_eight_train(tmp_path: Path) -> None:
    """The setting of MindSpore's tutorial, for an epoch of eleven steps."""
    run = Run(tmp_path, adasum({"count": 16, "perNode": 8}, batch=8, stage={"epochs": 1})).start()
    code, output = run.finish()
    assert code == 0, output
    with (run.out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1437 // (16 * 8)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert all(1 < float(row["adasum_gain"]) < 2.5 for row in rows), "two nodes are summed, not sixteen ranks"
    assert len([name for name in run.weights() if name.startswith("node-")]) == 2
