"""`resnetboost lr-find` end to end: real sweeps of small jobs, and jobs that it refuses."""

import csv
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))


def lr_find(folder: Path, *options: str, job: str = "digits") -> subprocess.CompletedProcess[str]:
    words = [RESNETBOOST, "lr-find", str(EXAMPLES / f"{job}.yaml"), "--out", str(folder), *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=500)


def test_a_sweep_leaves_a_curve_a_picture_and_a_suggestion(tmp_path: Path) -> None:
    options = ("--steps", "24", "--from", "1e-4", "--to", "50", "--set", "stages[0].localBatchSize=8")
    (tmp_path / "config.yaml").write_text("mine")
    done = lr_find(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert "suggestion: learningRate.peak = " in done.stdout
    with (tmp_path / "lr-find.csv").open() as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates[0] == 1e-4 and rates == sorted(rates)
    assert 10 <= len(rates) <= 24
    assert (tmp_path / "lr-find.png").read_bytes().startswith(b"\x89PNG")
    own = {"lr-find-config.yaml", "lr-find.csv", "lr-find.png"}
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", *own}
    assert (tmp_path / "config.yaml").read_text() == "mine"
    first = (tmp_path / "lr-find.csv").read_bytes()
    assert lr_find(tmp_path, *options).returncode == 0
    assert (tmp_path / "lr-find.csv").read_bytes() == first


def test_what_cannot_be_swept_is_refused_in_a_sentence(tmp_path: Path) -> None:
    refused = {
        "PCA cannot be swept on one rank": ("digits-two-stage", "--stage", "fine"),
        "Adasum cannot be swept on one rank": ("digits-adasum",),
        "--to: 0.1 must be above --from, 1": ("digits", "--from", "1", "--to", "0.1"),
        "--stage: nowhere is no stage of the job": ("digits", "--stage", "nowhere"),
    }
    for reason, (job, *options) in refused.items():
        done = lr_find(tmp_path, *options, job=job)
        assert done.returncode != 0
        assert reason in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "lr-find.csv").exists()
