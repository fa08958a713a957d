"""`python -m resnetboost_trainer convert IN OUT`: weights between PyTorch's names and ours, without a framework."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resnetboost_trainer import family, fitting, naming, weightfile
from resnetboost_trainer.fitting import Fit
from resnetboost_trainer.torchpickle import Refused
from resnetboost_trainer.verdict import ConfigError, classify
from resnetboost_trainer.weightfile import COUNTER, File, Layout

EPILOG = """IN is torchvision's or timm's state dict (.safetensors, or .pth as torch.save writes it), or the
model.safetensors of a checkpoint, the checkpoint's folder or a run's; what is in it says which, OUT becomes the other.
Nothing in a .pth file is executed. OUT is safetensors: PyTorch reads it with safetensors.torch.load_file."""


def main(words: Sequence[str]) -> int:
    """Convert as the command line says; returns the exit code, after one line on what was done or why not."""
    arguments = _arguments(words)
    try:
        print(convert(arguments.source, arguments.target, arguments.to, arguments.model))
    except (ConfigError, OSError) as error:
        failure = classify(error)
        print(f"resnetboost convert: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def convert(source: Path, target: Path, to: Layout | None = None, model: str | None = None) -> str:
    """Write the other layout than the file's, or the one that is asked for; says what it was.

    Raises ConfigError for a file that is no network of the family, or for names that do not go together, OSError.
    """
    if target.suffix != ".safetensors":
        raise ConfigError(f"{target}: only safetensors is written; use a name that ends with .safetensors")
    try:
        file = weightfile.read(source)
        _check_target(file.path, target)
        fit = fitting.identify(file.arrays, file.layout, (model,) if model is not None else ())
        if not fit.whole:
            raise ConfigError(_refusal(source, file, fit, model))
        ours = fitting.renamed(file.arrays, file.layout, fit.network)
    except Refused as refused:
        raise ConfigError(f"{source}: {refused}") from refused
    to = to or ("torch" if file.layout == "resnetboost" else "resnetboost")
    weightfile.write(target, ours if to == "resnetboost" else _of_torch(ours))
    words = {"torch": "PyTorch's names", "resnetboost": "resnetboost's names"}
    taken = f" of {file.path.parent}" if file.path.parent not in (source, source.parent) else ""
    return f"{target}: {fit.network}; {len(ours)} arrays{taken} from {words[file.layout]} to {words[to]}"


def _of_torch(ours: dict[str, fitting.Array]) -> dict[str, fitting.Array]:
    """With BN's counters, so that the names are exactly those of a state dict."""
    counters = {name: np.zeros((), np.int64) for name in naming.counters(ours, COUNTER)}
    return {naming.torch(name): array for name, array in ours.items()} | counters


def _refusal(source: Path, file: File, fit: Fit, model: str | None) -> str:
    if model is not None:
        return f"{source}: it is no {fit.network}: {fit.told()}"
    nearest = f"it is no network of the family; the nearest is {fit.network}, where of its {len(file.arrays)} arrays"
    return f"{source}: {nearest} {len(fit.matched)} fit ({fit.told()})"


def _check_target(read: Path, target: Path) -> None:
    if target.exists() and target.samefile(read):
        raise ConfigError(f"{target}: it is the file that is read; use another name")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m resnetboost_trainer convert", description=__doc__, epilog=EPILOG)
    parser.add_argument("source", metavar="IN", type=Path)
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--to", choices=("torch", "resnetboost"), help="what OUT becomes (default: the other one)")
    parser.add_argument("--model", choices=(*family.LARGE, *family.SMALL), help="what IN must be (default: any)")
    return parser.parse_args(words)
