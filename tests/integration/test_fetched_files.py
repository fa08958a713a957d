"""Weights, runs and data sets at an address in object storage, and the cache of their copies; on a real S3 gateway."""

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beds.objectstorage import Gateway
from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import fetched, store, trained, which
from resnetboost_trainer.checkpoint.evaluations import BestMark, evaluated
from resnetboost_trainer.data import registry
from resnetboost_trainer.failures import ConfigError, DataError, StorageError
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.bucket import PART_BYTES, Bucket, Object
from resnetboost_trainer.storage.cache import Cache
from support.smallcheckpoints import CONTENTS, MODEL, keep, manifest, save, tree


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and nothing remembered of earlier tests."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fetched._fetched.cache_clear()


def stored(gateway: Gateway, key: str, content: bytes) -> None:
    path = gateway.bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def run(gateway: Gateway, *steps: int) -> Path:
    """A run's checkpoints, and a snapshot that was written after them."""
    for step in steps:
        save(gateway.bucket / "run", step)
    keep(gateway.bucket / "run", 99)
    return gateway.bucket / "run/uid/base/attempt-0"


def test_a_path_of_this_machine_is_itself_without_a_request(tmp_path: Path) -> None:
    assert fetched.local(str(tmp_path), "SOURCE") == tmp_path


def test_a_file_and_a_checkpoint_and_a_run_are_fetched(storage: Gateway) -> None:
    stored(storage, "weights/resnet.pth", b"weights")
    assert fetched.local("s3://bucket/weights/resnet.pth", "SOURCE").read_bytes() == b"weights"
    attempt = run(storage, 10, 20)
    assert tree(fetched.local("s3://bucket/run/uid/base/attempt-0/step-00000010", "SOURCE")) == tree(
        attempt / "step-00000010"
    )
    for above in ("run", "run/", "run/uid", "run/uid/base/attempt-0"):
        assert tree(fetched.local(f"s3://bucket/{above}", "SOURCE")) == tree(attempt / "step-00000020")


def test_the_metrics_of_an_attempt_come_with_its_checkpoint(storage: Gateway) -> None:
    (run(storage, 10) / "metrics.csv").write_text("step,top1\n")
    assert (fetched.local("s3://bucket/run", "SOURCE").parent / "metrics.csv").read_text() == "step,top1\n"


def test_a_torn_checkpoint_means_the_one_before(storage: Gateway) -> None:
    attempt = run(storage, 10, 20, 30)
    (attempt / "step-00000030" / MODEL).write_bytes(b"torn")
    (attempt / "step-00000020" / MODEL).unlink()
    assert fetched.local("s3://bucket/run", "SOURCE").name == "step-00000010"


def run_with_bests(gateway: Gateway) -> Path:
    """A run with checkpoints of the steps 20, 40 and 60, the best ones of 22 and 44, and an earlier stage."""
    root = gateway.bucket / "run"
    for step, top1, stage in ((99, 0.99, "early"), (22, 0.9, "base"), (44, 0.8, "base")):
        mark = BestMark(metric="top1", evaluation=evaluated(step, top1, 0.99, 0.5, averaged=False))
        ours = manifest(step, stage=stage, best=mark)
        store.write(store.attempt_directory(root, "uid", stage, 0), ours, CONTENTS, "best")
    for step in (20, 40, 60):
        save(root, step)
    return root / "uid/base/attempt-0"


@pytest.mark.parametrize("chosen", ["last", "averaged", "best", "40", "00000040", "44"])
def test_which_selects_below_an_address_what_it_selects_in_a_folder(chosen: str, storage: Gateway) -> None:
    attempt = run_with_bests(storage)
    _, expected = next(which.checkpoints(storage.bucket / "run", chosen))
    for above in ("run", "run/uid", "run/uid/base", "run/uid/base/attempt-0"):
        found = fetched.local(f"s3://bucket/{above}", "SOURCE", chosen=chosen)
        assert (found.name, tree(found)) == (expected.name, tree(attempt / expected.name))
    assert fetched.local("s3://bucket/run/uid/early", "SOURCE", chosen="best").name == "best-00000099"


def test_a_torn_best_checkpoint_means_the_next_best(storage: Gateway) -> None:
    (run_with_bests(storage) / "best-00000022" / MODEL).unlink()
    assert fetched.local("s3://bucket/run", "SOURCE", chosen="best").name == "best-00000044"


