"""`python -m resnetboost_trainer export SOURCE OUT`: a trained network as ONNX, MINDIR or AIR, with its model card."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from resnetboost_trainer.checkpoint import model_card, store, trained
from resnetboost_trainer.checkpoint.formats import onnx_file
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.cli import image_options, options
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.failures import ConfigError

Format = Literal["ONNX", "MINDIR", "AIR"]
FORMATS: dict[str, Format] = {".onnx": "ONNX", ".mindir": "MINDIR", ".air": "AIR"}


def main(words: Sequence[str]) -> int:
    """Export a network; print a line on the result or the error and return the exit code."""
    arguments = parser().parse_args(words)
    return options.main("export", lambda: _export(arguments))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = options.parser("export", __doc__)
    made.add_argument("target", metavar="OUT", type=Path, help="the file to write; OUT.md is its model card")
    made.add_argument("--format", choices=tuple(FORMATS.values()), help="file format (default: from OUT's extension)")
    made.add_argument("--batch", type=int, default=1, help="images at a time, in MINDIR and AIR (default: 1)")
    made.add_argument("--no-card", action="store_true", help="write no model card")
    image_options.add_options(made)
    options.add_device(made)
    return made


def _export(arguments: argparse.Namespace) -> int:
    target = arguments.target
    kind = _format(target, arguments.format)
    if kind == "AIR" and arguments.device != "Ascend":
        reason = "AIR can only be written by MindSpore on an Ascend device"
        raise ConfigError(f"--format: {reason}; run this in the Ascend image with --device Ascend, or write MINDIR")
    network = trained.read(arguments.source, arguments.model, arguments.weights, arguments.which)
    _check_target(target, network)
    prepared = image_options.choose(network, arguments)
    size = prepared.height, prepared.width
    if kind == "ONNX":
        partial = target.with_name(f".{target.name}.partial")
        try:
            onnx_file.write(partial, network.network, network.arrays, size, notes(network, prepared))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        shape = f"(batch, {network.network.channels}, {size[0]}, {size[1]})"
    else:
        from resnetboost_trainer.checkpoint.formats import mindir
        from resnetboost_trainer.engine import device

        device.choose(arguments.device)
        batch = max(1, arguments.batch)
        mindir.write(target, network, size, batch, kind)
        shape = f"({batch}, {network.network.channels}, {size[0]}, {size[1]})"
    print(f"{target}: {network.describe()}, as {kind}: normalised images {shape} to logits")
    if not arguments.no_card:
        card = target.with_name(f"{target.name}.md")
        card.write_text(model_card.text(model_card.facts(network, prepared, (target.name, kind))), encoding="utf-8")
        print(f"{card}: its model card")
    return 0


def notes(network: Trained, prepared: Preparation) -> dict[str, str]:
    """Return the exported file's metadata as strings: preprocessing, classes and origin."""
    found = {
        "mean": json.dumps(prepared.mean),
        "deviation": json.dumps(prepared.deviation),
        "values": json.dumps(prepared.values),
        "white": json.dumps(None if prepared.white_guessed else prepared.white),
        "resize": json.dumps(prepared.resize),
        "classes": json.dumps(prepared.classes),
        "weights_sha256": network.sha256,
    }
    if network.manifest is not None:
        found |= {
            "job": network.manifest.job_name,
            "stage": network.manifest.stage,
            "dataset": network.manifest.dataset,
            "step": str(network.manifest.step),
        }
    return found


def _format(target: Path, asked: Format | None) -> Format:
    """Return the format from the option or the file's extension. Raises ConfigError if neither gives one."""
    kind = asked or FORMATS.get(target.suffix.lower())
    if kind is None:
        raise ConfigError(f"{target}: its name does not say its format; end it with .onnx or .mindir, or use --format")
    ending = f".{kind.lower()}"
    if target.suffix.lower() != ending:
        raise ConfigError(f"{target}: the name of a file of {kind} ends with {ending}; use {target.stem}{ending}")
    return kind


def _check_target(target: Path, network: Trained) -> None:
    if target.is_dir():
        raise ConfigError(f"{target}: it is a folder; name the file to write in it")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}; make it first")
    if (target.parent / store.MANIFEST).exists() or network.path == target:
        raise ConfigError(f"{target}: it would be inside a checkpoint; name another folder")
