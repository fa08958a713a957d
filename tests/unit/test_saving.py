"""Background saver: saves in order, with a bounded queue, and stops after a failure."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from resnetboost_trainer.checkpoint import snapshots
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from support.smallcheckpoints import CONTENTS, manifest

WEIGHTS = snapshots.contents(np.zeros(6, np.float32))
TIMEOUT_SECONDS = 60


class Told:
    """Messages of a saver, whose writes block until they are released."""

    def __init__(self) -> None:
        self.steps: list[tuple[Kind, int]] = []
        self.go_on, self.came = threading.Event(), threading.Event()

    def keeping(self, kind: Kind, keep: int = 9) -> Keeping:
        def saved(manifest: Manifest, size_bytes: int, seconds: float) -> None:
            assert size_bytes > 0
            self.came.set()
            assert self.go_on.wait(TIMEOUT_SECONDS)
            self.steps.append((kind, manifest.step))

        return Keeping(keep, saved)


def saver(root: Path, told: Told, keep: int = 9) -> Saver:
    return Saver(root, {"step": told.keeping("step", keep), "snapshot": told.keeping("snapshot", keep)})


def test_all_kinds_are_written_in_the_order_they_came(tmp_path: Path) -> None:
    told = Told()
    told.go_on.set()
    saving = saver(tmp_path, told)
    for step in (0, 10, 20):
        saving.save(manifest(step), WEIGHTS, "snapshot")
        saving.save(manifest(step), CONTENTS)
    saving.wait()
    assert told.steps == [(kind, step) for step in (0, 10, 20) for kind in ("snapshot", "step")]


def test_each_kind_is_pruned_for_itself(tmp_path: Path) -> None:
    told = Told()
    told.go_on.set()
    saving = saver(tmp_path, told, keep=2)
    for step in (0, 10, 20):
        saving.save(manifest(step), WEIGHTS, "snapshot")
        saving.save(manifest(step), CONTENTS)
    saving.wait()
    left = {path.name for path in (tmp_path / "uid/base/attempt-0").iterdir()}
    assert left == {f"{kind}-{step:08d}" for kind in ("snapshot", "step") for step in (10, 20)}


def test_only_a_third_save_waits_for_the_disk(tmp_path: Path) -> None:
    told = Told()
    saving = saver(tmp_path, told)
    saving.save(manifest(10), WEIGHTS, "snapshot")
    saving.save(manifest(10), CONTENTS)
    assert told.came.wait(TIMEOUT_SECONDS)
    assert told.steps == []
    third = threading.Thread(target=saving.save, args=(manifest(20), WEIGHTS, "snapshot"))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    told.go_on.set()
    third.join(TIMEOUT_SECONDS)
    saving.wait()
    assert told.steps == [("snapshot", 10), ("step", 10), ("snapshot", 20)]


def test_a_failed_snapshot_stops_later_checkpoints(tmp_path: Path) -> None:
    told, queued = Told(), threading.Event()

    def fail(manifest: Manifest, size_bytes: int, seconds: float) -> None:
        assert queued.wait(TIMEOUT_SECONDS)
        raise OSError(28, "No space left on device")

    saving = Saver(tmp_path, {"step": told.keeping("step"), "snapshot": Keeping(9, fail)})
    saving.save(manifest(10), WEIGHTS, "snapshot")
    saving.save(manifest(10), CONTENTS)
    queued.set()
    with pytest.raises(OSError, match="No space left"):
        saving.wait()
    saving.wait()
    assert not list(tmp_path.rglob("step-*"))


def test_a_failed_snapshot_is_raised_as_soon_as_known(tmp_path: Path) -> None:
    (tmp_path / "uid").touch()
    saving = saver(tmp_path, Told())
    saving.save(manifest(10), WEIGHTS, "snapshot")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with pytest.raises(OSError, match="uid"):
        while time.monotonic() < deadline:
            saving.check()