@pytest.mark.parametrize(
    ("source", "chosen", "message"),
    [
        ("run", "30", "--which 30: stage base in s3://bucket/run has no checkpoint of that step; there are those of"),
        ("plain", "best", "--which best: stage base in s3://bucket/plain kept no best checkpoint; train with"),
        ("run/uid/base/attempt-0/step-00000040", "best", "--which best: it selects a checkpoint of a folder, and s3:"),
    ],
)
def test_a_choice_that_is_not_there_is_one_sentence(source: str, chosen: str, message: str, storage: Gateway) -> None:
    run_with_bests(storage)
    save(storage.bucket / "plain", 10)
    with pytest.raises(ConfigError) as raised:
        trained.read(f"s3://bucket/{source}", chosen=chosen)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://bucket/nothing", "SOURCE: there is nothing at s3://bucket/nothing; correct the address"),
        ("s3://bucket/other", "SOURCE: there is no complete checkpoint below s3://bucket/other; correct the address"),
        ("s3://another/run", "s3://another: there is no such bucket; create it, or correct the bucket's name"),
        ("s3:/bucket", ""),
        (
            "https://example.com/run",
            "SOURCE: 'https://example.com/run' is no address in object storage; use one such as",
        ),
    ],
)
def test_an_address_with_nothing_to_read_is_one_sentence(source: str, message: str, storage: Gateway) -> None:
    stored(storage, "other/file.txt", b"")
    if not message:
        assert fetched.local(source, "SOURCE") == Path(source)
        return
    with pytest.raises(ConfigError) as raised:
        fetched.local(source, "SOURCE")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def arrays(path: Path) -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (20, 8, 8), np.uint8), np.arange(20) % 10
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)


def folder_of_images(root: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            Image.new("RGB", (16, 16), "red" if name == "cat" else "blue").save(root / part / name / "1.png")


def test_data_sets_are_those_of_the_local_files(storage: Gateway, tmp_path: Path) -> None:
    arrays(storage.bucket / "images.npz")
    folder_of_images(storage.bucket / "deep/animals")
    for name, path, classes in (("npz", "images.npz", 10), ("ImageFolder", "deep/animals", 2)):
        of = [
            registry.load(config.Dataset(name=name, path=f"{root}/{path}"), classes)  # type: ignore[arg-type]
            for root in ("s3://bucket", storage.bucket)
        ]
        assert of[0].fingerprint == of[1].fingerprint
        assert of[0].train.labels.tolist() == of[1].train.labels.tolist()


def test_what_is_in_the_cache_is_not_fetched_again(storage: Gateway, tmp_path: Path) -> None:
    arrays(storage.bucket / "images.npz")
    settings = ObjectStorage(cache_path=str(tmp_path / "cache"))
    bucket = Bucket(address.parse("s3://bucket", "x"))
    (found,) = bucket.objects()
    copies = cache.of(settings)
    assert copies.read(bucket, found) == copies.read(bucket, found) == (storage.bucket / "images.npz").read_bytes()
    assert (copies.hits, copies.misses) == (1, 1)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://bucket/nothing", "dataset.path: there is nothing at s3://bucket/nothing; correct the address"),
        ("s3://bucket", "dataset.path: s3://bucket has 2.0 GiB, and storage.cacheGigabytes is 1; raise it"),
    ],
)
def test_a_data_set_that_is_not_there_or_too_large_is_one_sentence(path: str, message: str, storage: Gateway) -> None:
    stored(storage, "large.bin", b"")
    os.truncate(storage.bucket / "large.bin", 2 << 30)
    with pytest.raises((ConfigError, DataError)) as raised:
        registry.load(config.Dataset(name="npz", path=path), 10, storage=ObjectStorage(cache_gigabytes=1))
    assert str(raised.value).startswith(message)


class Kept:
    """A bucket with objects of thirty bytes, and a cache for three of them, each with its hash."""

    def __init__(self, gateway: Gateway, root: Path) -> None:
        for name in "abcd":
            stored(gateway, name, name.encode() * 30)
        self.bucket = Bucket(address.parse("s3://bucket", "x"), 1)
        self.objects = {found.key: found for found in self.bucket.objects()}
        self.cache, self.root = Cache(root, 160), root

    def read(self, *names: str) -> None:
        for number, name in enumerate(names):
            assert self.cache.read(self.bucket, self.objects[name]) == name.encode() * 30
            os.utime(self.path(name), (number, number))

    def path(self, name: str, part: str = "0-30") -> Path:
        return self.cache._path(self.bucket, self.objects[name], part)

    def kept(self) -> set[str]:
        return {name for name in self.objects if self.path(name).exists()}


