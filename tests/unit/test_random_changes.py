"""RandAugment and random erasing: the bits of torchvision's, given what torchvision drew, and in each data set."""

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from resnetboost_trainer import config
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.erasing import RandomErasing
from resnetboost_trainer.data.loader import DataLoader
from resnetboost_trainer.data.randaugment import OPERATIONS, RandAugment
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.sampler import DistributedSampler
from resnetboost_trainer.failures import ConfigError
from support import photographs

SYSTEM_PYTHON = "/usr/bin/python3"
REFERENCE = Path(__file__).parents[1] / "integration" / "torchvision_augmentations.py"
ERASING = RandomErasing(probability=1, min_scale=0.02, max_scale=0.33, min_ratio=0.3, max_ratio=3.3, noise=False)
STRONG = config.RandAugment(num_ops=3, magnitude=20)
Arrays = dict[str, NDArray[Any]]


class Recorded:
    """A generator that gives what another one drew."""

    def __init__(self, drawn: Iterable[float]) -> None:
        self._drawn = iter(drawn)

    def random(self) -> float:
        return next(self._drawn)

    def integers(self, bound: int) -> int:
        found = int(next(self._drawn))
        assert 0 <= found < bound
        return found

    def uniform(self, low: float, high: float) -> float:
        found = next(self._drawn)
        assert low - 1e-6 <= found <= high + 1e-6
        return found

    def is_used_up(self) -> bool:
        return next(self._drawn, None) is None


def pictures() -> dict[str, Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (33, 47, 3), np.uint8)
    found = photographs.photographs()
    return {
        "photograph": found["temple"].resize((64, 48)),
        "grey": found["flower"].resize((28, 28)).convert("L"),
        "noise": Image.fromarray(noise),
    }


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Arrays]:
    """torchvision's results by file."""
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torchvision"], capture_output=True, check=False).returncode:
        pytest.skip("no torchvision; scripts/install-system-packages brings it")
    folder = tmp_path_factory.mktemp("torchvision")
    for name, picture in pictures().items():
        picture.save(folder / f"{name}.png")
    subprocess.run([SYSTEM_PYTHON, str(REFERENCE), str(folder)], check=True)
    return lambda file: dict(np.load(folder / f"{file}.npz"))


@pytest.mark.slow
def test_each_operation_has_torchvisions_bits_at_each_magnitude(theirs: Callable[[str], Arrays]) -> None:
    images, found, seen = pictures(), theirs("operations"), set()
    for name, magnitude in [(name.removesuffix("/magnitude"), found[name]) for name in found if "magnitude" in name]:
        image, operation, bins, place, sign = name.split("/")
        change, space, _ = OPERATIONS[operation]
        # The last bit of torch.linspace depends on the width of the CPU's vectors.
        ours = 0.0 if space is None else float(space(int(bins), *images[image].size)[int(place)])
        assert ours == pytest.approx(float(magnitude), rel=1e-6, abs=1e-30), name
        changed = np.asarray(change(images[image], int(sign) * float(magnitude)))
        np.testing.assert_array_equal(changed, found[name], name)
        seen.add(operation)
    assert seen == set(OPERATIONS)


@pytest.mark.slow
def test_an_image_has_torchvisions_bits_for_the_same_draws(theirs: Callable[[str], Arrays]) -> None:
    images, found = pictures(), theirs("augmented")
    for name in [name.removesuffix("/image") for name in found if name.endswith("/image")]:
        image, setting, _ = name.split("/")
        num_ops, magnitude, num_bins = map(int, setting.split("-"))
        draw = Recorded(found[f"{name}/drawn"])
        ours = RandAugment(num_ops=num_ops, magnitude=magnitude, num_bins=num_bins)
        changed = ours.apply(images[image], cast(Generator, draw))
        np.testing.assert_array_equal(np.asarray(changed), found[f"{name}/image"], name)
        assert draw.is_used_up(), name


@pytest.mark.slow
def test_the_same_pixels_are_erased_as_by_torchvision_for_the_same_draws(theirs: Callable[[str], Arrays]) -> None:
    found = theirs("erased")
    erasing = RandomErasing(probability=0.5, min_scale=0.02, max_scale=0.9, min_ratio=0.3, max_ratio=3.3, noise=False)
    shares = []
    for name in [name.removesuffix("/image") for name in found if name.endswith("/image")]:
        expected, draw = found[f"{name}/image"], Recorded(found[f"{name}/drawn"])
        ours = np.ones(expected.shape, np.float32)
        erasing.apply(ours, cast(Generator, draw))
        np.testing.assert_array_equal(ours, expected, name)
        assert draw.is_used_up(), name
        shares.append(1 - ours.mean())
    assert min(shares) == 0 and max(shares) > 0.5


