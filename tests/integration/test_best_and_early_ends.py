"""Best checkpoints and early ends of real gangs: the same after kills around their writes; starts from the best."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from resnetboost_trainer.checkpoint import best, snapshots, store
from support import onerank
from support.halts import Halts
from support.wholerun import Run, completed, job

pytestmark = pytest.mark.slow

BASE = Path("checkpoints/uid/base")
BEST = {"metric": "top1", "keep": 1}
JOB = job(
    {
        "name": "base",
        "algorithm": "Momentum",
        "epochs": 6,
        "localBatchSize": 32,
        "learningRate": {"peak": 0.1, "warmupEpochs": 1},
        "stopWhen": {"top1": 0.9},
    },
    {
        "name": "fine",
        "algorithm": "Momentum",
        "epochs": 1,
        "localBatchSize": 64,
        "deviceCount": 1,
        "startFrom": {"stage": "base", "which": "Best"},
    },
    checkpoint={"everySteps": 10, "keep": 2, "claimName": "digits", "best": BEST},
    failurePolicy={"backoffSeconds": 0, "maxRestarts": 8},
)


def bits(run: Run, stage: str, kind: str) -> dict[str, bytes]:
    """The furthest checkpoint of that kind, without its manifest."""
    found = max(run.out.glob(f"checkpoints/*/{stage}/attempt-*/{kind}-*"), key=lambda path: path.name)
    return {f"{found.name}/{path.name}": path.read_bytes() for path in found.glob("*.safetensors")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return completed(tmp_path_factory.mktemp("undisturbed"), JOB)


def test_a_target_ends_the_stage_and_the_next_one_begins(undisturbed: Run) -> None:
    base, fine = undisturbed.status()["stages"]
    assert (base["state"], base["stoppedEarly"]["reason"], fine["state"]) == ("Complete", "TargetReached", "Complete")
    assert base["best"]["value"] >= 0.9
    assert base["best"]["step"] == base["stoppedEarly"]["step"] < 6 * 22
    assert "stoppedEarly" not in fine
    assert base["stoppedEarly"]["message"] in (undisturbed.out / "report.html").read_text()


def test_killed_around_the_writes_of_the_best_and_of_the_end_it_ends_with_the_same_bits(
    undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last,) = (path.name for path in undisturbed.out.glob("checkpoints/*/base/attempt-*/best-*"))
    places = {
        "torn": r"open .*/base/attempt-\d+/\.best-00000022\.partial/manifest\.json$",
        "replaced": r"os\.rename .*/base/attempt-\d+/best-00000022$",
        "end": rf"open .*/base/attempt-\d+/\.{last.replace('best', 'step')}\.partial/manifest\.json$",
    }
    with Halts(tmp_path, monkeypatch, **places) as halts:
        run = Run(tmp_path, JOB).start()
        for place in places:
            halts.kill(place)
        code, output = run.finish()
    assert code == 0, output
    status = run.status()
    assert status["restarts"] == len(places)
    for one, other in zip(status["stages"], undisturbed.status()["stages"], strict=True):
        assert [one.get(name) for name in ("best", "stoppedEarly", "top1")] == [
            other.get(name) for name in ("best", "stoppedEarly", "top1")
        ]
    for stage, kind in (("base", "best"), ("base", "step"), ("fine", "best"), ("fine", "step")):
        assert bits(run, stage, kind) == bits(undisturbed, stage, kind), (stage, kind)
    assert len(list(run.out.glob("checkpoints/*/base/attempt-*/best-*"))) == 1


# Top-1 never improves by half after the first evaluation, so that the third one ends the stage.
PATIENCE = ["stages[0].epochs=5", "stages[0].stopWhen.patience=2", "stages[0].stopWhen.minDelta=0.5"]
END = 66


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patient")
    onerank.train(folder, 0, changes=PATIENCE, best=BEST | {"keep": 3})
    return folder


def verdict(folder: Path, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"uid-{attempt}.json").read_text())
    return found


def files(folder: Path, attempt: int) -> dict[str, bytes]:
    found = folder / BASE / f"attempt-{attempt}" / f"step-{END:08d}"
    return {path.name: path.read_bytes() for path in found.glob("*.safetensors")}


def test_a_stage_without_improvement_ends(patient: Path) -> None:
    found = verdict(patient, 0)
    assert (found["step"], found["stoppedEarly"]["reason"]) == (END, "NoImprovement")
    assert found["message"].startswith("stopped early: top1 has not improved over ")
    assert "in 2 evaluations, after 3 of 5 epochs" in found["message"]


@pytest.mark.parametrize("saved", [50, 44, 43, END], ids=["later", "at an evaluation", "just before it", "at the end"])
def test_a_restart_counts_the_evaluations_before_it(saved: int, patient: Path, tmp_path: Path) -> None:
    shutil.copytree(patient / BASE / "attempt-0", tmp_path / BASE / "attempt-0")
    for path in store.candidates(tmp_path / "checkpoints", "uid", "base"):
        if store.step_of(path) > saved:
            shutil.rmtree(path)
    onerank.train(tmp_path, 1, changes=PATIENCE, best=BEST | {"keep": 3})
    found = verdict(tmp_path, 1)
    assert [found[name] for name in ("step", "stoppedEarly", "best", "top1")] == [
        verdict(patient, 0)[name] for name in ("step", "stoppedEarly", "best", "top1")
    ]
    assert files(tmp_path, 0 if saved == END else 1) == files(patient, 0)
    kept = best.find(tmp_path / "checkpoints", "uid", "base")
    assert sorted(one.manifest.step for one in kept) == [22, 44, 66], "an evaluation that is repeated is kept once"


def test_a_stage_that_starts_from_the_best_has_its_weights(patient: Path, tmp_path: Path) -> None:
    shutil.copytree(patient / BASE, tmp_path / BASE)
    for path in tmp_path.glob(f"{BASE}/attempt-0/best-*"):
        if store.step_of(path) != 22:
            shutil.rmtree(path)
    config = {
        "stage": "fine",
        "startFrom": {"stage": "base", "which": "Best"},
        "snapshots": {"everyEpochs": 1, "from": 0, "keep": 9},
    }
    onerank.train(tmp_path, 1, config=config)
    (snapshot, *_) = snapshots.find(tmp_path / "checkpoints", "uid", "fine")
    begun = safetensors.numpy.load_file(snapshot.path)["weights"]
    kept = safetensors.numpy.load_file(tmp_path / BASE / "attempt-0/best-00000022/model.safetensors")
    weights = [array.reshape(-1) for name, array in kept.items() if ".moving_" not in name]
    assert snapshot.step == 0
    assert np.array_equal(np.sort(begun), np.sort(np.concatenate(weights)))


def test_the_best_has_the_very_weights_that_were_evaluated(patient: Path) -> None:
    step, kept = (patient / BASE / "attempt-0" / f"{kind}-{END:08d}" / "model.safetensors" for kind in ("step", "best"))
    assert step.read_bytes() == kept.read_bytes(), "of one rank: the mean of its statistics is its own"
