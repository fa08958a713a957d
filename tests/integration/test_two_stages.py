"""Jobs of several stages, killed within and between stages, end in the same bits as an undisturbed run."""

import csv
import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from resnetboost_trainer.checkpoint import snapshots
from resnetboost_trainer.optim.pca import basis
from support import onerank, trainerconfig
from support.halts import Halts
from support.wholerun import Run, completed, job

pytestmark = pytest.mark.slow

INTERRUPTED = 16
EPOCH = 22  # steps, in all stages


def pca(name: str, solver: str, batch: int, **fields: Any) -> dict[str, Any]:
    """A PCA stage in a subspace of six dimensions."""
    settings = {"components": 6, "solver": solver}
    return {"name": name, "algorithm": "PCA", "epochs": 1, "localBatchSize": batch, "pca": settings} | fields


JOB = job(
    {
        "name": "base",
        "algorithm": "Momentum",
        "epochs": 2,
        "localBatchSize": 32,
        "learningRate": {"schedule": "Linear", "peak": 0.1, "scheduleEpochs": 3},
        "snapshots": {"everyEpochs": 0.2, "from": 0.2, "keep": 9},
    },
    pca("fine", "BFGS", batch=64, deviceCount=1),
    pca("other", "SGD", batch=32, startFrom={"stage": "base"}, learningRate={"peak": 0.02}),
    checkpoint={"everySteps": 5, "keep": 3, "claimName": "digits"},
    failurePolicy={"backoffSeconds": 0, "maxRestarts": 8},
)
STAGES = [stage["name"] for stage in JOB["spec"]["stages"]]


def job_folder(run: Run) -> Path:
    """Folder of the files of all stages."""
    (folder,) = (path for path in (run.out / "checkpoints").iterdir() if not path.name.startswith("."))
    return folder


def last_bits(stage: Path) -> dict[str, str]:
    """Hashes of all files of the furthest checkpoint: weights, BN's statistics, optimizer state."""
    final = max(stage.glob("attempt-*/step-*"), key=lambda path: path.name)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in final.glob("*.safetensors")}


def kept_snapshots(stage: Path) -> dict[int, str]:
    found = snapshots.find(stage.parents[1], stage.parent.name, stage.name)
    for snapshot in found:
        assert hashlib.sha256(snapshot.path.read_bytes()).hexdigest() == snapshot.sha256
    return {snapshot.step: snapshot.sha256 for snapshot in found}


def rows(run: Run, stage: str) -> list[dict[str, str]]:
    with (run.out / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["stage"] == stage]


def check_same(run: Run, undisturbed: Run) -> None:
    for stage in STAGES:
        assert last_bits(job_folder(run) / stage) == last_bits(job_folder(undisturbed) / stage), stage
        losses = [(row["step"], row["loss"]) for row in rows(run, stage)]
        assert losses == [(row["step"], row["loss"]) for row in rows(undisturbed, stage)], stage
    assert kept_snapshots(job_folder(run) / "base") == kept_snapshots(job_folder(undisturbed) / "base")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return completed(tmp_path_factory.mktemp("undisturbed"), JOB)


def test_stages_of_their_own_device_counts_run_one_after_the_other(undisturbed: Run) -> None:
    status = undisturbed.status()
    assert [(stage["name"], stage["state"], stage["attempts"]) for stage in status["stages"]] == [
        (name, "Complete", 1) for name in STAGES
    ]
    assert status["restarts"] == 0
    ranks = {path.name.removeprefix("digits-") for path in (undisturbed.out / "logs").iterdir()}
    assert ranks == {"base-0-0.log", "base-0-1.log", "fine-1-0.log", "other-2-0.log", "other-2-1.log"}
    assert list(kept_snapshots(job_folder(undisturbed) / "base")) == [9, 13, 18, 22, 26, 31, 35, 40, 44]


def test_a_pca_stage_tells_how_its_steps_went(undisturbed: Run) -> None:
    assert all(not row["pca_step_length"] for row in rows(undisturbed, "base"))
    for stage in ("fine", "other"):
        told = rows(undisturbed, stage)
        assert len(told) == EPOCH
        (explained,) = {float(row["pca_explained_variance"]) for row in told}
        assert 0.5 < explained < 1
        assert all(0 < float(row["pca_gradient_share"]) < 1 for row in told)
        assert all(0 < float(row["pca_seconds"]) < float(row["compute_seconds"]) for row in told)
    assert all(int(row["pca_evaluations"]) >= 1 for row in rows(undisturbed, "fine"))
    assert all(0 <= float(row["pca_step_length"]) <= 1 for row in rows(undisturbed, "fine"))
    assert "subspace" in (undisturbed.out / "report.html").read_text()


