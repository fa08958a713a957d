"""`python -m resnetboost_trainer convert IN OUT`: weights between PyTorch's names and ours, without a framework."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from resnetboost_trainer.checkpoint import fetched, state_dict, store, trained
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.formats.weights import COUNTER, File, Layout
from resnetboost_trainer.checkpoint.state_dict import Array, Fit
from resnetboost_trainer.checkpoint.trained import Weights
from resnetboost_trainer.cli import options
from resnetboost_trainer.failures import ConfigError, StorageError, classify
from resnetboost_trainer.models import arch, key_map

EPILOG = """IN is torchvision's or timm's state dict (.safetensors, or .pth as torch.save writes it), a checkpoint's
folder or its model.safetensors, or a run's folder; what is in it says which, and OUT becomes the other.
Nothing in a .pth file is executed. OUT is safetensors: PyTorch reads it with safetensors.torch.load_file."""


def main(words: Sequence[str]) -> int:
    """Convert a file of weights; print one line on the result or the error and return the exit code."""
    arguments = _arguments(words)
    try:
        source = fetched.local(arguments.source, "IN")
        print(convert(source, arguments.target, arguments.to, arguments.model, arguments.weights))
    except (ConfigError, StorageError, OSError) as error:
        failure = classify(error)
        print(f"resnetboost convert: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


class _Read(NamedTuple):
    """Contents of IN: arrays under our names, a description, and the layout of the original names."""

    arrays: dict[str, Array]
    description: str
    layout: Layout


def convert(
    source: Path, target: Path, to: Layout | None = None, model: str | None = None, weights: Weights | None = None
) -> str:
    """Write the weights in the layout `to` (default: the opposite of the file's); return a summary line.

    `weights` selects a checkpoint's weights (default: averaged, if it has them).
    Raises ConfigError for a file that is not a ResNet of ours or for an invalid target, OSError.
    """
    _check_target(source, target)
    read = _of_checkpoint(source, model, weights) if _in_checkpoint(source) else _of_file(source, model, weights)
    to = to or ("torch" if read.layout == "resnetboost" else "resnetboost")
    weightfile.write(target, read.arrays if to == "resnetboost" else _of_torch(read.arrays))
    words = {"torch": "PyTorch's names", "resnetboost": "resnetboost's names"}
    return f"{target}: {read.description}; {len(read.arrays)} arrays from {words[read.layout]} to {words[to]}"


def _in_checkpoint(source: Path) -> bool:
    """True if the source is a checkpoint's folder or model, or a folder that may contain checkpoints."""
    if source.is_dir():
        return (source / store.MANIFEST).is_file() or not (source / weightfile.MODEL).is_file()
    return source.name == weightfile.MODEL and source.with_name(store.MANIFEST).is_file()


def _of_checkpoint(source: Path, model: str | None, weights: Weights | None) -> _Read:
    found = trained.read(source, model, weights)
    return _Read(found.arrays, found.describe(), "resnetboost")


def _of_file(source: Path, model: str | None, weights: Weights | None) -> _Read:
    if weights == "averaged":
        raise ConfigError(f"{source}: it is no checkpoint with an average of the weights; leave out --weights")
    try:
        file = weightfile.read(source)
        fit = state_dict.identify(file.arrays, file.layout, (model,) if model is not None else ())
        if not fit.whole:
            raise ConfigError(_refusal(source, file, fit, model))
        return _Read(state_dict.renamed(file.arrays, file.layout, fit.network), str(fit.network), file.layout)
    except Refused as refused:
        raise ConfigError(f"{source}: {refused}") from refused


def _of_torch(ours: dict[str, state_dict.Array]) -> dict[str, state_dict.Array]:
    """Rename arrays to PyTorch's names and add BN's counters, so that the names are exactly those of a state dict."""
    counters = {name: np.zeros((), np.int64) for name in key_map.counters(ours, COUNTER)}
    return {key_map.torch(name): array for name, array in ours.items()} | counters


def _refusal(source: Path, file: File, fit: Fit, model: str | None) -> str:
    if model is not None:
        return f"{source}: it is no {fit.network}: {fit.describe()}"
    nearest = f"it is no network of the family; the nearest is {fit.network}, where of its {len(file.arrays)} arrays"
    return f"{source}: {nearest} {len(fit.matched)} fit ({fit.describe()})"


def _check_target(source: Path, target: Path) -> None:
    if target.suffix != ".safetensors":
        raise ConfigError(f"{target}: only safetensors is written; use a name that ends with .safetensors")
    read = source / weightfile.MODEL if source.is_dir() else source
    if target.exists() and read.exists() and target.samefile(read):
        raise ConfigError(f"{target}: it is the file that is read; use another name")
    if (target.parent / store.MANIFEST).exists():
        raise ConfigError(f"{target}: it would be inside a checkpoint; name another folder")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m resnetboost_trainer convert", description=__doc__, epilog=EPILOG)
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--to", choices=("torch", "resnetboost"), help="names in OUT (default: the opposite of IN)")
    options.add_weights(parser)
    parser.add_argument("--model", choices=(*arch.LARGE, *arch.SMALL), help="network that IN must be (default: any)")
    return parser.parse_args(words)
