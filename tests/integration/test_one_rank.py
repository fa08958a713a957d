"""Whole runs of one real rank end in the same bits wherever they resume, even if a stale process lives on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import failures
from support import onerank
from support.smallcheckpoints import tree

pytestmark = pytest.mark.slow

BASE = Path("checkpoints/uid/base")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only attempt of a run, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("undisturbed")
    onerank.train(folder, attempt=0)
    return folder / BASE / "attempt-0"


def leave_off(undisturbed: Path, steps: int, folder: Path) -> Path:
    """Keep the checkpoints up to a step, as a rank killed right then would have left them."""
    attempt = folder / BASE / "attempt-0"
    shutil.copytree(undisturbed / f"step-{steps:08d}", attempt / f"step-{steps:08d}")
    (attempt / f".step-{steps + 1:08d}.partial").mkdir()
    return attempt


@pytest.mark.parametrize("steps", [3, 17, 22], ids=["early", "within an epoch", "at its end"])
def test_a_rank_killed_after_any_checkpoint_resumes_to_the_same_bits(
    steps: int, undisturbed: Path, tmp_path: Path
) -> None:
    leave_off(undisturbed, steps, tmp_path)
    onerank.train(tmp_path, attempt=1)
    assert onerank.final_weights(tmp_path / BASE / "attempt-1") == onerank.final_weights(undisturbed)


def say_nothing_of_the_lineage(step: Path) -> None:
    """Remove the lineage from manifests, as in checkpoints of versions where all stages made the same random draws."""
    manifest = json.loads((step / "manifest.json").read_text())
    del manifest["lineage"]
    (step / "manifest.json").write_text(json.dumps(manifest))


def test_a_later_stage_of_an_old_version_keeps_its_random_draws(undisturbed: Path, tmp_path: Path) -> None:
    """A first stage still makes the draws of those versions, so its run is the reference."""
    say_nothing_of_the_lineage(leave_off(undisturbed, 17, tmp_path) / "step-00000017")
    onerank.train(tmp_path, attempt=1, config={"startFrom": {"stage": "before"}})
    assert onerank.final_weights(tmp_path / BASE / "attempt-1") == onerank.final_weights(undisturbed)


def test_a_later_stage_draws_anew_and_resumes_to_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    later, ends = {"stage": "more", "startFrom": {"stage": "base"}}, []
    whole, resumed, old = (tmp_path / name for name in ("whole", "resumed", "old"))
    more = Path("checkpoints/uid/more")
    leave_off(undisturbed, onerank.STEPS, whole)
    onerank.train(whole, attempt=1, config=later)
    for folder in (resumed, old):
        left = folder / more / "attempt-1" / "step-00000017"
        shutil.copytree(whole / more / "attempt-1" / "step-00000017", left)
        if folder == old:
            say_nothing_of_the_lineage(left)
        onerank.train(folder, attempt=2, config=later)
        ends.append(onerank.final_weights(folder / more / "attempt-2"))
    assert ends[0] == onerank.final_weights(whole / more / "attempt-1")
    assert ends[1] != ends[0], "the stage before it has seen the same batches"


def test_micro_batches_clipping_and_an_average_resume_to_the_same_bits_too(tmp_path: Path) -> None:
    config = {"localBatchSize": 32, "accumulationSteps": 2, "clipNorm": 1, "ema": {"decay": 0.99}}
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    onerank.train(whole, attempt=0, config=config)
    undisturbed = whole / BASE / "attempt-0"
    leave_off(undisturbed, 17, resumed)
    onerank.train(resumed, attempt=1, config=config)
    ended = onerank.final_weights(undisturbed)
    assert onerank.final_weights(resumed / BASE / "attempt-1") == ended
    assert {"ema.safetensors", "ema-rank-0000.safetensors"} <= ended.keys()
    last = list(csv.DictReader((undisturbed / "metrics.csv").open()))[-1]
    assert float(last["ema_top1"]) > 0.8
    assert last["ema_top1"] != last["top1"]


def test_a_job_applied_again_goes_on_from_its_predecessor_to_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    theirs = leave_off(undisturbed, 17, tmp_path)
    before = tree(theirs)
    onerank.train(tmp_path, attempt=0, uid="again", resume="Required")
    ours = tmp_path / "checkpoints/again/base/attempt-0"
    assert sorted(path.name for path in ours.glob("step-*"))[0] == "step-00000017", "it did not begin afresh"
    assert onerank.final_weights(ours) == onerank.final_weights(undisturbed)
    assert tree(theirs) == before


@pytest.mark.parametrize("uid", ["uid", "again"], ids=["killed before its exit", "applied again"])
@pytest.mark.parametrize("ends", [{}, {"stopWhen": {"top1": 0.1}}], ids=["after all epochs", "early"])
def test_a_finished_training_that_resumes_evaluates_and_ends_well(
    uid: str, ends: dict[str, Any], tmp_path: Path
) -> None:
    config = {"tracking": {"tensorboard": {}}, "evaluateEveryEpochs": 1, **ends}
    onerank.train(tmp_path, attempt=0, config=config, keep=1)
    (last,) = (tmp_path / BASE / "attempt-0").glob("step-*")
    before = list(csv.DictReader((last.parent / "metrics.csv").open()))[-1]
    onerank.train(tmp_path, attempt=1, uid=uid, config=config, keep=1, resume="IfPresent")
    stage = tmp_path / "checkpoints" / uid / "base"
    (row,) = csv.DictReader((stage / "attempt-1" / "metrics.csv").open())
    names = ("step", "epoch", "ranks", "top1", "top5", "test_loss")
    assert [row[name] for name in names] == [before[name] for name in names]
    assert f"{100 * float(row['top1']):.2f}" in (stage / "model-card.md").read_text()


def test_a_batch_of_one_number_per_channel_is_refused_before_training(tmp_path: Path) -> None:
    rank = onerank.start(tmp_path, attempt=0, changes=["model.name=resnet18"], config={"localBatchSize": 1})
    assert rank.wait(timeout=300) == failures.CONFIG_ERROR.exit_code
    record = json.loads((tmp_path / "uid-0.json").read_text())
    assert record["message"].startswith("localBatchSize: 1 image of 8 x 8 pixels is 1 x 1 in ")


def test_a_stale_process_does_not_disturb_its_successor(undisturbed: Path, tmp_path: Path) -> None:
    """A lost node may come back: its rank 0 continues to write and prune in the folder of the new attempt."""
    old, new = (tmp_path / BASE / f"attempt-{attempt}" for attempt in (0, 1))
    stale = onerank.start(tmp_path, attempt=0, spawned=True, everySteps=4, keep=2)  # it is stopped by its process id
    try:
        stop_between_checkpoints(stale, old)
        onerank.train(tmp_path, attempt=1, everySteps=4, keep=2)
        before = tree(new)
        assert onerank.final_weights(new) == onerank.final_weights(undisturbed)
        stale.send_signal(signal.SIGCONT)
        assert stale.wait(timeout=300) == 0
    finally:
        stale.kill()
    assert tree(new) == before
    assert onerank.final_weights(old) == onerank.final_weights(new), "it did go on, to the very same end"


def stop_between_checkpoints(rank: subprocess.Popen[bytes], attempt: Path) -> None:
    """SIGSTOP after the second checkpoint and before the end, while none is being written."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.01)
        if not (attempt / "step-00000008").exists():
            continue
        rank.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        if not list(attempt.glob(".*")):
            assert not (attempt / f"step-{onerank.STEPS:08d}").exists()
            return
        rank.send_signal(signal.SIGCONT)
    raise AssertionError("it wrote no second checkpoint")
