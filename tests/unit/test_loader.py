"""Data loader: which samples are in a batch, reproducible bits with any number of threads, and unreadable images."""

import errno
import io
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from resnetboost_trainer import config
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.data.autotune import Setting
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.image_dataset import ImageDataset
from resnetboost_trainer.data.loader import Batch, BatchRequest, DataLoader, cores
from resnetboost_trainer.data.mixup import Mixing
from resnetboost_trainer.data.rng import SampleRNG, descended
from resnetboost_trainer.data.sampler import DistributedSampler
from resnetboost_trainer.data.transforms import Evaluated
from resnetboost_trainer.failures import DataError, OutOfMemoryError, StorageError, TrainingError
from support import photographs
from support.examples import examples

TRAIN, GLOBAL = 24, 12
STEPS = 2 * (TRAIN // GLOBAL)
CHANGES: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs.folder(tmp_path_factory.mktemp("photographs"), TRAIN)


def dataset(root: Path, **changes: Any) -> registry.Dataset:
    plain = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0, "mixup_alpha": 0, "cutmix_alpha": 0}
    crop = {"min_scale": 0.08, "max_scale": 1, "min_ratio": 0.75, "max_ratio": 4 / 3, "padding": 4}
    augmentation = config.Augmentation(**{**plain, **crop, **changes})
    return registry.load(
        config.Dataset(name="ImageFolder", path=str(root), image_size=16, augmentation=augmentation), classes=2
    )


def train(
    found: registry.Dataset, rank: int = 0, ranks: int = 1, first: int = 0, workers: int = 2, parts: int = 1
) -> list[Batch]:
    feed = DataLoader(found.train, Corrupt(100), workers, found.mixing)
    try:
        share = DistributedSampler(5, GLOBAL, rank, ranks, len(found.train.labels), parts)
        return list(feed.batches(share.steps(first, STEPS)))
    finally:
        feed.close()


def bits(batches: Iterable[Batch]) -> list[bytes]:
    return [batch.images.tobytes() + batch.labels.tobytes() for batch in batches]


@pytest.mark.parametrize("changes", [{}, {**CHANGES, "mixup_alpha": 0.2, "cutmix_alpha": 1}], ids=["plain", "all"])
def test_a_loader_resumed_at_any_step_gives_the_same_bits(changes: dict[str, Any], root: Path) -> None:
    whole = bits(train(dataset(root, **changes)))
    assert len(set(whole)) == STEPS
    for first in range(1, STEPS + 1):
        assert bits(train(dataset(root, **changes), first=first, workers=1 + first % 3)) == whole[first:]


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_a_global_batch_has_the_same_bits_on_any_number_of_ranks(ranks: int, root: Path) -> None:
    found = dataset(root, **CHANGES, mixup_alpha=0.2, cutmix_alpha=1)
    parts = [train(found, rank, ranks) for rank in range(ranks)]
    for step, batch in enumerate(train(found)):
        images = np.concatenate([part[step].images for part in parts])
        np.testing.assert_array_equal(images, batch.images)
        np.testing.assert_array_equal(np.concatenate([part[step].labels for part in parts]), batch.labels)


@pytest.mark.parametrize(("ranks", "parts"), [(1, 2), (1, 6), (2, 3)])
def test_the_micro_batches_of_a_step_are_the_bits_of_its_whole_batch(ranks: int, parts: int, root: Path) -> None:
    found = dataset(root, **CHANGES, mixup_alpha=0.2, cutmix_alpha=1)
    small = train(found, ranks - 1, ranks, first=1, parts=parts)
    for step, batch in enumerate(train(found, ranks - 1, ranks, first=1)):
        own = small[step * parts : (step + 1) * parts]
        np.testing.assert_array_equal(np.concatenate([part.images for part in own]), batch.images)
        np.testing.assert_array_equal(np.concatenate([part.labels for part in own]), batch.labels)


def test_an_image_is_augmented_anew_in_every_epoch(root: Path) -> None:
    found = dataset(root)
    first, second = (
        {index: found_image(found, index, SampleRNG(0, epoch, "augmentation")) for index in range(4)}
        for epoch in (0, 1)
    )
    assert all(first[index] != second[index] for index in first)
    assert len(set(first.values())) == 4


