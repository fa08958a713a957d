"""Snapshots on disk: when they are due, which are kept, killed writers, and readers."""

import io
import itertools
import json
import logging
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.checkpoint.snapshots import FILE, Reader, Snapshot
from resnetboost_trainer.failures import ConfigError, StorageError
from support.smallcheckpoints import keep, manifest, save, tree

PLACE = "uid/base/attempt-0"


def rule(every: float, first: float = 0) -> config.Snapshots:
    return config.Snapshots(every_epochs=every, from_epoch=first, keep=60)


def due_steps(rule: config.Snapshots, per_epoch: int, total: int) -> list[int]:
    return [step for step in range(total + 1) if snapshots.due(rule, step, per_epoch)]


@pytest.mark.parametrize(
    ("every", "first", "steps"),
    [
        (1, 0, [0, 22, 44, 66]),
        (1, 1, [22, 44, 66]),
        (0.5, 2, [44, 55, 66]),
        (0.3, 2.5, [55, 62]),
        (0.01, 2.9, [64, 65, 66]),
        (5, 3, [66]),
        (1e-300, 2.9, [64, 65, 66]),
    ],
    ids=["every epoch", "later on", "half epochs", "fractions", "below a step", "once", "next to nothing"],
)
def test_a_snapshot_is_due_after_the_nearest_step(every: float, first: float, steps: list[int]) -> None:
    assert due_steps(rule(every, first), per_epoch=22, total=66) == steps


@given(
    every=st.floats(0.01, 5) | st.fractions(min_value="1/100", max_value=5).map(float),
    first=st.floats(0, 4) | st.integers(0, 8).map(lambda halves: halves / 2),
    per_epoch=st.integers(1, 50),
)
def test_steps_are_those_of_the_rule_written_out(every: float, first: float, per_epoch: int) -> None:
    total = 4 * per_epoch
    written_out = {math.floor((first + i * every) * per_epoch + 0.5) for i in range(1 + math.ceil(5 / every))}
    assert due_steps(rule(every, first), per_epoch, total) == sorted(step for step in written_out if step <= total)


def steps(root: Path, last_step: float = math.inf) -> list[int]:
    return [snapshot.step for snapshot in snapshots.find(root, "uid", "base", last_step)]


def test_snapshots_are_found_in_step_order_up_to_the_wanted_one(tmp_path: Path) -> None:
    for step in (40, 0, 100, 20):
        keep(tmp_path, step)
    save(tmp_path, 60)
    keep(tmp_path, 80, "origin")
    assert steps(tmp_path) == [0, 20, 40, 100]
    assert steps(tmp_path, 40) == [0, 20, 40]
    assert steps(tmp_path / "nowhere") == []


def test_a_checkpoint_is_not_mistaken_for_a_snapshot_nor_the_other_way_round(tmp_path: Path) -> None:
    save(tmp_path, 20).rename(tmp_path / PLACE / "snapshot-00000020")
    keep(tmp_path, 40)
    assert steps(tmp_path) == [40]
    assert store.newest(tmp_path, "uid", "base", []) is None


def test_the_latest_attempts_snapshot_of_a_step_counts(tmp_path: Path) -> None:
    for attempt, step in ((0, 0), (0, 20), (0, 40), (1, 20), (10, 20), (2, 40)):
        keep(tmp_path, step, attempt=attempt)
    found = snapshots.find(tmp_path, "uid", "base")
    assert [snapshot.path.parents[1].name for snapshot in found] == ["attempt-0", "attempt-10", "attempt-2"]


def change_manifest(path: Path, **changes: Any) -> None:
    said = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(said | changes))


