"""dataset.validationSplit: stratified, the same everywhere, without a test set, refused for too small a class."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer import config
from resnetboost_trainer.data import registry, split, transforms
from resnetboost_trainer.data.transforms import Evaluated
from resnetboost_trainer.failures import ConfigError, DataError
from support import photographs


def load(name: Any, path: Path | None = None, classes: int = 10, **fields: Any) -> registry.Dataset:
    return registry.load(config.Dataset(name=name, path=None if path is None else str(path), **fields), classes)


@given(
    counts=st.lists(st.integers(2, 60), min_size=1, max_size=8), share=st.floats(0.05, 0.95), seed=st.integers(0, 99)
)
def test_each_class_gives_its_share_and_no_image_comes_twice(counts: Sequence[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)) * 3, counts)).astype(np.int32)
    taken = [int(share * count + 0.5) for count in counts]
    if any(not 0 < part < count for part, count in zip(taken, counts, strict=True)):
        with pytest.raises(ConfigError, match=r"^dataset.validationSplit: \S+ of the \d+ images to train on of class"):
            split.stratified(labels, share)
        return
    chosen = split.stratified(labels, share)
    assert sorted([*chosen.train, *chosen.test]) == list(range(len(labels)))
    assert np.bincount(labels[chosen.test], minlength=3 * len(counts))[::3].tolist() == taken
    assert (np.diff(chosen.train) > 0).all() and (np.diff(chosen.test) > 0).all()


def test_the_choice_is_the_same_in_every_version() -> None:
    """Of eight images of each of two classes; a run that goes on after an upgrade must not train on its test images."""
    chosen = split.stratified(np.repeat(np.array([0, 1], np.int32), 8), 0.25)
    assert chosen.test.tolist() == CHOSEN


CHOSEN = [0, 4, 9, 14]


def test_a_split_of_data_in_memory_trains_on_the_rest(tmp_path: Path) -> None:
    whole, found = load("mnist_5k"), load("mnist_5k", validation_split=0.1)
    again = load("mnist_5k", validation_split=0.1)
    assert (len(found.train.labels), len(found.test.labels)) == (3600, 400)
    assert len({whole.fingerprint, found.fingerprint, load("mnist_5k", validation_split=0.2).fingerprint}) == 3
    assert found.fingerprint == again.fingerprint
    kept, apart, every = (
        {image.tobytes() for image in part.pixels}  # type: ignore[attr-defined]
        for part in (found.train, found.test, whole.train)
    )
    assert kept | apart == every
    assert not kept & apart, "mnist_5k has no image twice"


def test_images_are_normalised_by_those_that_are_trained_on() -> None:
    found = load("digits", validation_split=0.3)
    assert found.x_train.mean() == pytest.approx(0, abs=1e-5) and found.x_train.std() == pytest.approx(1, abs=1e-5)
    known = load("digits").preparation
    assert found.preparation is not None and known is not None and found.preparation.mean != known.mean


def test_a_folder_needs_no_test_images(tmp_path: Path) -> None:
    photographs.folder(tmp_path, train=24)
    shutil.rmtree(tmp_path / "val")
    found = load("ImageFolder", tmp_path, classes=2, validation_split=0.25)
    assert (len(found.train.labels), len(found.test.labels)) == (18, 6)
    assert found.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    names = [[part.name(index) for index in range(len(part.labels))] for part in (found.train, found.test)]
    assert not set(names[0]) & set(names[1])
    assert {Path(name).parent.name for name in names[1][:3]} == {"flower"}
    assert {*names[0], *names[1]} == {str(path) for path in (tmp_path / "train").glob("*/*.jpg")}
    with pytest.raises(DataError, match="val: the folder of images to test with cannot be read"):
        load("ImageFolder", tmp_path, classes=2)
    for path in (tmp_path / "train").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "train").rmdir()
    assert load("ImageFolder", tmp_path, 2, validation_split=0.25, train_folder=".").test.labels.tolist() == [
        0, 0, 0, 1, 1, 1
    ]  # fmt: skip


def test_test_images_are_transformed_as_such_and_read_from_the_right_files(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    found = load("ImageFolder", tmp_path, 2, image_size=16, validation_split=0.25)
    plain = load("ImageFolder", tmp_path, 2, image_size=16)
    places = {plain.train.name(index): index for index in range(24)}
    for index in range(len(found.test.labels)):
        ours, theirs = (np.empty((1, 3, 16, 16), np.float32) for _ in range(2))
        found.test.fill(ours, np.array([index]), None)
        place = places[found.test.name(index)]
        assert plain.train.labels[place] == found.test.labels[index]
        transforms.fill(theirs[0], Path(found.test.name(index)).read_bytes(), Evaluated(16, 18), None)
        np.testing.assert_array_equal(ours, theirs)


def test_an_archive_needs_no_test_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    np.savez(path, x_train=rng.integers(0, 255, (40, 8, 8), np.uint8), y_train=np.repeat(np.arange(4), 10))
    found = load("npz", path, 4, validation_split=0.2)
    assert np.bincount(found.test.labels).tolist() == [2, 2, 2, 2]
    with pytest.raises(DataError, match="x_test: missing; needed are x_train, y_train, x_test, y_test"):
        load("npz", path, 4)


def test_a_class_that_is_too_small_is_named_with_a_remedy(tmp_path: Path) -> None:
    photographs.folder(tmp_path, train=24)
    small = sorted((tmp_path / "train" / "temple").iterdir())
    for path in small[3:]:
        path.unlink()
    where = r"^dataset.validationSplit: 0.1 of the 3 images to train on of class temple is none; use 0.167 or more"
    with pytest.raises(ConfigError, match=where):
        load("ImageFolder", tmp_path, classes=2, validation_split=0.1)
    load("ImageFolder", tmp_path, classes=2, validation_split=0.167)
    with pytest.raises(ConfigError, match=r"0.9 of the 3 images .* is each of them; use less than 0.83"):
        load("ImageFolder", tmp_path, classes=2, validation_split=0.9)
    for path in small[1:3]:
        path.unlink()
    with pytest.raises(ConfigError, match="class temple has one image to train on, and a split needs two"):
        load("ImageFolder", tmp_path, classes=2, validation_split=0.5)
