"""Image folders and MindRecord files that are read from object storage while a loader works; on a real S3 gateway."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from beds.objectstorage import Gateway
from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.cli import to_mindrecord
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.image_dataset import ImageDataset
from resnetboost_trainer.data.loader import BatchRequest, DataLoader
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.sampler import DistributedSampler
from resnetboost_trainer.failures import ConfigError, DataError, StorageError
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.bucket import Bucket
from support import photographs

STEPS, GLOBAL, TRAIN = 6, 8, 24  # two epochs of three steps
Name = Literal["ImageFolder", "MindRecord"]
NAMES = ("ImageFolder", "MindRecord")
CHANGES: dict[str, Any] = {"brightness": 0.4, "hue": 0.1, "mixup_alpha": 0.2, "cutmix_alpha": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `ImageFolder`, and what is made of it in `MindRecord`."""
    root = tmp_path_factory.mktemp("data")
    photographs.folder(root / "ImageFolder", TRAIN)
    to_mindrecord.convert(root / "ImageFolder", root / "MindRecord", "train", "val", shards=2, skip=0)
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def data(storage: Gateway, made: Path) -> Gateway:
    """The gateway, with both data sets below s3://bucket/deep."""
    shutil.copytree(made, storage.bucket / "deep")
    return storage


def load(name: Name, root: object, corrupt: int = 0, share: float | None = None, **storage: Any) -> registry.Dataset:
    augmentation = config.Augmentation(min_scale=0.08, max_scale=1, **CHANGES)
    dataset = config.Dataset(
        name=name,
        path=f"{root}/{name}",
        image_size=16,
        augmentation=augmentation,
        max_corrupt_images=corrupt,
        validation_split=share,
    )
    return registry.load(dataset, 2, storage=ObjectStorage(**storage))


def steps(found: registry.Dataset, first: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[bytes]:
    feed = DataLoader(found.train, Corrupt(found.max_corrupt_images), 2, found.mixing)
    share = DistributedSampler(5, GLOBAL, rank, ranks, len(found.train.labels))
    try:
        for batch in feed.batches(share.steps(first, STEPS)):
            yield batch.images.tobytes() + batch.labels.tobytes()
    finally:
        feed.close()


def evaluations(found: registry.Dataset) -> list[bytes]:
    feed = DataLoader(found.test, Corrupt(0), 2)
    slices = sampler.evaluation_slices(len(found.test.labels), 1, 0, 4)
    try:
        requests = [BatchRequest(part.indices, 0, len(part.indices)) for part in slices]
        return [batch.images.tobytes() for batch in feed.batches(requests)]
    finally:
        feed.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_split_has_the_bits_of_local_files_also_while_both_parts_are_read(
    name: Name, data: Gateway, made: Path
) -> None:
    local, far = load(name, made, share=0.25), load(name, "s3://bucket/deep", share=0.25)
    assert far.fingerprint == local.fingerprint
    expected, tested = list(steps(local)), evaluations(local)
    training = steps(far)
    found = [next(training), next(training)]
    assert evaluations(far) == tested
    assert found + list(training) == expected
    assert len(far.train.labels) + len(far.test.labels) == TRAIN


@pytest.mark.parametrize("name", NAMES)
def test_files_near_and_far_become_what_predict_makes_of_them(name: Name, data: Gateway, made: Path) -> None:
    """For a network that was trained on arrays: its size and its normalisation."""
    known = Preparation(height=12, width=20, mean=(0.4, 0.5, 0.3), deviation=(0.2,) * 3, white=1.0, values="Floats")
    for share in (None, 0.25):
        local, far = (
            registry.load(config.Dataset(name=name, path=f"{root}/{name}", validation_split=share), 2, known)
            for root in (made, "s3://bucket/deep")
        )
        expected = evaluations(local)
        assert evaluations(far) == expected
        assert isinstance(local.test, ImageDataset)
        pictures = [known.picture(local.test.contents.read(index)) for index in range(len(local.test.labels))]
        assert b"".join(expected)[: len(pictures) * pictures[0].nbytes] == b"".join(map(np.ndarray.tobytes, pictures))


@pytest.mark.parametrize("name", NAMES)
def test_batches_have_the_bits_of_local_files_also_in_a_resume(name: Name, data: Gateway, made: Path) -> None:
    local, far = load(name, made), load(name, "s3://bucket/deep")
    assert far.fingerprint == local.fingerprint
    assert far.preparation == local.preparation
    assert far.train.labels.tolist() == local.train.labels.tolist()
    assert far.train.name(5) == local.train.name(5).replace(str(made), "s3://bucket/deep")
    whole = list(steps(local))
    assert list(steps(far)) == whole, "with a cold cache"
    assert list(steps(load(name, "s3://bucket/deep"))) == whole, "with a warm one"
    for first in (1, 4):
        assert list(steps(load(name, "s3://bucket/deep"), first)) == whole[first:]
    parts = [list(steps(load(name, "s3://bucket/deep"), rank=rank, ranks=2)) for rank in range(2)]
    assert parts == [list(steps(local, rank=rank, ranks=2)) for rank in range(2)]
    assert evaluations(far) == evaluations(local)


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_that_is_too_small_changes_no_bit_and_stays_small(
    name: Name, data: Gateway, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "GIGABYTE", 60_000)
    found = load(name, "s3://bucket/deep", cache_path=str(tmp_path / "cache"), cache_gigabytes=1)
    assert list(steps(found)) == list(steps(load(name, made)))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("??/*")) <= 60_000