def replace_the_manifest_by_a_pipe(path: Path) -> None:
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text("{"),
        lambda path: (path / "manifest.json").write_text(" " * (1 << 20) + "{}"),
        lambda path: change_manifest(path, step=19),
        lambda path: change_manifest(path, files={}),
        lambda path: change_manifest(path, layout=""),
        replace_the_manifest_by_a_pipe,
    ],
    ids=["no manifest", "no JSON", "endless", "another step", "no file", "no layout", "a pipe"],
)
def test_a_damaged_manifest_is_named_and_passed_over(
    damage: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (0, 20, 40):
        keep(tmp_path, step)
    damaged = keep(tmp_path, 20, attempt=1)
    damage(damaged)
    with caplog.at_level(logging.WARNING):
        found = snapshots.find(tmp_path, "uid", "base")
    assert str(damaged) in caplog.text
    assert [(snapshot.step, snapshot.path.parents[1].name) for snapshot in found] == [
        (step, "attempt-0") for step in (0, 20, 40)
    ]


@pytest.mark.parametrize("changes", [{"model": "resnet50/10/1"}, {"layout": "of others"}], ids=["model", "layout"])
def test_snapshots_of_different_networks_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    keep(tmp_path, 0, **changes)
    keep(tmp_path, 20)
    with pytest.raises(ConfigError, match=rf"snapshot-00000000 .*{next(iter(changes))} is .*; remove it"):
        steps(tmp_path)


def test_a_search_reads_a_limited_number_of_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_MANIFESTS", 3)
    for step in range(5):
        keep(tmp_path, step)
    assert steps(tmp_path) == [2, 3, 4]


def test_links_and_strange_names_are_no_snapshots(tmp_path: Path) -> None:
    elsewhere = keep(tmp_path / "elsewhere", 20)
    (tmp_path / PLACE).mkdir(parents=True)
    (tmp_path / PLACE / "snapshot-00000020").symlink_to(elsewhere)
    for strange in ("snapshot-7", "snapshot-x", ".snapshot-00000040.partial", "snapshot-00000060"):
        (tmp_path / PLACE / strange).mkdir()
    (tmp_path / PLACE / "snapshot-00000080").touch()
    assert steps(tmp_path) == []


# Pruning.


def prune(root: Path, keep_: int, written: Path, attempt: int = 0) -> None:
    snapshots.prune(root, "uid", "base", attempt, keep_, written)


def test_pruning_keeps_the_newest_over_this_and_older_attempts(tmp_path: Path) -> None:
    for attempt, step in ((0, 0), (0, 20), (1, 40), (3, 0)):
        keep(tmp_path, step, attempt=attempt)
    prune(tmp_path, 2, keep(tmp_path, 60, attempt=2), attempt=2)
    left = sorted(f"{path.parent.name}/{path.name}" for path in tmp_path.rglob("snapshot-*"))
    assert left == ["attempt-1/snapshot-00000040", "attempt-2/snapshot-00000060", "attempt-3/snapshot-00000000"]


def test_a_repeated_snapshot_replaces_only_the_older_one(tmp_path: Path) -> None:
    """Killed after step 60 and resumed from a checkpoint of step 30."""
    for step in (20, 40, 60):
        keep(tmp_path, step)
    prune(tmp_path, 2, keep(tmp_path, 40, attempt=1), attempt=1)
    assert steps(tmp_path) == [20, 40, 60]
    prune(tmp_path, 2, keep(tmp_path, 60, attempt=1), attempt=1)
    assert steps(tmp_path) == [40, 60]
    assert {path.parent.name for path in tmp_path.rglob("snapshot-*")} == {"attempt-1"}


def test_pruning_one_kind_leaves_the_others_and_all_else_alone(tmp_path: Path) -> None:
    for step in (0, 20):
        save(tmp_path, step)
        keep(tmp_path, step)
        keep(tmp_path, step, "origin")
        keep(tmp_path, step, job_uid="another")
        keep(tmp_path, step, stage="fine")
    (tmp_path / PLACE / "metrics.csv").touch()
    before = tree(tmp_path)
    prune(tmp_path, 1, keep(tmp_path, 40))
    now = tree(tmp_path)
    gone = {path.rpartition("/")[0] for path in before.keys() - now.keys()}
    assert gone == {f"{PLACE}/snapshot-00000000", f"{PLACE}/snapshot-00000020"}
    store.prune(tmp_path, "uid", "base", 0, 1, save(tmp_path, 40))
    gone = {path.rpartition("/")[0] for path in now.keys() - tree(tmp_path).keys()}
    assert gone == {f"{PLACE}/step-00000000", f"{PLACE}/step-00000020"}


@pytest.mark.parametrize("kind", ["step", "snapshot"])
def test_pruning_either_kind_sweeps_up_what_killed_writers_of_both_left(kind: str, tmp_path: Path) -> None:
    for rubbish in (".step-00000030.partial", ".snapshot-00000030.partial", ".snapshot-00000010.deleted"):
        (tmp_path / PLACE / rubbish).mkdir(parents=True)
        (tmp_path / PLACE / rubbish / FILE).touch()
    if kind == "step":
        store.prune(tmp_path, "uid", "base", 1, 1, save(tmp_path, 40, attempt=1))
    else:
        prune(tmp_path, 1, keep(tmp_path, 40, attempt=1), attempt=1)
    assert not list((tmp_path / PLACE).iterdir())


class Killed(BaseException):
    """No error handler runs after a SIGKILL."""


class Killer:
    """Kills at the n-th operation that changes a file or folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for name in ("mkdir", "rename", "unlink", "rmdir", "fsync", "link"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(io, "open", self._counted(io.open))

    def _counted(self, operation: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: Any, **named: Any) -> object:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return operation(*arguments, **named)

        return counted


def test_a_writer_killed_between_any_two_operations_leaves_whole_snapshots_alone(tmp_path: Path) -> None:
    """The writer saves a third snapshot, which displaces the first; its successor repeats that and cleans up."""
    for at in itertools.count():
        root = tmp_path / str(at)
        keep(root, 0)
        keep(root, 20)
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, at)
            try:
                prune(root, 2, keep(root, 40))
                killed = False
            except Killed:
                killed = True
        assert_whole(root, {(0, 20), (0, 20, 40), (20, 40)})
        prune(root, 2, keep(root, 40, attempt=1), attempt=1)
        assert_whole(root, {(20, 40)})
        assert not list(root.rglob(".*"))
        if not killed:
            break
    assert at > 10


def assert_whole(root: Path, allowed: set[tuple[int, ...]]) -> None:
    found = snapshots.find(root, "uid", "base")
    assert tuple(snapshot.step for snapshot in found) in allowed
    with Reader(found, 6) as reader:
        assert reader.read(0, 6).tolist() == [[snapshot.step] * 6 for snapshot in found]
        reader.verify()


# Reading snapshots.

NUMBERS = 1000
SOME = np.random.default_rng(0).standard_normal((3, NUMBERS)).astype(np.float32)


def three(root: Path) -> list[Snapshot]:
    for step, row in enumerate(SOME):
        ours = manifest(step, layout="of a thousand")
        place = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
        store.write(place, ours, snapshots.contents(row), "snapshot")
    return snapshots.find(root, "uid", "base")


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    return three(tmp_path_factory.mktemp("unharmed"))


@given(borders=st.lists(st.integers(0, NUMBERS), max_size=8), data=st.data())
def test_ranges_in_any_order_are_read_bit_for_bit_and_verified(
    borders: list[int], data: st.DataObject, unharmed: list[Snapshot]
) -> None:
    ranges = list(itertools.pairwise(sorted({0, NUMBERS, *borders})))
    if data.draw(st.booleans()):
        ranges = data.draw(st.permutations(ranges))
    with Reader(unharmed, NUMBERS) as reader:
        for start, stop in ranges:
            assert reader.read(start, stop).tobytes() == SOME[:, start:stop].tobytes()
        reader.verify()
        assert reader.read(7, 9).tobytes() == SOME[:, 7:9].tobytes()
        reader.verify()


def test_no_range_is_read_beyond_the_numbers(unharmed: list[Snapshot]) -> None:
    with Reader(unharmed, NUMBERS) as reader:
        assert reader.read(5, 5).shape == (3, 0)
        for start, stop in ((-1, 5), (5, 4), (0, NUMBERS + 1)):
            with pytest.raises(ValueError, match="numbers"):
                reader.read(start, stop)


def test_verifying_reads_what_was_not_read_in_order(tmp_path: Path) -> None:
    found = three(tmp_path)
    with Reader(found, NUMBERS) as reader:
        reader.verify()
        reader.read(0, 500)
        reader.verify()
        flip(found[1].path, -1)
        with pytest.raises(StorageError, match=r"snapshot-00000001.*changed since it was written"):
            reader.verify()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("position", [90, 150, -1], ids=["in the header", "among the first", "the last"])
def test_a_changed_bit_is_named_after_one_pass(position: int, tmp_path: Path) -> None:
    found = three(tmp_path)
    data = found[1].path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    if position == 90:  # a tab in place of a padding space: the content is the same
        position = header - 1
        changed = bytearray(data)
        assert changed[position : position + 1] == b" "
        changed[position] = ord("\t")
        found[1].path.write_bytes(changed)
    else:
        flip(found[1].path, position if position < 0 else header + position)
    with Reader(found, NUMBERS) as reader:
        for start in range(0, NUMBERS, 100):
            reader.read(start, start + 100)
        with pytest.raises(StorageError, match=r"snapshot-00000001.*changed since it was written"):
            reader.verify()


def test_a_change_after_verification_is_noticed(tmp_path: Path) -> None:
    found = three(tmp_path)
    with Reader(found, NUMBERS) as reader:
        reader.read(0, 400)
        flip(found[1].path, -1)
        flip(found[0].path, 200)
        reader.read(400, NUMBERS)
        with pytest.raises(StorageError, match="snapshot-00000001"):
            reader.verify()


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path) -> None:
    found = three(tmp_path)
    with Reader(found, NUMBERS) as reader:
        os.truncate(found[2].path, 300)
        with pytest.raises(StorageError, match=r"snapshot-00000002.*become shorter"):
            reader.read(0, NUMBERS)


def rewrite(path: Path, header: bytes, numbers: bytes = bytes(4 * NUMBERS)) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + numbers)


def by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def by_a_long_header(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(data) - 8) + data[8:])


def by_an_endless_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**64 - 1) + path.read_bytes()[8:])


def header(dtype: str = "F32", shape: tuple[int, ...] = (NUMBERS,), name: str = "weights", begin: int = 0) -> bytes:
    said = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + 4 * NUMBERS]}
    return json.dumps({name: said}).encode()


@pytest.mark.parametrize(
    "replace",
    [
        Path.unlink,
        by_a_link,
        by_a_pipe,
        by_a_folder,
        by_a_long_header,
        by_an_endless_header,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: rewrite(path, b"{}"),
        lambda path: rewrite(path, b"not JSON at all"),
        lambda path: rewrite(path, header("I32")),
        lambda path: rewrite(path, header(shape=(NUMBERS // 2, 2))),
        lambda path: rewrite(path, header(name="others")),
        lambda path: rewrite(path, header(begin=4)),
        lambda path: rewrite(path, header() + b" " * 5000),
    ],
    ids=[
        "nothing",
        "a link",
        "a pipe",
        "a folder",
        "a long header",
        "an endless header",
        "an empty file",
        "a short one",
        "a longer one",
        "no tensor",
        "no JSON",
        "whole numbers",
        "a matrix",
        "another tensor",
        "a gap",
        "a bloated header",
    ],
)
@pytest.mark.parametrize("told", [True, False], ids=["as its manifest says", "and its manifest does not say"])
def test_a_file_of_another_shape_is_refused(replace: Callable[[Path], object], told: bool, tmp_path: Path) -> None:
    found = three(tmp_path)
    replace(found[1].path)
    if told and found[1].path.is_file():
        found[1] = msgspec.structs.replace(found[1], bytes=found[1].path.stat().st_size)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError, match="snapshot-00000001"):
        Reader(found, NUMBERS)
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_length_is_refused(unharmed: list[Snapshot]) -> None:
    for numbers in (NUMBERS - 1, NUMBERS + 1):
        with pytest.raises(StorageError, match=f"{numbers} numbers"):
            Reader(unharmed, numbers)


def test_reading_keeps_to_one_range_in_memory_and_closes_its_files(unharmed: list[Snapshot]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Reader(unharmed, NUMBERS) as reader:
        first = reader.read(0, 100)
        assert np.shares_memory(first, reader.read(100, 200))
    assert len(os.listdir("/proc/self/fd")) == before


# Snapshots of another job.


@pytest.mark.parametrize("links", [True, False], ids=["with links", "without"])
def test_adopted_snapshots_are_our_own(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(95, "Operation not supported")))
    for step in (0, 20, 40):
        keep(tmp_path, step, job_uid="theirs", attempt=3)
    theirs = snapshots.find(tmp_path, "theirs", "base", 20)
    before = tree(tmp_path)
    snapshots.adopt(tmp_path, theirs, manifest(0, attempt=1, stage="fine"), "origin")
    assert before.items() <= tree(tmp_path).items()
    shutil.rmtree(tmp_path / "theirs")
    found = snapshots.find(tmp_path, "uid", "fine", kind="origin")
    assert [snapshot.step for snapshot in found] == [0, 20]
    assert snapshots.find(tmp_path, "uid", "fine") == []
    with Reader(found, 6) as reader:
        assert reader.read(0, 6)[:, 0].tolist() == [0, 20]
        reader.verify()


def test_the_origin_of_an_attempt_that_did_not_begin_is_replaced(tmp_path: Path) -> None:
    for step in (0, 20, 40):
        keep(tmp_path, step, job_uid="theirs")
    every = snapshots.find(tmp_path, "theirs", "base")
    snapshots.adopt(tmp_path, every[:2], manifest(0), "origin")
    snapshots.adopt(tmp_path, every[1:], manifest(0, attempt=1), "origin")
    assert [snapshot.step for snapshot in snapshots.find(tmp_path, "uid", "base", kind="origin")] == [20, 40]


def test_an_interrupted_adoption_is_completed_by_a_successor(tmp_path: Path) -> None:
    """The other job has continued meanwhile: snapshots the killed attempt copied must not mix with the new ones."""
    for at in itertools.count():
        root = tmp_path / str(at)
        for step in (0, 20, 40):
            keep(root, step, job_uid="theirs")
        every = snapshots.find(root, "theirs", "base")
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, at)
            try:
                snapshots.adopt(root, every[:2], manifest(0), "origin")
                killed = False
            except Killed:
                killed = True
        snapshots.adopt(root, every[1:], manifest(0, attempt=1), "origin")
        found = snapshots.find(root, "uid", "base", kind="origin")
        assert [snapshot.step for snapshot in found] == [20, 40]
        with Reader(found, 6) as reader:
            reader.verify()
        if not killed:
            break
    assert at > 10


@pytest.mark.parametrize("replace", [by_a_link, by_a_pipe, Path.unlink], ids=["a link", "a pipe", "nothing"])
def test_only_regular_files_are_adopted(replace: Callable[[Path], object], tmp_path: Path) -> None:
    theirs = keep(tmp_path, 0, job_uid="theirs") / FILE
    replace(theirs)
    with pytest.raises(StorageError, match="snapshot-00000000"):
        snapshots.adopt(tmp_path, snapshots.find(tmp_path, "theirs", "base"), manifest(0))
    assert steps(tmp_path) == []


def test_snapshots_of_more_than_eight_digits_are_pruned_by_their_number(tmp_path: Path) -> None:
    for step in (10**8 - 1, 10**8):
        snapshots.prune(tmp_path, "uid", "base", 0, 1, keep(tmp_path, step))
    assert [snapshot.step for snapshot in snapshots.find(tmp_path, "uid", "base")] == [10**8]