def test_a_later_stage_crops_flips_and_mixes_anew(root: Path) -> None:
    """A later stage orders images anew, and also makes other random draws for the same image or place in the epoch."""
    found, lineage = dataset(root), descended(0, "fine")
    crops = [
        [found_image(found, index, SampleRNG(0, 0, "augmentation", of)) for index in range(4)] for of in (0, lineage)
    ]
    assert all(first != second for first, second in zip(*crops, strict=True))
    shares = [SampleRNG(0, 0, "mixing", of).of(0).random() for of in (0, lineage)]
    assert shares[0] != shares[1]
    mixed = dataset(root, mixup_alpha=0.2, cutmix_alpha=1)
    feed = DataLoader(mixed.train, Corrupt(0), 2, mixed.mixing)
    share = DistributedSampler(5, GLOBAL, 0, 1, TRAIN)
    stages = [bits(feed.batches(share._replace(lineage=of).steps(0, STEPS))) for of in (0, lineage)]
    feed.close()
    assert not set(stages[0]) & set(stages[1])
    assert stages[0] == bits(train(mixed)), "a first stage draws as it always did"


def found_image(found: registry.Dataset, index: int, rng: SampleRNG) -> bytes:
    out = np.empty((1, *found.train.shape), np.float32)
    found.train.fill(out, np.array([index]), rng)
    return out.tobytes()


def test_labels_are_those_of_the_images(root: Path) -> None:
    found = dataset(root, crop="Central", horizontal_flip=0.0)
    (batch,) = DataLoader(found.test, Corrupt(0), 2).batches([BatchRequest(np.arange(10), 0, 10)])
    for number, (piece, label) in enumerate(photographs.pieces(10, 96, 72, seed=1)):
        assert found.test.labels[place(found, number)] == label
        file = io.BytesIO()
        piece.save(file, "JPEG", quality=90)
        image = Image.open(file).convert("RGB").resize((24, 18), Image.Resampling.BILINEAR).crop((4, 1, 20, 17))
        ours = batch.images[place(found, number)].transpose(1, 2, 0) * [58.395, 57.12, 57.375]
        assert np.abs(ours + np.array([123.675, 116.28, 103.53]) - np.asarray(image)).max() < 2.1
    assert (batch.usable == 1).all()


def place(found: registry.Dataset, number: int) -> int:
    """Index of the test image with that file name."""
    return next(index for index in range(10) if found.test.name(index).endswith(f"{number:04}.jpg"))


def spoil(root: Path, *numbers: int) -> dict[int, Path]:
    """Truncate some training images; return their indices and files."""
    found = dataset(root)
    spoiled = {index: Path(found.train.name(index)) for index in numbers}
    for path in spoiled.values():
        path.write_bytes(path.read_bytes()[:300])
    return spoiled