def test_the_copies_used_longest_ago_are_deleted(storage: Gateway, tmp_path: Path) -> None:
    kept = Kept(storage, tmp_path / "cache")
    kept.read("a", "b", "c", "a", "d")
    assert kept.kept() == {"a", "c", "d"}
    assert kept.cache.misses == 4


def test_a_copy_in_use_outlives_its_deletion(storage: Gateway, tmp_path: Path) -> None:
    kept = Kept(storage, tmp_path / "cache")
    kept.cache.link(kept.bucket, kept.objects["a"], tmp_path / "used")
    os.utime(kept.path("a", ""), (0, 0))
    kept.read("b", "c", "d")
    assert not kept.path("a", "").exists() and (tmp_path / "used").read_bytes() == b"a" * 30


@pytest.mark.parametrize("apart", [False, True], ids=["one volume", "two volumes"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_copy_that_another_process_deletes_before_it_is_linked_is_fetched_again(
    apart: bool, times: int, storage: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(storage, tmp_path / "cache")
    kept.cache.link(kept.bucket, kept.objects["a"], tmp_path / "first")
    link, deletions = os.link, [kept.path("a", "")] * times

    def after_a_deletion(path: Path, to: Path) -> None:
        if deletions:
            deletions.pop().unlink()
        if apart:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(path, to)

    monkeypatch.setattr(os, "link", after_a_deletion)
    kept.cache.link(kept.bucket, kept.objects["a"], tmp_path / "used")
    assert (tmp_path / "used").read_bytes() == b"a" * 30
    assert (kept.cache.hits, kept.cache.misses) == (0, 2)


def test_a_damaged_copy_is_fetched_again_and_a_changed_object_too(storage: Gateway, tmp_path: Path) -> None:
    kept = Kept(storage, tmp_path / "cache")
    kept.read("a", "b")
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and not path.suffix:
            path.write_bytes(b"x" * 30)
    kept.read("a")
    assert kept.cache.misses == 3
    kept.bucket.put("a", b"A" * 30)
    (now,) = [found for found in kept.bucket.objects() if found.key == "a"]
    assert kept.cache.read(kept.bucket, now) == b"A" * 30


class Swapping(io.BytesIO):
    """A file that puts another content of an object into its bucket as soon as the first part of it has come."""

    def __init__(self, bucket: Bucket, key: str, content: bytes) -> None:
        super().__init__()
        self.swap: Callable[[], object] | None = lambda: bucket.put(key, content)

    def write(self, data: Any) -> int:
        written, swap, self.swap = super().write(data), self.swap, None
        if swap is not None:
            swap()
        return written


@pytest.mark.parametrize("size", [PART_BYTES + 9, PART_BYTES + 8, PART_BYTES + 10, 0])
def test_a_download_never_mixes_two_contents(size: int, storage: Gateway) -> None:
    bucket = Bucket(address.parse("s3://bucket", "x"), 1)
    bucket.put("large", b"1" * (PART_BYTES + 9))
    (found,) = bucket.objects()
    whole = io.BytesIO()
    bucket.download(found, whole)
    assert whole.getvalue() == b"1" * (PART_BYTES + 9)
    with pytest.raises(StorageError, match="s3://bucket/large: "):
        bucket.download(found, Swapping(bucket, "large", b"2" * size))


def test_what_has_changed_since_it_was_listed_is_not_kept_as_what_was_listed(storage: Gateway, tmp_path: Path) -> None:
    kept = Kept(storage, tmp_path / "cache")
    kept.bucket.put("a", b"A" * 30)
    with pytest.raises(StorageError, match="s3://bucket/a: it has changed since it was listed; start again"):
        kept.cache.link(kept.bucket, kept.objects["a"], tmp_path / "before")
    assert not (tmp_path / "before").exists()
    (now,) = [found for found in kept.bucket.objects() if found.key == "a"]
    kept.cache.link(kept.bucket, now, tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == b"A" * 30
    assert (kept.cache.hits, kept.cache.misses) == (0, 2)


def test_an_object_that_vanishes_is_a_storage_error(storage: Gateway, tmp_path: Path) -> None:
    kept = Kept(storage, tmp_path / "cache")
    shutil.rmtree(storage.bucket)
    with pytest.raises(StorageError, match="there is no such"):
        kept.read("a")
    with pytest.raises(ConfigError, match=r"it has 0.0 GiB.*; raise storage.cacheGigabytes"):
        kept.cache.link(kept.bucket, Object("big", 161, ""), tmp_path / "big")