@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_the_cache_needs_no_storage(name: Name, data: Gateway, made: Path) -> None:
    assert list(steps(load(name, "s3://bucket/deep"))) == list(steps(load(name, made)))
    found = load(name, "s3://bucket/deep", retry_seconds=1)
    data.stop()
    assert list(steps(found)) == list(steps(load(name, made)))


@pytest.mark.parametrize("name", NAMES)
def test_damage_in_the_cache_is_found(name: Name, data: Gateway, made: Path, tmp_path: Path) -> None:
    whole = list(steps(load(name, "s3://bucket/deep", cache_path=str(tmp_path / "cache"))))
    for number, path in enumerate(sorted((tmp_path / "cache").glob("??/*"))):
        content = bytearray(path.read_bytes())
        content[-1 - number % 40] ^= 1
        path.write_bytes(content if number % 3 else content[:-7])
    assert list(steps(load(name, "s3://bucket/deep", cache_path=str(tmp_path / "cache")))) == whole


def test_odd_names_are_those_of_a_disk(storage: Gateway) -> None:
    root = photographs.folder(storage.bucket / "ImageFolder", TRAIN)
    image = root / "train/temple/0001.jpg"
    odd = [
        "ä ö.JPG",
        "a+b %20#1.jpg",
        "a%2Bb.jpg",
        ".hidden.jpg",
        "below/2/x.jpeg",
        ".below/x.jpg",
        "notes.txt",
        "~.png",
    ]
    for name in odd:
        path = image.with_name(name) if "/" not in name else image.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, path)
    (root / "train/.git").mkdir()
    shutil.copyfile(image, root / "train/.git/1.jpg")
    shutil.copyfile(image, root / "train/1.jpg")
    local, far = load("ImageFolder", storage.bucket), load("ImageFolder", "s3://bucket")
    assert far.fingerprint == local.fingerprint
    for index in range(len(local.train.labels)):
        assert far.train.contents.read(index) == local.train.contents.read(index)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["spoiled", "gone"])
def test_images_that_cannot_be_used_are_replaced_as_on_a_disk(how: str, data: Gateway, made: Path) -> None:
    local, far = (load("ImageFolder", root, corrupt=9) for root in (data.bucket / "deep", "s3://bucket/deep"))
    for path in (data.bucket / "deep/ImageFolder/train/temple").iterdir():
        if path.name < "0009":
            path.unlink() if how == "gone" else path.write_bytes(b"")
    if how == "spoiled":
        far = load("ImageFolder", "s3://bucket/deep", corrupt=9)
    whole = list(steps(local))
    assert list(steps(far)) == whole
    assert whole != list(steps(load("ImageFolder", made)))


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_that_changes_meanwhile_ends_the_attempt(name: Name, storage: Gateway, made: Path) -> None:
    bucket = Bucket(address.parse("s3://bucket/deep", "x"))
    files = {path.relative_to(made).as_posix(): path for path in (made / name).rglob("*") if path.is_file()}
    for key, path in files.items():
        bucket.put(key, path.read_bytes())
    found = load(name, "s3://bucket/deep")
    for key, path in files.items():
        bucket.put(key, path.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match=r"s3://bucket/deep/.*: it has changed since it was listed; start again"):
        list(steps(found))