def test_unusable_images_are_named_and_replaced_by_others_of_the_batch(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = dataset(photographs.folder(tmp_path, TRAIN))
    whole = train(good)
    order = sampler.order(5, 0, TRAIN)[:GLOBAL]
    first, second = (int(index) for index in order[3:5])  # adjacent in a batch: both are replaced by the next one
    spoiled = spoil(tmp_path, first, second)
    counted: list[None] = []
    corrupt = Corrupt(2)
    corrupt.counted = lambda: counted.append(None)
    found = dataset(tmp_path)
    batch = next(DataLoader(found.train, corrupt, 2).batches(DistributedSampler(5, GLOBAL, 0, 1, TRAIN).steps(0, 1)))
    for bad in (3, 4):
        np.testing.assert_array_equal(batch.images[bad], whole[0].images[5])
        assert batch.labels[bad] == whole[0].labels[5]
    rest = [place for place in range(GLOBAL) if place not in (3, 4)]
    np.testing.assert_array_equal(batch.images[rest], whole[0].images[rest])
    assert len(counted) == 2
    for path in spoiled.values():
        assert sum(f"skipped {path}: it cannot be decoded: " in record.message for record in caplog.records) == 1
    parts = [train(found, rank, 3) for rank in range(3)]
    for step, batch in enumerate(train(found)):
        np.testing.assert_array_equal(np.concatenate([part[step].images for part in parts]), batch.images)


@given(st.lists(st.builds(Setting, st.integers(1, 4), st.integers(1, 8)), min_size=STEPS, max_size=STEPS))
@examples(20)
def test_threads_and_batches_ahead_may_change_at_any_time(root: Path, changes: list[Setting]) -> None:
    found = dataset(root, **CHANGES, mixup_alpha=0.2)
    feed, made = DataLoader(found.train, Corrupt(0), 4, found.mixing), []
    for batch, setting in zip(
        feed.batches(DistributedSampler(5, GLOBAL, 0, 1, TRAIN).steps(0, STEPS)), changes, strict=True
    ):
        feed.set(setting)
        made.append(batch)
    feed.close()
    assert bits(made) == bits(train(found))


def test_too_many_unusable_images_end_the_training(tmp_path: Path) -> None:
    found = dataset(photographs.folder(tmp_path, TRAIN))
    spoil(tmp_path, 1, 2, 3)
    with pytest.raises(
        DataError, match=r"it is image 3 that cannot be used, and dataset.maxCorruptImages is 2; repair"
    ):
        list(DataLoader(found.train, Corrupt(2), 2).batches(DistributedSampler(0, GLOBAL, 0, 1, TRAIN).steps(0, 2)))


def test_a_rank_that_does_the_work_of_two_puts_up_with_the_images_of_both(tmp_path: Path) -> None:
    found = dataset(photographs.folder(tmp_path, TRAIN))
    spoil(tmp_path, 1, 2)
    wanted = DistributedSampler(0, GLOBAL, 0, 1, TRAIN, parts=2)
    list(DataLoader(found.train, Corrupt(1, 2), 2).batches(wanted.steps(0, 2)))
    spoil(tmp_path, 3)
    says = "it is image 3 that cannot be used, and dataset.maxCorruptImages is 1 for each of the 2 ranks whose work"
    with pytest.raises(DataError, match=says):
        list(DataLoader(found.train, Corrupt(1, 2), 2).batches(wanted.steps(0, 2)))


def test_a_batch_without_a_usable_image(tmp_path: Path) -> None:
    found = dataset(photographs.folder(tmp_path, TRAIN))
    spoil(tmp_path, *range(TRAIN))
    with pytest.raises(DataError, match="no image of its whole global batch can be used"):
        list(DataLoader(found.train, Corrupt(100), 2).batches(DistributedSampler(0, GLOBAL, 0, 1, TRAIN).steps(0, 1)))


def test_a_deleted_file_is_an_unusable_image(tmp_path: Path) -> None:
    found = dataset(photographs.folder(tmp_path, TRAIN))
    Path(found.test.name(2)).unlink()
    (batch,) = DataLoader(found.test, Corrupt(1), 2).batches([BatchRequest(np.arange(10), 0, 10)])
    assert batch.usable.tolist() == [1, 1, 0, *[1] * 7]
    assert not batch.images[2].any()
    with pytest.raises(DataError, match=r"it cannot be read: No such file or directory; it is image 1 that"):
        list(DataLoader(found.test, Corrupt(0), 2).batches([BatchRequest(np.arange(10), 0, 10)]))


class Outage:
    """Files on a storage that fails while it is read."""

    labels = np.zeros(8, np.int32)
    stream = None

    def __init__(self, number: int) -> None:
        self.number = number

    def name(self, index: int) -> str:
        return f"file {index}"

    def read(self, index: int) -> bytes:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
        (errno.ETIMEDOUT, StorageError),
        (errno.EMFILE, DataError),
        (errno.ENOMEM, OutOfMemoryError),
    ],
)
def test_an_outage_ends_the_attempt_and_names_the_file(number: int, kind: type[TrainingError]) -> None:
    """Treated as a corrupt image, it would fail the job for good, or train on other images than another run."""
    split = ImageDataset(Outage(number), Evaluated(16, 16), (16, 16))
    for rng in (None, SampleRNG(0, 0, "augmentation")):
        with pytest.raises(kind, match=f"file 0: cannot be read: {os.strerror(number)}; "):
            list(DataLoader(split, Corrupt(100), 2).batches([BatchRequest(np.arange(8), 0, 4, rng)]))


