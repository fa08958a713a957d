"""Readers of CIFAR, MNIST and image-folder files, and the error messages for malformed ones."""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from resnetboost_trainer import config
from resnetboost_trainer.data import checks, recipe, registry
from resnetboost_trainer.data.dataset import ArraySplit
from resnetboost_trainer.data.sources import byte_file
from resnetboost_trainer.failures import ConfigError, DataError, TrainingError
from support import photographs

Name = Literal["digits", "npz", "mnist_5k", "MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "MindRecord", "Synthetic"]
AUGMENTATION = config.Augmentation()


def load(name: Name, path: Path | None = None, classes: int = 10, **changes: Any) -> registry.Dataset:
    return registry.load(config.Dataset(name=name, path=None if path is None else str(path), **changes), classes)


def pixels(found: registry.Dataset) -> Any:
    """Pixels of the training images before normalisation, (n, c, h, w)."""
    assert isinstance(found.train, ArraySplit)
    return found.train.pixels


def filled(found: registry.Dataset, count: int) -> Any:
    out = np.empty((count, *found.train.shape), np.float32)
    found.train.fill(out, np.arange(count), None)
    return out


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10(inner: str, tmp_path: Path) -> None:
    images, labels = photographs.cifar(tmp_path / inner)
    found = load("CIFAR10", tmp_path)
    np.testing.assert_array_equal(pixels(found), images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found.train.labels, labels)
    assert (found.train.shape, found.channels, len(found.test.labels)) == ((3, 32, 32), 3, 8)
    normalised = filled(found, len(images))
    np.testing.assert_allclose(normalised.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(normalised.std((0, 2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize("inner", ["", "cifar-100-binary"])
def test_cifar100_has_its_fine_labels(inner: str, tmp_path: Path) -> None:
    images, labels = photographs.cifar(tmp_path / inner, hundred=True)
    found = load("CIFAR100", tmp_path, classes=100)
    np.testing.assert_array_equal(pixels(found), images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found.train.labels, labels)
    assert set(labels) == {90, 91}


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(packed: bool, tmp_path: Path) -> None:
    images, labels = photographs.mnist(tmp_path, packed)
    found = load("MNIST", tmp_path)
    np.testing.assert_array_equal(pixels(found)[:, 0], images)
    np.testing.assert_array_equal(found.train.labels, labels)
    assert (found.train.shape, len(found.test.labels)) == ((1, 28, 28), 20)


def test_mnist_by_its_other_names(tmp_path: Path) -> None:
    photographs.mnist(tmp_path)
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(load("MNIST", tmp_path).train.labels) == 20


def test_mnist_5k_is_split_alike_in_every_class() -> None:
    found = load("mnist_5k")
    assert np.bincount(found.train.labels).tolist() == [400] * 10
    assert np.bincount(found.test.labels).tolist() == [100] * 10
    assert found.train.shape == (1, 28, 28)


def test_synthetic_images_are_the_same_on_every_rank_and_of_any_size() -> None:
    first, second = (load("Synthetic", classes=7, image_size=20) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert (first.train.shape, len(first.train.labels), len(first.test.labels)) == ((3, 20, 20), 1024, 256)
    assert set(first.train.labels) == set(range(7))


def test_a_border_is_black_also_where_images_are_kept_normalised(tmp_path: Path) -> None:
    """After normalisation, black in an npz is no longer 0; padding with 0 would make a grey border."""
    random = np.random.default_rng(0)
    images = random.integers(1, 256, (12, 6, 6, 3), np.uint8)
    path = tmp_path / "images.npz"
    np.savez(path, x_train=images, y_train=np.zeros(12, int), x_test=images, y_test=np.zeros(12, int))
    found = load("npz", path)
    assert isinstance(found.train, ArraySplit)
    expected = -images.mean((0, 1, 2)) / images.std((0, 1, 2))
    np.testing.assert_allclose(found.train.blank, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "crop", "flip", "size"),
    [
        ("ImageFolder", "RandomResized", 0.5, 224),
        ("MindRecord", "RandomResized", 0.5, 224),
        ("CIFAR10", "Padded", 0.5, 32),
        ("CIFAR100", "Padded", 0.5, 32),
        ("MNIST", "Central", 0, 28),
        ("digits", "Central", 0, 8),
    ],
)
def test_default_augmentation_of_each_data_set(name: Name, crop: str, flip: float, size: int) -> None:
    found = recipe.recipe(
        config.Dataset(name=name, path="/data", augmentation=AUGMENTATION), 10, registry.SOURCES[name]
    )
    arrays = (found.arrays.padding, found.arrays.flip) if found.arrays is not None else (0, 0)
    assert arrays == {"RandomResized": (0, 0.5), "Padded": (4, 0.5), "Central": (0, 0)}[crop]
    assert found.augmented.flip == flip
    if crop == "RandomResized":
        assert (found.size, found.evaluated.size, found.evaluated.resize) == (224, 224, 256)
        assert found.augmented.crop != found.evaluated


def test_a_folder_is_read_at_any_depth_in_the_order_of_names(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    first = load("ImageFolder", tmp_path, classes=2)
    shutil.copytree(tmp_path, tmp_path / "again")
    again = load("ImageFolder", tmp_path / "again", classes=2)
    assert again.fingerprint == first.fingerprint
    for path in sorted((tmp_path / "train" / "temple").iterdir())[:3]:
        (tmp_path / "train" / "temple" / "deep").mkdir(exist_ok=True)
        path.rename(tmp_path / "train" / "temple" / "deep" / path.name.replace(".jpg", ".JPEG"))
    (tmp_path / "train" / "temple" / "notes.txt").touch()
    (tmp_path / "train" / ".cache").mkdir()
    deep = load("ImageFolder", tmp_path, classes=2)
    assert deep.train.labels.tolist() == first.train.labels.tolist()
    assert deep.fingerprint != first.fingerprint
    assert [Path(deep.train.name(index)).parent.name for index in range(24)].count("deep") == 3


def test_folders_may_have_other_names(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    (tmp_path / "train").rename(tmp_path / "training")
    (tmp_path / "val").rename(tmp_path / "testing")
    found = load("ImageFolder", tmp_path, classes=2, train_folder="training", test_folder="testing")
    assert (len(found.train.labels), len(found.test.labels)) == (24, 10)


def test_a_file_that_changed_its_length_makes_another_data_set(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    first = load("ImageFolder", tmp_path, classes=2)
    path = Path(first.train.name(7))
    path.write_bytes(path.read_bytes() + b"\0")
    assert load("ImageFolder", tmp_path, classes=2).fingerprint != first.fingerprint


def test_a_dangling_link_fails_only_when_read(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    first = load("ImageFolder", tmp_path, classes=2)
    path = Path(first.train.name(0))
    path.unlink()
    path.symlink_to(tmp_path / "nowhere.jpg")
    found = load("ImageFolder", tmp_path, classes=2)
    assert found.fingerprint != first.fingerprint
    assert len(found.train.labels) == len(first.train.labels)


def test_cyclic_links_between_folders_end(tmp_path: Path) -> None:
    photographs.folder(tmp_path)
    first = load("ImageFolder", tmp_path, classes=2)
    (tmp_path / "train" / "temple" / "again").symlink_to(tmp_path / "train" / "temple")
    assert load("ImageFolder", tmp_path, classes=2).fingerprint == first.fingerprint
    (tmp_path / "train" / "temple" / "itself").symlink_to(tmp_path / "train" / "temple" / "itself")
    with pytest.raises(DataError, match="temple/itself: the folder of a class cannot be read: Too many levels"):
        load("ImageFolder", tmp_path, classes=2)


def removed(name: str) -> Callable[[Path], object]:
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def emptied(name: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        for path in (root / name).iterdir():
            path.unlink()

    return change


def without_folders(name: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        shutil.rmtree(root / name)
        (root / name).mkdir()

    return change


def flattened(name: str) -> Callable[[Path], object]:
    """ImageNet's validation images as they are unpacked from their archive: without class folders."""

    def change(root: Path) -> None:
        for path in list((root / name).glob("*/*")):
            path.rename(root / name / path.name)
        for folder in (root / name).glob("*/"):
            folder.rmdir()

    return change


def cut(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-5])


def put(name: str, at: int, value: int) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        content = bytearray((root / name).read_bytes())
        content[at] = value
        (root / name).write_bytes(content)

    return change


PROBLEMS: dict[str, tuple[Name, int, Callable[[Path], object], str]] = {
    "no training folder": ("ImageFolder", 2, removed("train"), "/train: the folder of images to train on cannot be"),
    "no test folder": ("ImageFolder", 2, removed("val"), "/val: the folder of images to test with cannot be read: No"),
    "more classes than the network": ("ImageFolder", 3, lambda _: None, "/train: it has 2 classes, model.numC"),
    "a class without images": (
        "ImageFolder",
        2,
        emptied("train/temple"),
        "/train/temple: no image in it; each class needs one at least (.jpg",
    ),
    "a class that only tests have": (
        "ImageFolder",
        2,
        lambda root: shutil.copytree(root / "val/temple", root / "val/unknown"),
        "/val: class unknown is none of ",
    ),
    "a class that tests lack": ("ImageFolder", 2, removed("val/temple"), "/val: class temple is missing; both need"),
    "no folders of classes": (
        "ImageFolder",
        2,
        without_folders("train"),
        "/train: no folders in it; the images to train on need a folder for each class",
    ),
    "too few classes for CIFAR10": ("CIFAR10", 9, lambda _: None, "model.numClasses: 9 is too few for CIFAR10; use at"),
    "a batch of CIFAR10 is missing": ("CIFAR10", 10, removed("data_batch_3.bin"), "/data_batch_3.bin: missing; fetch"),
    "a batch of CIFAR10 is cut off": (
        "CIFAR10",
        10,
        cut("test_batch.bin"),
        "/test_batch.bin: 24579 bytes are no whole number of records of 3073; fetch",
    ),
    "a label of CIFAR10": (
        "CIFAR10",
        10,
        put("data_batch_2.bin", 3 * 3073, 10),
        "/data_batch_2.bin: label 10 of sample 3 is not one of 0 to 9; is it a file of this data set?",
    ),
    "MNIST's labels are missing": ("MNIST", 10, removed("t10k-labels-idx1-ubyte"), "/t10k-labels-idx1-ubyte: mis"),
    "MNIST's images are cut off": (
        "MNIST",
        10,
        cut("train-images-idx3-ubyte"),
        "/train-images-idx3-ubyte: 15675 bytes do not make the shape (20, 28, 28); fetch",
    ),
    "MNIST's images are something else": (
        "MNIST",
        10,
        put("train-images-idx3-ubyte", 2, 9),
        "/train-images-idx3-ubyte: not an idx file of bytes in 3 dimensions; fetch",
    ),
    "fewer labels than images of MNIST": (
        "MNIST",
        10,
        lambda root: photographs.write(root / "t10k-labels-idx1-ubyte", photographs.idx(np.zeros(3, np.uint8)), False),
        "/t10k-labels-idx1-ubyte: 3 labels for 20 images; fetch",
    ),
}  # fmt: skip
MAKERS: dict[str, Callable[[Path], object]] = {
    "ImageFolder": photographs.folder,
    "CIFAR10": photographs.cifar,
    "MNIST": photographs.mnist,
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_is_one_sentence(problem: str, tmp_path: Path) -> None:
    name, classes, change, says = PROBLEMS[problem]
    MAKERS[name](tmp_path)
    change(tmp_path)
    with pytest.raises(TrainingError) as caught:
        load(name, tmp_path, classes)
    assert str(caught.value).removeprefix(str(tmp_path)).startswith(says)
    assert "\n" not in str(caught.value)


def beside_each_other(root: Path) -> None:
    for path in list((root / "train").iterdir()):
        path.rename(root / path.name)
    (root / "train").rmdir()


LAYOUT = "lay images out as train/CLASS/NAME.jpg and val/CLASS/NAME.jpg in ROOT, which holds"
LAYOUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no test folder": (removed("val"), f"/val: the folder of images to test with cannot be read: .*; {LAYOUT} train "),
    "no training folder": (beside_each_other, f"/train: the folder .*; {LAYOUT} flower, temple, val "),
    "a flat test folder": (
        flattened("val"),
        "/val: no folders in it; .* a folder for each class, val/CLASS/NAME.jpg,"
        " and there is 0000.jpg, 0001.jpg, 0002.jpg, 0003.jpg, 6 more$",
    ),
}


@pytest.mark.parametrize(("change", "says"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_an_error_names_the_expected_layout_and_the_found_files(
    change: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    photographs.folder(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError) as caught:
        load("ImageFolder", tmp_path, 2)
    assert re.search(says, str(caught.value).replace(str(tmp_path), "ROOT"))


def test_a_folder_that_is_not_there_is_named_with_its_neighbours(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photographs")
    with pytest.raises(DataError) as caught:
        load("ImageFolder", tmp_path / "fotos", 2)
    says = f"dataset.path: there is no folder {tmp_path}/fotos; {tmp_path} holds photographs"
    assert str(caught.value) == says


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    photographs.mnist(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not a whole gzip file"):
        load("MNIST", tmp_path)
    path.write_bytes(gzip.compress(b"text")[5:])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not a whole gzip file"):
        load("MNIST", tmp_path)


def test_a_small_gzip_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs.mnist(tmp_path, packed=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(5 << 20)))
    monkeypatch.setattr(byte_file, "_MOST_UNPACKED", 3 << 20)
    with pytest.raises(DataError, match=r"idx3-ubyte\.gz: more than 3145728 bytes when unpacked; fetch it again"):
        load("MNIST", tmp_path)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "MindRecord"])
def test_a_path_that_is_missing_or_leads_nowhere(name: Name, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.path: missing; dataset\.name: {name} needs the folder"):
        load(name, classes=100)
    with pytest.raises(
        DataError,
        match=r"^dataset\.path: .*nowhere does not exist; set it to the folder of its |"
        r"nowhere.*: .*No such file or directory|there is no folder .*nowhere; ",
    ):
        load(name, tmp_path / "nowhere", classes=100)


def said(fingerprints: list[str]) -> list[str]:
    """Error message of each rank of a gang whose ranks see those data sets."""
    rows: list[Any] = []

    def alone(row: Any) -> Any:
        rows.append(row)
        return row[None]

    for fingerprint in fingerprints:
        checks.check_same(fingerprint, alone)
    told = []
    for fingerprint in fingerprints:
        try:
            checks.check_same(fingerprint, lambda _: np.stack(rows))
            told.append("")
        except DataError as error:
            told.append(str(error))
    return told


def test_ranks_with_different_data_are_named_on_every_rank(tmp_path: Path) -> None:
    """Two nodes with different copies: their shards would overlap, or one rank would wait for the other for ever."""
    photographs.folder(tmp_path)
    first = load("ImageFolder", tmp_path, classes=2)
    Path(first.train.name(0)).write_bytes(b"")
    second = load("ImageFolder", tmp_path, classes=2)
    assert said([first.fingerprint] * 3) == [""] * 3
    told = said([first.fingerprint, first.fingerprint, second.fingerprint])
    assert set(told) == {
        "dataset.path: the ranks see different data, rank 2 other than rank 0; every node needs the same files"
    }


def test_mixup_needs_an_even_batch() -> None:
    checks.check_batch(100, 2, 32, mixing=True)
    checks.check_batch(100, 2, 33, mixing=False)
    with pytest.raises(ConfigError, match="localBatchSize: 33 is odd, and mixup and cutmix mix pairs; use an even one"):
        checks.check_batch(100, 2, 33, mixing=True)