@pytest.mark.parametrize("name", NAMES)
def test_an_outage_is_waited_for_and_then_ends_the_attempt(name: Name, data: Gateway, made: Path) -> None:
    whole, found = list(steps(load(name, made))), load(name, "s3://bucket/deep", retry_seconds=60)
    data.stop()
    again = threading.Thread(target=data.start)
    again.start()
    assert list(steps(found)) == whole
    again.join()
    shutil.rmtree(cache.of(ObjectStorage()).root)
    found = load(name, "s3://bucket/deep", retry_seconds=1)
    data.stop()
    with pytest.raises(StorageError, match=r"s3://bucket/deep/.*: the storage does not answer; check AWS_ENDPOINT_URL"):
        list(steps(found))


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ("", "s3://bucket/nothing", "s3://bucket/nothing/ImageFolder/train: no folders in it; the images to train on"),
        ("val", "", "s3://bucket/deep/ImageFolder/val: no folders in it; the images to test with need a folder for"),
        ("val/temple", "", "s3://bucket/deep/ImageFolder/val: class temple is missing; both need the same folders of"),
        ("train/temple", "", "s3://bucket/deep/ImageFolder/train: it has 1 classes, model.numClasses says 2; use 1"),
        ("", "s3://another", "s3://another/ImageFolder: there is no such bucket; create it, or correct the bucket's"),
    ],
)
def test_a_folder_that_is_none_is_one_sentence(change: str, name: str, message: str, data: Gateway) -> None:
    if change:
        shutil.rmtree(data.bucket / "deep/ImageFolder" / change)
    with pytest.raises((ConfigError, DataError)) as raised:
        load("ImageFolder", name or "s3://bucket/deep")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("train.mindrecord1.db", "MindRecord/train.mindrecord1.db: missing; a MindRecord file is of no use without"),
        ("val*", "MindRecord: no file val*.mindrecord*; MindRecord needs train* and val* with theirs .db"),
    ],
)
def test_records_without_a_part_are_one_sentence(removed: str, message: str, data: Gateway) -> None:
    for path in (data.bucket / "deep/MindRecord").glob(removed):
        path.unlink()
    with pytest.raises(DataError) as raised:
        load("MindRecord", "s3://bucket/deep")
    assert str(raised.value).startswith(f"s3://bucket/deep/{message}")


READER = Path(__file__).parent / "stubs" / "cachereader.py"


def test_processes_share_a_cache_and_a_killed_one_leaves_nothing_torn(storage: Gateway, tmp_path: Path) -> None:
    folder, limit = tmp_path / "cache", 600_000
    draw = random.Random(0)
    for number in range(40):
        (storage.bucket / f"{number:02}").write_bytes(draw.randbytes(40_000))
    command = [sys.executable, str(READER), str(folder), str(limit), str(storage.bucket)]
    readers = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(3)]
    for _ in range(20):
        assert readers[0].stdout is not None and readers[0].stdout.readline() == "intact\n"
    os.kill(readers[0].pid, signal.SIGKILL)
    for reader in readers[1:]:
        output, _ = reader.communicate(timeout=120)
        assert (reader.returncode, set(output.splitlines())) == (0, {"intact"})
    readers[0].communicate()
    kept = sum(path.stat().st_size for path in folder.glob("??/[!.]*"))
    assert 0 < kept <= limit
    left = folder / "00" / ".left"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert subprocess.run([*command, "4"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert not left.exists()
    assert np.all([path.name[0] != "." for path in folder.glob("??/*")])
