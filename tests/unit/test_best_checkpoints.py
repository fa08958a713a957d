"""The best checkpoints on disk: ranking, pruning beside the newest, kills, roll-backs and other jobs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnetboost_api.evaluations import Best
from resnetboost_trainer.checkpoint import best, lookup, store
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.evaluations import BestMark, evaluated
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.config import RollBack
from support import smallcheckpoints
from support.smallcheckpoints import CONTENTS, MODEL, manifest

UID, STAGE = "uid", "base"


def mark(step: int, top1: float, metric: Any = "top1", loss: float = 1.0) -> BestMark:
    return BestMark(metric=metric, evaluation=evaluated(step, top1, 0.9, loss, averaged=False))


def save(root: Path, step: int, top1: float, metric: Any = "top1", loss: float = 1.0, **changes: Any) -> Path:
    ours = manifest(step, best=mark(step, top1, metric, loss), **changes)
    directory = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
    return store.write(directory, ours, {MODEL: {"w": np.full(3, top1, np.float32)}}, "best")[0]


def steps(root: Path, **more: Any) -> list[int]:
    return [kept.manifest.step for kept in best.find(root, UID, STAGE, **more)]


def test_the_best_comes_first_and_of_equal_ones_the_earliest(tmp_path: Path) -> None:
    for step, top1 in ((10, 0.7), (20, 0.9), (30, 0.8), (40, 0.9)):
        save(tmp_path, step, top1)
    assert steps(tmp_path) == [20, 40, 30, 10]


def test_of_losses_the_least_is_the_best(tmp_path: Path) -> None:
    for step, loss in ((10, 0.5), (20, 0.25), (30, 2.0)):
        save(tmp_path, step, 0.5, "loss", loss)
    assert steps(tmp_path) == [20, 10, 30]


@pytest.mark.parametrize(
    ("step", "top1", "wanted"),
    [(30, 0.85, True), (30, 0.8, False), (30, 0.7, False), (10, 0.8, False), (10, 0.81, True)],
    ids=["better than the last", "as good as the last", "worse", "evaluated again", "evaluated again, better"],
)
def test_only_one_that_is_better_than_those_kept_is_wanted(
    step: int, top1: float, wanted: bool, tmp_path: Path
) -> None:
    save(tmp_path, 10, 0.8)
    save(tmp_path, 20, 0.9)
    kept = best.find(tmp_path, UID, STAGE)
    assert best.is_wanted(Best(keep=2), mark(step, top1), kept) is wanted


def test_as_many_as_asked_for_are_wanted_however_good_they_are(tmp_path: Path) -> None:
    save(tmp_path, 10, 0.8)
    assert best.is_wanted(Best(keep=2), mark(20, 0.1), best.find(tmp_path, UID, STAGE))
    assert not best.is_wanted(Best(keep=2, metric="loss"), mark(20, 0.1, "loss", float("nan")), [])


def run(root: Path, attempt: int, *saved: tuple[int, float], keep: int = 1, newest: int = 2, **more: Any) -> None:
    """An attempt that saves a best checkpoint and then a checkpoint at each of these steps."""
    usable = more.get("usable", store.every)
    keeping = {
        "step": Keeping(newest, lambda *_: None, **more),
        "best": Keeping(keep, lambda *_: None, usable=usable),
    }
    saving = Saver(root, keeping)  # type: ignore[arg-type]
    for step, top1 in saved:
        ours = manifest(step, attempt=attempt)
        if best.is_wanted(Best(keep=keep), mark(step, top1), best.find(root, UID, STAGE, attempt + 1, usable)):
            saving.save(manifest(step, attempt=attempt, best=mark(step, top1)), CONTENTS, "best")
            saving.wait()
        saving.save(ours, CONTENTS)
    saving.wait()


def names(root: Path) -> list[str]:
    return sorted(f"{path.parent.name[-1]}/{path.name}" for path in root.glob(f"{UID}/{STAGE}/attempt-*/*"))


def test_the_newest_never_displace_the_best_nor_the_best_the_newest(tmp_path: Path) -> None:
    run(tmp_path, 0, (10, 0.9), (20, 0.5), (30, 0.6), (40, 0.7))
    assert names(tmp_path) == ["0/best-00000010", "0/step-00000030", "0/step-00000040"]


def test_what_a_kill_around_the_write_leaves_is_cleared_by_the_next_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, 0, (10, 0.5), (20, 0.6))
    save(tmp_path, 30, 0.7)  # killed before the one before was removed
    torn = tmp_path / UID / STAGE / "attempt-0" / ".best-00000040.partial"
    torn.mkdir()
    (torn / MODEL).write_bytes(b"half")
    assert steps(tmp_path) == [30, 20]
    run(tmp_path, 1, (50, 0.1))
    assert names(tmp_path) == ["0/best-00000030", "0/step-00000020", "1/step-00000050"]


def test_a_roll_back_removes_the_best_of_the_branch_that_diverged(tmp_path: Path) -> None:
    run(tmp_path, 0, (10, 0.5), (20, 0.9), keep=2, newest=9)
    back = RollBack(attempt=0, stage=STAGE, from_step=25, at_most_step=15)
    usable = Branch((back,)).usable
    assert steps(tmp_path, usable=usable) == [10], "not used, even before it is removed"
    run(tmp_path, 1, (20, 0.6), usable=usable, keep=2)
    assert names(tmp_path) == ["0/best-00000010", "0/step-00000010", "1/best-00000020", "1/step-00000020"]


def test_a_stale_gang_leaves_the_best_of_its_successor_alone(tmp_path: Path) -> None:
    save(tmp_path, 10, 0.9, attempt=2)
    run(tmp_path, 1, (10, 0.5), (20, 0.6))
    assert names(tmp_path) == ["1/best-00000020", "1/step-00000010", "1/step-00000020", "2/best-00000010"]


def test_a_manifest_that_cannot_be_read_is_passed_over_and_kept(tmp_path: Path) -> None:
    (save(tmp_path, 10, 0.9) / store.MANIFEST).write_text("{")
    run(tmp_path, 0, (20, 0.5))
    assert "0/best-00000010" in names(tmp_path)
    assert steps(tmp_path) == [20]


def test_the_best_intact_one_is_read(tmp_path: Path) -> None:
    save(tmp_path, 10, 0.8)
    damaged = save(tmp_path, 20, 0.9) / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    found = best.read(tmp_path, UID, STAGE, (MODEL,))
    assert found is not None
    assert found.manifest.step == 10
    assert found.contents[MODEL]["w"].tolist() == pytest.approx([0.8] * 3)
    assert best.read(tmp_path, UID, STAGE, ("optimizer.safetensors",)) is None


def test_another_jobs_best_is_found_by_its_name(tmp_path: Path) -> None:
    for step, top1 in ((10, 0.9), (20, 0.8)):
        save(tmp_path, step, top1, job_uid="other")
        smallcheckpoints.save(tmp_path, step, job_uid="other")
    job = lookup.Job("default", "digits")
    newest, found = (
        lookup.newest(tmp_path, job, STAGE, (MODEL,), but=UID, read=read) for read in (store.newest, best.read)
    )
    assert newest is not None
    assert found is not None
    assert (newest.manifest.step, found.manifest.step) == (20, 10)


def test_an_earlier_jobs_best_outlive_it(tmp_path: Path) -> None:
    for step, top1 in ((10, 0.8), (20, 0.7), (30, 0.9)):
        save(tmp_path, step, top1, job_uid="other")
    (tmp_path / "other/base/attempt-0/best-00000020" / MODEL).write_bytes(b"damaged")
    best.adopt(tmp_path, "other", STAGE, 20, manifest(20, attempt=3))
    assert names(tmp_path) == ["3/best-00000010"], "30 is of steps that this job does not take over"
    found = best.read(tmp_path, UID, STAGE, (MODEL,))
    assert found is not None
    assert found.manifest.best == mark(10, 0.8)


def test_a_damaged_manifest_is_no_best_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, 10, 0.8) / store.MANIFEST
    without = json.loads(path.read_text()) | {"best": None}
    path.write_text(json.dumps(without))
    assert steps(tmp_path) == []