def test_noise_is_normal_in_every_channel_and_stays_in_its_rectangle() -> None:
    image = np.full((3, 200, 160), 7, np.float32)
    erasing = RandomErasing(probability=1, min_scale=0.3, max_scale=0.33, min_ratio=0.9, max_ratio=1.1, noise=True)
    erasing.apply(image, np.random.default_rng(3))
    erased = image != 7
    np.testing.assert_array_equal(erased[0], erased[1])
    rows, columns = (np.flatnonzero(erased[0].any(axis)) for axis in (1, 0))
    assert erased[0, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    assert 0.29 < erased.mean() < 0.34
    noise = image[:, erased[0]]
    assert abs(noise.mean()) < 0.03 and noise.std() == pytest.approx(1, abs=0.03)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.05, "each channel has noise of its own"


def test_as_many_images_lose_a_rectangle_as_asked_for() -> None:
    erasing = RandomErasing(probability=0.3, min_scale=0.1, max_scale=0.2, min_ratio=0.5, max_ratio=2, noise=False)
    images = np.ones((1000, 1, 16, 16), np.float32)
    for seed, image in enumerate(images):
        erasing.apply(image, np.random.default_rng(seed))
    assert (images == 0).any((1, 2, 3)).mean() == pytest.approx(0.3, abs=0.05)


Name = Literal["CIFAR10", "ImageFolder", "mnist_5k", "digits"]


def load(name: Name, root: Path | None, **changes: Any) -> registry.Dataset:
    augmentation, size = config.Augmentation(**changes), 24 if name == "ImageFolder" else None
    path = None if root is None else str(root)
    dataset = config.Dataset(name=name, path=path, image_size=size, augmentation=augmentation)
    return registry.load(dataset, 2 if name == "ImageFolder" else 10)


@pytest.fixture(params=["CIFAR10", "ImageFolder", "mnist_5k"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Name, Path | None]:
    name = cast(Name, request.param)
    if name == "CIFAR10":
        photographs.cifar(tmp_path)
    elif name == "ImageFolder":
        photographs.folder(tmp_path)
    return name, None if name == "mnist_5k" else tmp_path


def batches(found: registry.Dataset, workers: int, rank: int = 0, ranks: int = 1, first: int = 0) -> list[bytes]:
    feed = DataLoader(found.train, Corrupt(0), workers, found.mixing)
    try:
        share = DistributedSampler(3, 8, rank, ranks, 24)
        return [image.tobytes() for batch in feed.batches(share.steps(first, 6)) for image in batch.images]
    finally:
        feed.close()


def test_bits_depend_on_seed_epoch_and_sample_alone(source: tuple[Name, Path | None]) -> None:
    """Not on threads, ranks, or the step that a run resumes at."""
    found = load(*source, rand_augment=STRONG, random_erasing=config.RandomErasing(fill="Noise"), mixup_alpha=0.2)
    whole = batches(found, workers=1)
    assert batches(found, workers=4) == whole
    assert batches(found, workers=2, first=4) == whole[4 * 8 :]
    halves = [batches(found, 2, rank, ranks=2) for rank in (0, 1)]
    assert [halves[place // 4 % 2][place // 8 * 4 + place % 4] for place in range(len(whole))] == whole
    assert len(set(whole)) == len(whole), "another change in the second epoch"


def test_they_change_the_image_that_crop_and_flip_have_made(source: tuple[Name, Path | None]) -> None:
    """The draws of crop and flip come first: with an Identity and nothing erased all is as without."""
    rng = SampleRNG(0, 0, "augmentation")
    plain, changed, erased = (
        load(*source, **changes)
        for changes in ({}, {"rand_augment": STRONG}, {"random_erasing": config.RandomErasing()})
    )
    rows = np.zeros((3, 24, *plain.train.shape), np.float32)
    for row, found in zip(rows, (plain, changed, erased), strict=True):
        for place in range(24):
            found.train.fill(row[place : place + 1], np.array([place]), rng)
    assert (rows[0] != rows[1]).any((1, 2, 3)).mean() > 0.8
    lost = rows[0] != rows[2]
    assert 0.2 < lost.any((1, 2, 3)).mean() < 0.8
    assert (rows[2][lost] == 0).all()


def test_test_images_are_not_changed(source: tuple[Name, Path | None]) -> None:
    plain = load(*source)
    changed = load(*source, rand_augment=STRONG, random_erasing=config.RandomErasing(probability=1))
    images, others = (np.empty((4, *plain.test.shape), np.float32) for _ in range(2))
    for out, dataset in ((images, plain), (others, changed)):
        for place in range(4):
            dataset.test.fill(out[place : place + 1], np.array([place]), None)
    np.testing.assert_array_equal(images, others)


def test_numbers_of_any_scale_are_erased_and_not_augmented() -> None:
    found = load("digits", None, random_erasing=config.RandomErasing(probability=1))
    out = np.empty((64, 1, 8, 8), np.float32)
    found.train.fill(out, np.arange(64), SampleRNG(0, 0, "augmentation"))
    assert (out == 0).any((1, 2, 3)).mean() > 0.7, "some are too flat to erase a pixel"
    with pytest.raises(ConfigError, match="randAugment: it is for images of bytes, and those of digits are numbers"):
        load("digits", None, rand_augment=STRONG)
