"""Checkpoint store: save, restore, prune, and damaged or half-written checkpoints."""

import contextlib
import itertools
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.store import Damaged
from support.smallcheckpoints import CONTENTS, MODEL, save, tree


def newest_step(root: Path, before_attempt: int = 9) -> int | None:
    found = store.newest(root, "uid", "base", [MODEL], before_attempt)
    return None if found is None else found.manifest.step


def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    assert store.verify(path).step == 20
    assert store.read(path, MODEL)["w"].tobytes() == CONTENTS[MODEL]["w"].tobytes()


def test_the_furthest_step_wins_and_the_later_attempt_among_equals(tmp_path: Path) -> None:
    save(tmp_path, 40, attempt=0)
    save(tmp_path, 20, attempt=1)
    assert newest_step(tmp_path) == 40
    save(tmp_path, 40, attempt=1)
    found = store.newest(tmp_path, "uid", "base", [])
    assert found is not None
    assert found.manifest.attempt == 1


def test_an_attempt_does_not_see_what_later_attempts_write(tmp_path: Path) -> None:
    save(tmp_path, 20, attempt=0)
    save(tmp_path, 40, attempt=1)
    assert newest_step(tmp_path, before_attempt=1) == 20


def flip_a_bit(path: Path) -> None:
    file = path / MODEL
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def shorten(path: Path) -> None:
    file = path / MODEL
    file.write_bytes(file.read_bytes()[:-1])


def lose_a_file(path: Path) -> None:
    (path / MODEL).unlink()


def lose_the_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def garble_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"format": 1}')


def list_no_files(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"files": {}}))


def claim_another_format(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))


def point_outside(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {"../../../secret": {"bytes": 1, "sha256": "0"}}
    (path / "manifest.json").write_text(json.dumps(manifest))


def bloat_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text(" " * (1 << 20) + "{}")


def replace_a_file_by_a_link(path: Path) -> None:
    (path / MODEL).rename(path.parent / "elsewhere")
    (path / MODEL).symlink_to(path.parent / "elsewhere")


def replace_the_manifest_by_a_pipe(path: Path) -> None:
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        shorten,
        lose_a_file,
        lose_the_manifest,
        garble_the_manifest,
        list_no_files,
        claim_another_format,
        point_outside,
        bloat_the_manifest,
        replace_a_file_by_a_link,
        replace_the_manifest_by_a_pipe,
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage, tmp_path, caplog) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path, 20)
    damaged = save(tmp_path, 40)
    damage(damaged)
    with caplog.at_level(logging.WARNING), pytest.raises(Damaged):
        assert newest_step(tmp_path) == 20
        store.verify(damaged, [MODEL])
    assert str(damaged) in caplog.text


def test_a_write_cut_off_anywhere_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 20)
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 40)
    assert newest_step(tmp_path) == 20
    assert not list(tmp_path.rglob("*.partial")), "and no rubbish that fills the disk"


