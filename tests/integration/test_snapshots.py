"""Whole runs that keep snapshots: killed during a write, resumed, or started from another job's weights."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from resnetboost_trainer.checkpoint import snapshots
from resnetboost_trainer.checkpoint.snapshots import Reader
from resnetboost_trainer.models import resnet
from support import onerank
from support.wholerun import Run, checkpointed, completed, job

pytestmark = pytest.mark.slow

BASE = Path("checkpoints/uid/base")
# 5.5 of an epoch's 22 steps, so that every other one is rounded.
RULE = {"everyEpochs": 0.25, "from": 0, "keep": 100}
STEPS = [0, 6, 11, 17, 22, 28, 33, 39, 44]
TIMEOUT_SECONDS = 120


def train(folder: Path, attempt: int, uid: str = "uid", **settings: Any) -> Path:
    onerank.train(folder, attempt, uid, **{"config": {"snapshots": RULE}} | settings)
    return folder / "checkpoints" / uid / "base" / f"attempt-{attempt}"


def kept(root: Path, uid: str = "uid") -> dict[int, bytes]:
    """All snapshots that count, by step, checked to be whole."""
    found = snapshots.find(root, uid, "base")
    numbers = len(safetensors.numpy.load_file(found[0].path)[snapshots.TENSOR])
    with Reader(found, numbers) as reader:
        rows = reader.read(0, numbers)
        reader.verify()
        return {snapshot.step: row.tobytes() for snapshot, row in zip(found, rows, strict=True)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one attempt with all its checkpoints and snapshots."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, attempt=0)
    return folder


def test_a_snapshot_is_the_trainable_weights_in_their_order(undisturbed: Path) -> None:
    weights = kept(undisturbed / "checkpoints")
    assert list(weights) == STEPS
    parameters = list(resnet.build("resnet20", 10, 1).trainable_params())
    assert weights[0] == snapshots.vector(parameters).tobytes()
    for step in STEPS[1:]:
        saved = safetensors.numpy.load_file(undisturbed / BASE / f"attempt-0/step-{step:08d}/model.safetensors")
        expected = np.concatenate([saved[parameter.name].reshape(-1) for parameter in parameters])
        assert weights[step] == expected.tobytes()
    found = snapshots.find(undisturbed / "checkpoints", "uid", "base")
    assert {snapshot.layout for snapshot in found} == {snapshots.layout(parameters)}
    assert snapshots.layout(parameters[::-1]) != found[0].layout


def leave_off(undisturbed: Path, step: int, snapshot: int, folder: Path) -> Path:
    """Files of a rank killed with those checkpoints on disk, while it writes the snapshot after them."""
    whole, attempt = undisturbed / BASE / "attempt-0", folder / BASE / "attempt-0"
    names = [f"step-{step:08d}", *(f"snapshot-{kept:08d}" for kept in STEPS if kept <= snapshot)]
    for name in names:
        shutil.copytree(whole / name, attempt / name)
    (attempt / ".snapshot-00000039.partial").mkdir()
    (attempt / ".snapshot-00000039.partial" / snapshots.FILE).write_bytes(b"half of it")
    return attempt


@pytest.mark.parametrize(("uid", "resume"), [("uid", "Never"), ("again", "Required")], ids=["restart", "applied again"])
@pytest.mark.parametrize(
    ("step", "snapshot"),
    [(16, 17), (17, 17), (12, 33)],
    ids=["before the checkpoint of the same step", "after it", "long after the last checkpoint"],
)
def test_a_restart_after_a_killed_write_gives_the_same_bits(
    step: int, snapshot: int, uid: str, resume: str, undisturbed: Path, tmp_path: Path
) -> None:
    left = leave_off(undisturbed, step, snapshot, tmp_path)
    attempt = train(tmp_path, 1, uid, resume=resume)
    assert kept(tmp_path / "checkpoints", uid) == kept(undisturbed / "checkpoints")
    assert onerank.final_weights(attempt) == onerank.final_weights(undisturbed / BASE / "attempt-0")
    if uid == "uid":
        assert not list(left.glob(".*"))
        written = sorted(int(path.name[-8:]) for path in attempt.glob("snapshot-*"))
        assert written == [due for due in STEPS if due > step], "it did not begin afresh"


def test_a_missing_snapshot_of_the_initial_weights_is_written_later(undisturbed: Path, tmp_path: Path) -> None:
    """Killed between the checkpoint of step 0, of a job started from another, and its snapshot."""
    start = {"startFrom": {"stage": "base", "jobName": "digits"}}
    shutil.copytree(undisturbed / "checkpoints", tmp_path / "checkpoints")
    first = train(tmp_path, 0, "second", config={"snapshots": RULE, "epochs": 1} | start)
    expected = kept(tmp_path / "checkpoints", "second")
    assert expected[0] == kept(undisturbed / "checkpoints")[44]
    for other in first.glob("[!.]*-*"):
        if other.name != "step-00000000":
            shutil.rmtree(other)
    shutil.rmtree(tmp_path / "checkpoints/uid")
    train(tmp_path, 1, "second", config={"snapshots": RULE, "epochs": 1} | start)
    assert kept(tmp_path / "checkpoints", "second") == expected


def test_a_rank_killed_during_a_snapshot_loses_none(undisturbed: Path, tmp_path: Path) -> None:
    """Nor of the ones that are kept: the newest six of both attempts."""
    settings: dict[str, Any] = {"config": {"snapshots": RULE | {"keep": 6}}, "everySteps": 4, "keep": 2}
    first = tmp_path / BASE / "attempt-0"
    rank = onerank.start(tmp_path, attempt=0, spawned=True, **settings)
    try:
        wait_for(first, "snapshot-00000017")
        wait_for(first, ".snapshot-*.partial")
    finally:
        rank.send_signal(signal.SIGKILL)
        rank.wait()
    assert not (first / f"step-{onerank.STEPS:08d}").exists()
    second = train(tmp_path, 1, **settings)
    every = kept(undisturbed / "checkpoints")
    assert kept(tmp_path / "checkpoints") == {step: every[step] for step in STEPS[-6:]}
    assert onerank.final_weights(second) == onerank.final_weights(undisturbed / BASE / "attempt-0")
    assert not list(first.glob(".*"))


def wait_for(attempt: Path, pattern: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not any(attempt.glob(pattern)):
        assert time.monotonic() < deadline, pattern


JOB = job(
    {
        "name": "base",
        "algorithm": "Momentum",
        "epochs": 4,
        "localBatchSize": 32,
        "learningRate": {"peak": 0.1},
        "snapshots": {"everyEpochs": 0.25, "from": 1, "keep": 8},
    },
    checkpoint={"everySteps": 10, "keep": 3},
)


def kept_by(run: Run) -> dict[int, bytes]:
    (uid,) = os.listdir(run.out / "checkpoints")
    return kept(run.out / "checkpoints", uid)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An undisturbed run of two ranks."""
    return completed(tmp_path_factory.mktemp("pair"), JOB)


def check_telling(run: Run) -> None:
    """Check the metrics of snapshots: duration, and step of the newest."""
    lines = dict(line.rsplit(" ", 1) for line in run.ask(0, "/metrics").splitlines())
    labels = '{job_name="digits",job_namespace="default",rank="0",stage="base"}'
    assert float(lines[f"resnetboost_snapshot_step{labels}"]) >= 39
    assert float(lines[f"resnetboost_snapshot_seconds_count{labels}"]) >= 4


@pytest.mark.parametrize("victim", [0, 1], ids=["the one that writes", "another"])
def test_a_killed_rank_of_two_costs_no_snapshot(victim: int, pair: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, JOB).start()
    run.wait(checkpointed(40))
    check_telling(run)
    os.kill(run.rank(victim), signal.SIGKILL)
    code, output = run.finish()
    assert code == 0, output
    assert run.status()["restarts"] == 1
    assert kept_by(run) == kept_by(pair)
    assert run.weights() == pair.weights()


def test_two_ranks_keep_their_common_weights_from_the_first_wanted_epoch_on(pair: Run) -> None:
    assert list(kept_by(pair)) == [50, 55, 61, 66, 72, 77, 83, 88]
