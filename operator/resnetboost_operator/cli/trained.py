"""`resnetboost eval`, `predict`, `export` and `card`: what they take; the trainer does the work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli import trainer

_PATH = click.Path(path_type=Path)
_DATASETS = (
    "digits",
    "npz",
    "mnist_5k",
    "MNIST",
    "CIFAR10",
    "CIFAR100",
    "ImageFolder",
    "MindRecord",
    "Synthetic",
)

_SOURCE: Callable[[Any], Any] = click.argument("source", metavar="RUN|CHECKPOINT|FILE", type=_PATH)
_MODEL: Callable[[Any], Any] = click.option("--model", metavar="NAME", help="What it must be. [default: any network]")
WEIGHTS: Callable[[Any], Any] = click.option(
    "--weights",
    type=click.Choice(["averaged", "trained"]),
    help="Which of a checkpoint's. [default: averaged where it has them]",
)
_SIZE: Callable[[Any], Any] = click.option(
    "--image-size", metavar="PIXELS", type=click.IntRange(1), help="Side of the square that the network sees."
)
_RESIZE: Callable[[Any], Any] = click.option(
    "--resize", metavar="PIXELS", type=click.IntRange(1), help="Length of the shorter side that it is cut out of."
)
_DEVICE: Callable[[Any], Any] = click.option(
    "--device", type=click.Choice(["CPU", "Ascend", "GPU"]), default="CPU", show_default=True, help="Where to compute."
)
_FORM: Callable[[Any], Any] = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


def _dataset(meaning: str) -> Callable[[Any], Any]:
    return click.option("--dataset", metavar="NAME", type=click.Choice(_DATASETS), help=meaning)


def _path(meaning: str) -> Callable[[Any], Any]:
    return click.option("--path", metavar="PATH", help=meaning)


_AS: Callable[[Any], Any] = _dataset("Prepare pictures as this data set's. [default: as in training]")
_CLASSES: Callable[[Any], Any] = click.option(
    "--classes", metavar="FILE", type=_PATH, help="Names of the classes, a line each. [default: the data set's]"
)


def _start(ctx: click.Context, command: str, words: list[str], **options: Any) -> None:
    """Start the trainer's command with the options that were given, and leave with its exit code."""
    given = [word for name, value in options.items() for word in _option(name, value)]
    ctx.exit(trainer.run(command, [*given, "--", *words]))


def _option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [] if value is None or value is False else [option] if value is True else [option, str(value)]


@click.command("eval", short_help="Measure a trained network on a test set.")
@_SOURCE
@_dataset("Evaluate on this data set. [default: the one it was trained on]")
@_path("Where it is. [default: where it was in training]")
@click.option("--test-folder", metavar="NAME", help="Of an ImageFolder, the folder to test with.")
@_SIZE
@_RESIZE
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Images at a time. [default: 64]")
@click.option("--skip", type=click.IntRange(0), metavar="N", help="Unusable images to leave out. [default: 0]")
@WEIGHTS
@_MODEL
@_DEVICE
@_FORM
@click.pass_context
def evaluate(ctx: click.Context, /, source: Path, **options: Any) -> None:
    """Measure top-1, top-5 and loss of a trained network over a test set.

    The network is the newest whole checkpoint of a run's folder, one checkpoint, or a file of weights
    (.safetensors, .pth). A checkpoint knows its data set; images are normalised as those it was trained on.

    \b
    Examples:
      resnetboost eval runs/digits
      resnetboost eval resnet50.pth --dataset ImageFolder --path /data/imagenet
    """
    _start(ctx, "eval", [str(source)], **options)


@click.command(short_help="Say what a trained network takes pictures for.")
@_SOURCE
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=_PATH)
@click.option("--top", type=click.IntRange(1), metavar="N", default=5, show_default=True, help="Classes to name.")
@_AS
@_path("Where that data set is.")
@_SIZE
@_RESIZE
@_CLASSES
@WEIGHTS
@_MODEL
@_DEVICE
@_FORM
@click.pass_context
def predict(ctx: click.Context, /, source: Path, images: tuple[Path, ...], **options: Any) -> None:
    """Say what a trained network takes pictures for: the most probable classes of each, by name.

    Pictures go through the evaluation transform of the data set the network was trained on. What is no
    picture is named, and the exit code is 11.

    \b
    Examples:
      resnetboost predict runs/flowers rose.jpg tulip.jpg
      resnetboost predict resnet50.pth cat.jpg --classes imagenet.txt -o json
    """
    _start(ctx, "predict", [str(source), *(str(image) for image in images)], **options)


@click.command(short_help="Write a trained network as ONNX, MINDIR or AIR.")
@_SOURCE
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("--format", type=click.Choice(["ONNX", "MINDIR", "AIR"]), help="[default: by OUT's ending]")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Images at a time, in MINDIR and AIR. [default: 1]")
@click.option("--no-card", is_flag=True, help="Write no model card.")
@_AS
@_path("Where that data set is.")
@_SIZE
@_RESIZE
@_CLASSES
@WEIGHTS
@_MODEL
@_DEVICE
@click.pass_context
def export(ctx: click.Context, /, source: Path, target: Path, no_card: bool, **options: Any) -> None:
    """Write a trained network for other programs, with its model card in OUT.md beside it.

    ONNX takes any batch and needs no MindSpore here or there. MINDIR is MindSpore's own. AIR is only written on
    Ascend. All take normalised images and give logits; the card says how to prepare them.

    \b
    Examples:
      resnetboost export runs/flowers flowers.onnx
      resnetboost export runs/flowers flowers.mindir --batch 8
    """
    _start(ctx, "export", [str(source), str(target)], no_card=no_card, **options)


@click.command(short_help="Print the model card of a trained network.")
@_SOURCE
@click.argument("target", metavar="[OUT]", required=False, type=_PATH)
@WEIGHTS
@_MODEL
@click.pass_context
def card(ctx: click.Context, /, source: Path, target: Path | None, **options: Any) -> None:
    """Print the model card of a trained network, or write it to OUT.

    Markdown with YAML before it: the job, its stages and algorithms, results, the data's fingerprint and
    preparation, versions, and how to use it.

    \b
    Example:
      resnetboost card runs/flowers README.md
    """
    _start(ctx, "card", [str(source), *([str(target)] if target is not None else [])], **options)