@pytest.mark.parametrize("begun", [False, True], ids=["new folders", "beside metrics"])
def test_a_power_loss_after_the_first_save_loses_nothing_of_it(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of a folder is on disk once the folder is flushed after its creation."""
    on_disk, flush = set[Path](), os.fsync

    def record(descriptor: int) -> None:
        flush(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        on_disk.update([place] if place.is_file() else place.iterdir())

    if begun:
        store.attempt_directory(tmp_path, "uid", "base", 0).mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", record)
    final = save(tmp_path, 20)
    folders = [folder for folder in final.parents if folder.is_relative_to(tmp_path) and folder != tmp_path]
    assert len(folders) == 3
    assert {final, *folders} <= on_disk
    written = [final.with_name(f".{final.name}.partial") / path.name for path in final.iterdir()]
    assert written and set(written) <= on_disk


def test_leftovers_of_a_killed_writer_are_replaced(tmp_path: Path) -> None:
    partial = store.attempt_directory(tmp_path, "uid", "base", 0) / ".step-00000020.partial"
    partial.mkdir(parents=True)
    (partial / MODEL).write_text("half a file")
    assert newest_step(tmp_path) is None
    save(tmp_path, 20)
    assert newest_step(tmp_path) == 20


def test_pruning_keeps_the_furthest_over_this_and_older_attempts(tmp_path: Path) -> None:
    for attempt, step in ((0, 20), (0, 40), (2, 80)):
        save(tmp_path, step, attempt=attempt)
    newest = save(tmp_path, 60, attempt=1)
    store.prune(tmp_path, "uid", "base", attempt=1, keep=2, written=newest)
    left = sorted(path.name for path in tmp_path.rglob("step-*"))
    assert left == ["step-00000040", "step-00000060", "step-00000080"], "a later attempt's are not ours to touch"
    assert not list(tmp_path.rglob("*.deleted"))


def test_other_jobs_and_stages_are_not_seen(tmp_path: Path) -> None:
    save(tmp_path, 20)
    assert store.newest(tmp_path, "another", "base", []) is None
    assert store.newest(tmp_path, "uid", "fine", []) is None


def test_a_damaged_checkpoint_further_on_does_not_displace_the_one_just_written(tmp_path: Path) -> None:
    flip_a_bit(save(tmp_path, 40, attempt=0))
    written = save(tmp_path, 10, attempt=1)
    store.prune(tmp_path, "uid", "base", attempt=1, keep=1, written=written)
    assert newest_step(tmp_path) == 10


def test_a_manifest_of_another_location_is_skipped(tmp_path: Path) -> None:
    save(tmp_path, 20).rename(store.attempt_directory(tmp_path, "uid", "base", 0) / "step-00000099")
    save(tmp_path, 10)
    assert newest_step(tmp_path) == 10


def test_pruning_removes_leftovers_of_killed_writers(tmp_path: Path) -> None:
    rubbish = store.attempt_directory(tmp_path, "uid", "base", 0) / ".step-00000030.partial"
    rubbish.mkdir(parents=True)
    store.prune(tmp_path, "uid", "base", attempt=1, keep=1, written=save(tmp_path, 40, attempt=1))
    assert not rubbish.exists()


def test_steps_of_more_than_eight_digits_are_kept_and_found_by_their_number(tmp_path: Path) -> None:
    for step in (10**8 - 2, 10**8 - 1, 10**8):
        store.prune(tmp_path, "uid", "base", attempt=0, keep=2, written=save(tmp_path, step))
    found = [path.name for path in store.candidates(tmp_path, "uid", "base")]
    assert found == ["step-100000000", "step-99999999"]


@pytest.mark.parametrize("lineage", [-1, 2**70, "a"])
def test_an_invalid_lineage_is_damage(lineage: object, tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"lineage": lineage}))
    with pytest.raises(Damaged, match="lineage"):
        store.read_manifest(path)


def test_pruning_leaves_other_jobs_stages_and_files(tmp_path: Path) -> None:
    for changes in ({"job_uid": "another"}, {"stage": "fine"}, {"job_uid": "another", "attempt": 7}):
        save(tmp_path, 20, **changes)
        save(tmp_path, 40, **changes)
    steps = (f"step-{10**30}", "step-000000010", "step-7")
    others = ("attempt-x/step-00000010", "attempt-x/.step-00000010.partial", "notes")
    for strange in (*(f"attempt-0/{name}" for name in steps), *others):
        (tmp_path / "uid/base" / strange).mkdir(parents=True)
        (tmp_path / "uid/base" / strange / "file").touch()
    before = tree(tmp_path)
    store.prune(tmp_path, "uid", "base", attempt=3, keep=1, written=save(tmp_path, 60, attempt=3))
    assert before.items() <= tree(tmp_path).items()


def test_concurrent_pruning_does_not_hide_checkpoints(tmp_path: Path) -> None:
    """The stale attempt keeps one checkpoint, so listed ones are often deleted before they are read."""

    def live_on() -> None:
        for step in range(1, 200):
            store.prune(tmp_path, "uid", "base", attempt=0, keep=1, written=save(tmp_path, step))

    save(tmp_path, 0)
    stale = threading.Thread(target=live_on)
    stale.start()
    steps = []
    while stale.is_alive():
        steps.append(newest_step(tmp_path, before_attempt=1))
    assert None not in steps
    assert sorted(step for step in steps if step is not None) == steps


def test_concurrent_saving_by_a_stale_attempt_is_harmless(tmp_path: Path) -> None:
    """The stale attempt may fail: its successor may treat its unfinished write as a killed writer's leftovers."""
    stop = threading.Event()

    def live_on() -> None:
        for step in itertools.takewhile(lambda _: not stop.is_set(), itertools.count(1)):
            with contextlib.suppress(OSError):
                store.prune(tmp_path, "uid", "base", attempt=0, keep=1, written=save(tmp_path, step))

    stale = threading.Thread(target=live_on)
    stale.start()
    try:
        for step in range(1, 100):
            written = save(tmp_path, step, attempt=1)
            store.prune(tmp_path, "uid", "base", attempt=1, keep=1, written=written)
            assert store.verify(written).step == step
    finally:
        stop.set()
        stale.join()
    assert len(list((tmp_path / "uid/base/attempt-1").iterdir())) == 1
