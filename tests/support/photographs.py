"""Small data sets cut from scikit-learn's two photographs, in the layouts the trainer reads."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("flower", "temple")
Bytes = NDArray[np.uint8]


def photographs() -> dict[str, Image.Image]:
    """Class -> photograph of 640 x 427 pixels."""
    import sklearn

    folder = Path(sklearn.__file__).parent / "datasets" / "images"
    return {"flower": Image.open(folder / "flower.jpg"), "temple": Image.open(folder / "china.jpg")}


def pieces(count: int, width: int, height: int, seed: int = 0) -> list[tuple[Image.Image, int]]:
    """Pieces of the photographs with their labels, alternating."""
    random = np.random.default_rng(seed)
    images = list(photographs().values())
    found = []
    for number in range(count):
        image = images[number % len(images)]
        left = int(random.integers(image.width - width + 1))
        top = int(random.integers(image.height - height + 1))
        found.append((image.crop((left, top, left + width, top + height)), number % len(images)))
    return found


def folder(root: Path, train: int = 24, test: int = 10, width: int = 96, height: int = 72) -> Path:
    """Write JPEGs in ImageNet's layout: train/CLASS/NAME.jpg and val/CLASS/NAME.jpg."""
    for part, count, seed in (("train", train, 0), ("val", test, 1)):
        for number, (image, label) in enumerate(pieces(count, width, height, seed)):
            path = root / part / CLASSES[label] / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)
    return root


def cifar(root: Path, hundred: bool = False, records: int = 8) -> tuple[Bytes, Bytes]:
    """Write CIFAR's binary files; returns images (n, 32, 32, 3) and labels of the training files."""
    files = ["train.bin"] if hundred else [f"data_batch_{number}.bin" for number in range(1, 6)]
    told = [_cifar_file(root / name, records, hundred, seed) for seed, name in enumerate(files)]
    _cifar_file(root / "test.bin" if hundred else root / "test_batch.bin", records, hundred, seed=9)
    return np.concatenate([images for images, _ in told]), np.concatenate([labels for _, labels in told])


def _cifar_file(path: Path, records: int, hundred: bool, seed: int) -> tuple[Bytes, Bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = pieces(records, 32, 32, seed)
    images = np.stack([np.asarray(image) for image, _ in found])
    labels = np.array([label + (90 if hundred else 0) for _, label in found], np.uint8)
    coarse = [bytes([7]) if hundred else b""] * records
    path.write_bytes(
        b"".join(
            first + bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for first, label, image in zip(coarse, labels, images, strict=True)
        )
    )
    return images, labels


def mnist(root: Path, packed: bool = False) -> tuple[Bytes, Bytes]:
    """Write the four idx files; returns images (n, 28, 28) and labels of the training files."""
    root.mkdir(parents=True, exist_ok=True)
    for part, seed in (("t10k", 1), ("train", 0)):
        found = pieces(20, 28, 28, seed)
        images = np.stack([np.asarray(image.convert("L")) for image, _ in found])
        labels = np.array([label for _, label in found], np.uint8)
        write(root / f"{part}-images-idx3-ubyte", idx(images), packed)
        write(root / f"{part}-labels-idx1-ubyte", idx(labels), packed)
    return images, labels


def idx(array: Bytes) -> bytes:
    """The array in MNIST's idx format."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path: Path, content: bytes, packed: bool) -> None:
    """Write the file, compressed by gzip under the same name if `packed`."""
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)
