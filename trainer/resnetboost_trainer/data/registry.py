"""Registry of the data sources (`dataset.name`); loads the job's data set from one.

A new source is a file in data/sources with its reader, a line here, and its name in `DatasetName` of
resnetboost_api/dataset.py (and in the rules there that list sources without a path or with an image size).
"""

import contextlib
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.data import arrays, download, preprocessing, read_errors, recipe, split
from resnetboost_trainer.data.dataset import ArraySplit, Split
from resnetboost_trainer.data.image_dataset import ImageDataset
from resnetboost_trainer.data.mixup import Mixing
from resnetboost_trainer.data.preprocessing import Preparation, UnknownScale
from resnetboost_trainer.data.recipe import Recipe
from resnetboost_trainer.data.sources import cifar, digits, imagefolder, mindrecord, mnist, npz, streamed, synthetic
from resnetboost_trainer.data.sources.source import Files, Source, place
from resnetboost_trainer.failures import ConfigError, DataError
from resnetboost_trainer.storage import address


def _parts(dataset: config.Dataset) -> tuple[npz.Part, ...]:
    """The parts that are read: with validationSplit the test images may be missing."""
    return npz.PARTS if dataset.validation_split is None else npz.PARTS[:1]


_CIFAR_PATH, _DIGITS = "the folder of its .bin files", tuple("0123456789")
SOURCES = {
    "digits": Source(arrays=digits.read, class_names=lambda _: _DIGITS, white=digits.WHITE),
    "npz": Source(
        arrays=lambda dataset, classes: npz.read(place(dataset), classes, _parts(dataset)),
        path="the path of an .npz file",
    ),
    "mnist_5k": Source(pixels=mnist.read_5k, class_names=lambda _: _DIGITS),
    "MNIST": Source(pixels=mnist.read, path="the folder of its idx files", class_names=lambda _: _DIGITS),
    "CIFAR10": Source(
        pixels=cifar.read10, path=_CIFAR_PATH, class_names=cifar.names10, crop="Padded", horizontal_flip=0.5
    ),
    "CIFAR100": Source(
        pixels=cifar.read100, path=_CIFAR_PATH, class_names=cifar.names100, crop="Padded", horizontal_flip=0.5
    ),
    "ImageFolder": Source(
        files=imagefolder.read,
        streamed=streamed.folder,
        path="the folder that has train and val",
        crop="RandomResized",
        horizontal_flip=0.5,
    ),
    "MindRecord": Source(
        files=mindrecord.read,
        streamed=streamed.records,
        path="the folder of the files",
        crop="RandomResized",
        horizontal_flip=0.5,
    ),
    "Synthetic": Source(pixels=synthetic.read),
}


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """Training and test images, float32 (channels, h, w) each, and int32 labels below `classes`.

    Training images in memory have mean 0 and standard deviation 1 in each channel, before augmentation. A checkpoint
    belongs to data sets of one `fingerprint` only; `preparation` turns other pictures into such images. `workers`
    threads make batches, by default one per core, or with `autotune` as many of them as are needed. A rank skips up to
    `max_corrupt_images`.
    """

    train: Split
    test: Split
    classes: int
    channels: int
    fingerprint: str
    preparation: Preparation | None = None
    mixing: Mixing | None = None
    workers: int | None = None
    autotune: bool = False
    max_corrupt_images: int = 0

    @property
    def x_train(self) -> NDArray[np.float32]:
        """All training images (n, c, h, w), for a data set that is normalised in memory."""
        return _in_memory(self.train)

    @property
    def y_train(self) -> NDArray[np.int32]:
        return self.train.labels

    @property
    def x_test(self) -> NDArray[np.float32]:
        """All test images, like `x_train`."""
        return _in_memory(self.test)

    @property
    def y_test(self) -> NDArray[np.int32]:
        return self.test.labels


def _in_memory(split: Split) -> NDArray[np.float32]:
    assert isinstance(split, ArraySplit) and split.channels is None
    return split.pixels


