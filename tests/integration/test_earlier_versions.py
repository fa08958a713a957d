"""Compatibility with a run folder of an earlier version: it is read, and training resumes from its checkpoints.

tests/corpus/earlier/run-17bdd0d.tar.xz is a run of commit 17bdd0d: a THOR stage with a moving average and snapshots,
and a PCA stage that starts from them. Its tensors were rounded to a few values to make the file small; commit 17bdd0d
then resumed training from it, with the losses below.
"""

import csv
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from resnetboost_operator.runs import report, runfolder

pytestmark = pytest.mark.slow

RUN = Path(__file__).parents[1] / "corpus" / "earlier" / "run-17bdd0d.tar.xz"
# Losses of steps 23 to 26 and of the last step, 44; steps 23 on follow the checkpoint.
BASE = (0.7082525, 0.7997992, 0.8335077, 0.7256362, 0.6452318)
FINE = (0.6865952, 0.665899, 0.6882798, 0.6582203, 0.6631273)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def train_on(run: Path, pod: str) -> list[float]:
    """Losses of the second epoch of a stage, trained by a later attempt with that version's config file."""
    settings = yaml.safe_load((run / "pods" / pod / "config/config.yaml").read_text()) | {"attempt": 5, "epochs": 2}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    variables = {
        "RESNETBOOST_CHECKPOINTS": str(run / "checkpoints"),
        "RESNETBOOST_TERMINATION_LOG": str(run / "termination"),
        "RESNETBOOST_BIND_ADDRESS": "127.0.0.1",
        "RESNETBOOST_METRICS_PORT": "0",
    }
    command = [sys.executable, "-m", "resnetboost_trainer", "config.yaml"]
    subprocess.run(command, env=os.environ | variables, cwd=run, check=True, timeout=400)
    metrics = run / "checkpoints" / settings["job"]["uid"] / settings["stage"] / "attempt-5" / "metrics.csv"
    with metrics.open() as file:
        rows = {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file) if row["loss"]}
    assert min(rows) == 23, "it did not resume from the checkpoint"
    return [rows[step] for step in (23, 24, 25, 26, 44)]


# The last bits differ between processors; a wrong weight or factor shows in the second digit.
@pytest.mark.parametrize(
    ("pod", "expected"), [("earlier-base-0-0", BASE), ("earlier-fine-1-0", FINE)], ids=["THOR", "PCA"]
)
def test_training_goes_on_from_its_checkpoints(run: Path, pod: str, expected: tuple[float, ...]) -> None:
    losses = train_on(run, pod)
    assert losses[:4] == pytest.approx(expected[:4], rel=2e-3)
    assert losses[4] == pytest.approx(expected[4], rel=2e-2)


def test_its_folder_gets_a_report(run: Path) -> None:
    report.write_report(runfolder.open_existing(run))
    page = (run / "report.html").read_text()
    assert "96.7 %" in page
    assert "fine" in page
