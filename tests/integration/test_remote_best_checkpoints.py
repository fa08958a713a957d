"""Best checkpoints in object storage: copied, pruned like the local ones, and there again on another node."""

import shutil
from pathlib import Path
from typing import Any

from beds.objectstorage import Gateway
from resnetboost_trainer.checkpoint import best
from resnetboost_trainer.checkpoint.evaluations import BestMark, evaluated
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from resnetboost_trainer.checkpoint.uploader import Uploader
from support.remotecheckpoints import copies, prepare
from support.smallcheckpoints import CONTENTS, manifest

RULE: dict[str, Any] = {"checkpoint": {"best": {"metric": "top1"}}}


def of(step: int, top1: float) -> Manifest:
    return manifest(step, best=BestMark(metric="top1", evaluation=evaluated(step, top1, 1.0, 0.5, False)))


def ignore(*_: object) -> None: ...


def save(root: Path, *bests: tuple[int, float], keep: int = 1) -> None:
    """Save best checkpoints one after another, then an ordinary one, as the leader does, and wait for the uploads."""
    keeping: dict[Kind, Keeping] = {"step": Keeping(3, ignore), "best": Keeping(keep, ignore)}
    saver = Saver(root, keeping, Uploader(copies(root, **RULE), keeping))
    for step, top1 in bests:
        saver.save(of(step, top1), CONTENTS, "best")
    saver.save(manifest(bests[-1][0]), CONTENTS)
    saver.wait()


def steps(root: Path) -> list[int]:
    return [kept.manifest.step for kept in best.find(root, "uid", "base")]


def test_those_that_are_kept_here_are_there_and_no_others(storage: Gateway, tmp_path: Path) -> None:
    save(tmp_path, (10, 0.5), (20, 0.7), (30, 0.6), (40, 0.9), keep=2)
    there = {path.parent.name for path in storage.bucket.rglob("manifest.json")}
    assert there == {"best-00000040", "best-00000020", "step-00000040"}
    assert steps(tmp_path) == [40, 20]


def test_they_are_there_again_when_their_volume_is_gone(storage: Gateway, tmp_path: Path) -> None:
    save(tmp_path / "lost", (10, 0.5), (20, 0.7), keep=2)
    shutil.rmtree(tmp_path / "lost")
    prepare(tmp_path / "new", **RULE)
    assert steps(tmp_path / "new") == [20, 10]


def test_a_stage_that_starts_from_the_best_gets_them(storage: Gateway, tmp_path: Path) -> None:
    save(tmp_path / "lost", (10, 0.9), (20, 0.7), keep=2)
    prepare(tmp_path / "new", stage="fine", startFrom={"stage": "base", "which": "Best"})
    assert steps(tmp_path / "new") == [10, 20]


def test_a_torn_one_means_the_next(storage: Gateway, tmp_path: Path) -> None:
    save(tmp_path / "lost", (10, 0.5), (20, 0.7), keep=2)
    (storage.bucket / "runs/uid/base/attempt-0/best-00000020/model.safetensors").unlink()
    prepare(tmp_path / "new", **RULE)
    assert steps(tmp_path / "new") == [10]