def load(
    dataset: config.Dataset,
    classes: int,
    known: Preparation | None = None,
    storage: ObjectStorage = ObjectStorage(),  # noqa: B008
) -> Dataset:
    """Read the job's data set. Raises ConfigError, DataError or StorageError: one sentence with the remedy.

    Images are normalised by `known`, the preparation of a trained network. Without it, arrays are by their own mean and
    deviation, and photographs by ImageNet's.
    """
    try:
        return _load(dataset, classes, known, storage)
    except UnknownScale as problem:
        assert known is not None
        unknown = known.values is None or known.white_guessed
        remedy = f"write these images on the scale of the training images ({known.numbers})"
        remedy += ", or name the number of their white pixels with --white" if unknown else ""
        field = f"dataset.name: {dataset.name}" if dataset.path is None else f"dataset.path: {dataset.path}"
        raise ConfigError(f"{field}: {problem}; {remedy}") from None
    except OSError as error:
        raise read_errors.failure(f"{error.filename or dataset.path}: cannot be read", error) from None


def _check_there(dataset: config.Dataset, source: Source) -> None:
    """Raise DataError for a path that is not there; other errors are the reader's."""
    with contextlib.suppress(OSError):
        if dataset.path is not None and source.path is not None and not Path(dataset.path).exists():
            raise DataError(f"dataset.path: {dataset.path} does not exist; set it to {source.path}")


def _load(dataset: config.Dataset, classes: int, known: Preparation | None, storage: ObjectStorage) -> Dataset:
    source = SOURCES[dataset.name]
    chosen = recipe.recipe(dataset, classes, source)
    if source.path is not None and dataset.path is None:
        raise ConfigError(f"dataset.path: missing; dataset.name: {dataset.name} needs {source.path}")
    share = dataset.validation_split
    if source.streamed is not None and dataset.path is not None and address.is_address(dataset.path):
        files = source.streamed(dataset, classes, storage)
        return _of_files(dataset, files if share is None else split.of_files(files, share), chosen, classes, known)
    dataset = download.local(dataset, storage)
    if source.files is not None:
        files = source.files(dataset, classes)
        return _of_files(dataset, files if share is None else split.of_files(files, share), chosen, classes, known)
    read = source.arrays or source.pixels
    assert read is not None
    _check_there(dataset, source)
    found = read(dataset, classes)
    names = source.class_names(dataset)[:classes]
    if share is not None:
        found = split.of_arrays(found, share, names)
    if source.arrays is not None:
        origin = dataset.path if source.path is not None and dataset.path is not None else dataset.name
        parts = arrays.normalised(found, origin, chosen.arrays, names, known, source.white)
    else:
        parts = arrays.pixels(found, chosen.arrays, names, known)
    return Dataset(
        train=parts.train,
        test=parts.test,
        classes=classes,
        channels=parts.train.shape[0],
        fingerprint=f"{dataset.name}:{arrays.digest(found)}",
        preparation=parts.preparation,
        mixing=chosen.mixing,
        workers=dataset.workers,
        autotune=dataset.autotune,
    )


def _of_files(
    dataset: config.Dataset, files: Files, chosen: Recipe, classes: int, known: Preparation | None
) -> Dataset:
    own = preprocessing.of_photographs(chosen.evaluated, files.classes[:classes])
    prepared = preprocessing.of_files(own, known, dataset.image_size, dataset.evaluation_resize)
    size = (prepared.height, prepared.width)
    return Dataset(
        train=ImageDataset(files.train, chosen.augmented, (chosen.size, chosen.size), prepared.channels),
        test=ImageDataset(files.test, prepared.transform, size, prepared.channels),
        classes=classes,
        channels=3,
        fingerprint=f"{dataset.name}:{files.train.digest()}:{files.test.digest()}",
        preparation=prepared,
        mixing=chosen.mixing,
        workers=dataset.workers,
        autotune=dataset.autotune,
        max_corrupt_images=dataset.max_corrupt_images,
    )