def partial(stage: str, name: str) -> str:
    """Whether a writer has written the contents but not yet the manifest."""
    return rf"open .*/{stage}/attempt-\d+/\.{name}\.partial/manifest\.json$"


PLACES = {
    "base": partial("base", "step-00000010"),
    "snapshot": partial("base", "snapshot-00000026"),
    "between": r"open .*/logs/digits-fine-\d+-0\.log$",
    "products": r"os\.rename .*/\.products/\.",
    "fine": partial("fine", "step-00000015"),
    "other": partial("other", "step-00000010"),
}


def test_killed_in_every_stage_and_between_them_it_ends_with_the_same_bits(
    undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Halts(tmp_path, monkeypatch, **PLACES) as halts:
        run = Run(tmp_path, JOB).start()
        base = killed_until_base_is_complete(run, halts)
        folders = attempts(run, "base")
        run.start()
        halts.kill("products")
        halts.kill("fine")
        ask_to_stop(run, halts, "other")
    run.start()
    code, output = run.finish()
    assert code == 0, output
    check_same(run, undisturbed)
    status = run.status()
    assert [(stage["state"], stage["attempts"]) for stage in status["stages"]] == [
        ("Complete", count) for count in (3, 3, 2)
    ]
    assert status["restarts"] == 4, "neither the killed runner's nor the asked one's counts"
    assert status["stages"][0] == base
    assert attempts(run, "base") == folders, "a finished stage was run again"
    left = [path for path in (run.out / "checkpoints").rglob(".*") if path.name != basis.PRODUCTS]
    assert not left, "what killed writers left is still there"


def killed_until_base_is_complete(run: Run, halts: Halts) -> dict[str, Any]:
    """Kill a rank, then a snapshot's writer, then the runner when it starts the next stage; returns base's status."""
    halts.reached("base")
    os.kill(run.rank(1), signal.SIGKILL)
    halts.release("base")
    halts.kill("snapshot")
    halts.kill("between")
    assert run.finish()[0] == -signal.SIGKILL
    status = run.status()
    base: dict[str, Any] = status["stages"][0]
    assert (status["stage"], base["state"]) == ("fine", "Complete")
    return base


def ask_to_stop(run: Run, halts: Halts, place: str) -> None:
    """Send SIGTERM to the runner, like Ctrl-C, in the middle of a stage."""
    halts.reached(place)
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    halts.release(place, after=signal.SIGTERM)
    code, output = run.finish()
    assert code == INTERRUPTED, output
    assert run.status()["phase"] == "Suspended"


def attempts(run: Run, stage: str) -> list[str]:
    return sorted(os.listdir(job_folder(run) / stage))


KEPT: dict[str, Any] = {"everySteps": 5, "keep": 3}
# Of stages of one epoch, which leaves none for a warm-up.
RATE = trainerconfig.GOOD["learningRate"] | {"warmupEpochs": 0}
IN_ANOTHER_JOB: dict[str, Any] = {
    "stage": "fine",
    "algorithm": "PCA",
    "epochs": 1,
    "learningRate": RATE,
    "startFrom": {"stage": "base", "jobName": "digits"},
    "pca": {
        "components": 6,
        "solver": "BFGS",
        "lineSearch": {"contraction": 0.55, "sufficientDecrease": 0.4, "maxTrials": 20},
        "residual": {"momentum": 0.9, "learningRate": 0.001},
    },
}


@pytest.fixture(scope="module")
def first_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with a job that was stopped early and kept snapshots."""
    folder = tmp_path_factory.mktemp("first")
    rule = {"everyEpochs": 0.1, "from": 0, "keep": 9}
    onerank.train(folder, 0, "first", config={"snapshots": rule, "epochs": 1, "learningRate": RATE}, **KEPT)
    return folder / "checkpoints"


def test_killed_in_a_job_that_starts_from_another_which_is_then_deleted(
    first_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, volume = tmp_path / "whole", tmp_path / "checkpoints"
    for copy in (whole / "checkpoints", volume):
        shutil.copytree(first_job, copy)
    onerank.train(whole, 0, "second", config=IN_ANOTHER_JOB, **KEPT)
    places = {name: partial("fine", name) for name in ("origin-00000013", "step-00000000", "step-00000010")}
    with Halts(tmp_path, monkeypatch, **places) as halts:
        for attempt, place in enumerate(places):
            rank = onerank.start(tmp_path, attempt, "second", config=IN_ANOTHER_JOB, **KEPT)
            halts.kill(place)
            assert rank.wait() == -signal.SIGKILL
    shutil.rmtree(volume / "first")
    shutil.rmtree(volume / ".products")
    onerank.train(tmp_path, 3, "second", config=IN_ANOTHER_JOB, **KEPT)
    assert last_bits(volume / "second/fine") == last_bits(whole / "checkpoints/second/fine")
