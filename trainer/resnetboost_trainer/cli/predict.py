"""`python -m resnetboost_trainer predict SOURCE IMAGE...`: what a trained network takes pictures for."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from resnetboost_trainer.checkpoint import trained
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.cli import image_options, options
from resnetboost_trainer.data.dataset import Images, Unreadable
from resnetboost_trainer.data.preprocessing import Preparation, readable
from resnetboost_trainer.failures import DataError

BATCH = 16
MAX_BYTES = 1 << 28


class Guess(msgspec.Struct, frozen=True):
    """A predicted class: number, name and probability."""

    number: int
    label: str
    probability: float


def main(words: Sequence[str]) -> int:
    """Print predictions and return the exit code, which is DataError's if a file is not a usable image."""
    arguments = parser().parse_args(words)
    return options.main("predict", lambda: _predict(arguments))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = options.parser("predict", __doc__)
    made.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="JPEG, PNG or whatever Pillow reads")
    made.add_argument("--top", type=int, default=5, help="how many classes to name (default: 5)")
    made.add_argument("-o", "--output", choices=("text", "json"), default="text")
    image_options.add_options(made)
    options.add_device(made)
    return made


def _predict(arguments: argparse.Namespace) -> int:
    network = trained.read(arguments.source, arguments.model, arguments.weights, arguments.which)
    prepared = image_options.choose(network, arguments)
    image_options.check_pictures(network, prepared)
    pictures = dict(_pictures(arguments.images, prepared))
    if not pictures:
        return DataError.exit_code
    found = dict(guesses(network, pictures, prepared, arguments.top, arguments.device))
    if arguments.output == "json":
        options.show([{"image": str(path), "top": msgspec.to_builtins(top)} for path, top in found.items()])
    else:
        print("\n".join(_as_text(path, top) for path, top in found.items()))
    return 0 if len(pictures) == len(set(arguments.images)) else DataError.exit_code


def guesses(
    network: Trained, pictures: dict[Path, Images], prepared: Preparation, top: int, device_type: str
) -> Iterator[tuple[Path, list[Guess]]]:
    """Yield each picture with its most probable classes, in order."""
    from resnetboost_trainer.checkpoint import inference
    from resnetboost_trainer.engine import device

    device.choose(device_type)
    batch = min(BATCH, len(pictures))
    classifier = inference.Classifier(network, batch)
    paths = list(pictures)
    for start in range(0, len(paths), batch):
        part = paths[start : start + batch]
        rows = classifier.probabilities(np.stack([pictures[path] for path in part]))
        for path, row in zip(part, rows, strict=True):
            order = np.argsort(-row, kind="stable")[: max(1, top)]
            yield path, [Guess(int(place), prepared.label(int(place)), float(row[place])) for place in order]


def _pictures(paths: Sequence[Path], prepared: Preparation) -> Iterator[tuple[Path, Images]]:
    """Yield the usable pictures; print an error for each of the others."""
    for path in paths:
        try:
            yield path, prepared.picture(_contents(path))
        except Unreadable as error:
            print(f"resnetboost predict: {path}: {error}", file=sys.stderr)


def _contents(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise Unreadable("it is a folder; name the images in it")
        if path.exists() and not path.is_file():
            raise Unreadable("it is not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"it has {path.stat().st_size} bytes, and {MAX_BYTES} are the most")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from None


def _as_text(path: Path, top: Sequence[Guess]) -> str:
    return "\n".join([readable(str(path)), *(f"  {guess.probability:8.2%}  {guess.label}" for guess in top)])