def special(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(300 << 20)


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "folder", "link to itself", "too large"])
def test_a_file_without_an_image_is_an_unusable_image(kind: str, tmp_path: Path) -> None:
    found = dataset(photographs.folder(tmp_path, TRAIN))
    special(Path(found.test.name(2)), kind)
    found = dataset(tmp_path)
    (batch,) = DataLoader(found.test, Corrupt(1), 2).batches([BatchRequest(np.arange(10), 0, 10)])
    assert batch.usable.tolist() == [1, 1, 0, *[1] * 7]


def test_a_closed_loader_leaves_no_thread(root: Path) -> None:
    before = set(threading.enumerate())  # threads of other tests may end meanwhile
    feed = DataLoader(dataset(root).train, Corrupt(0), 3)
    assert next(feed.batches(DistributedSampler(5, GLOBAL, 0, 1, TRAIN).steps(0, STEPS))).images.shape == (
        GLOBAL,
        3,
        16,
        16,
    )
    feed.close()
    assert set(threading.enumerate()) <= before


def test_threads_are_as_many_as_cores_within_the_quota_of_a_container(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    assert cores(quota) == cores(Path("/nowhere"))
    for text, count in (("max 100000", cores(Path("/nowhere"))), ("50000 100000", 1), ("100000 100000", 1)):
        quota.write_text(text)
        assert cores(quota) == count


images = st.integers(1, 4).map(lambda pairs: np.random.default_rng(pairs).random((2 * pairs, 3, 7, 9), np.float32))


@examples(60)
@given(original=images, alpha=st.sampled_from([0.1, 1, 4]), seed=st.integers(0, 99))
def test_mixup_mixes_neighbours_and_their_labels(original: np.ndarray[Any, Any], alpha: float, seed: int) -> None:
    labels = np.arange(len(original), dtype=np.int32)
    mixed = original.copy()
    shares = Mixing(alpha, 0, 10).apply(mixed, labels, SampleRNG(seed, 0, "mixing"), 0)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(shares.argmax(1), labels)
    np.testing.assert_allclose(np.einsum("nk,kchw->nchw", shares[:, : len(original)], original), mixed, atol=1e-6)


@examples(60)
@given(original=images, seed=st.integers(0, 99))
def test_cutmix_swaps_a_box_and_shares_labels_by_its_area(original: np.ndarray[Any, Any], seed: int) -> None:
    labels = np.arange(len(original), dtype=np.int32)
    mixed = original.copy()
    shares = Mixing(0, 1, 10).apply(mixed, labels, SampleRNG(seed, 0, "mixing"), 0)
    for sample in range(len(original)):
        other = sample ^ 1
        own = (mixed[sample] == original[sample]).all(0)
        assert (own | (mixed[sample] == original[other]).all(0)).all()
        assert own.mean() == pytest.approx(shares[sample, sample], abs=1e-6)
        rows, columns = np.nonzero(~own)
        if len(rows):
            box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            assert box == len(rows)


def test_each_pair_has_its_own_share_and_either_kind_of_mixing() -> None:
    original = np.random.default_rng(0).random((400, 1, 8, 8), np.float32)
    labels = np.arange(400, dtype=np.int32)
    mixed = original.copy()
    shares = Mixing(1, 1, 400).apply(mixed, labels, SampleRNG(0, 0, "mixing"), 0)
    own = shares[np.arange(400), labels]
    np.testing.assert_array_equal(own[::2], own[1::2])
    assert len(set(own[::2])) > 100
    kept = [(mixed[pair] == original[pair]).mean() for pair in range(0, 400, 2)]
    assert 60 < sum(share > 0.1 for share in kept) < 140
