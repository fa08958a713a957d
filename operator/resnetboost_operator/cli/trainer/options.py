"""Options that several of the trainer's commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from resnetboost_api.dataset import DatasetName
from resnetboost_operator.runs import place

PATH = click.Path(path_type=Path)


def named(_context: click.Context, _parameter: click.Parameter, source: str) -> str:
    """Take the name of a run in ./runs for its folder."""
    return place.named(source)


SOURCE: Callable[[Any], Any] = click.argument("source", metavar="RUN|CHECKPOINT|FILE", callback=named)
MODEL: Callable[[Any], Any] = click.option(
    "--model", metavar="NAME", help="Fail unless it is this network. [default: accept any]"
)
WHICH: Callable[[Any], Any] = click.option(
    "--which",
    metavar="best|last|averaged|STEP",
    help="Which checkpoint of a run folder to use; averaged: the averaged weights of the last one. [default: last]",
)
WEIGHTS: Callable[[Any], Any] = click.option(
    "--weights",
    type=click.Choice(["averaged", "trained"]),
    help="Which weights of a checkpoint to use. [default: averaged, if it has them]",
)
SIZE: Callable[[Any], Any] = click.option(
    "--image-size", metavar="PIXELS", type=click.IntRange(1), help="Size of the network's input images."
)
RESIZE: Callable[[Any], Any] = click.option(
    "--resize", metavar="PIXELS", type=click.IntRange(1), help="Length of the shorter side before the centre crop."
)
WHITE: Callable[[Any], Any] = click.option(
    "--white",
    metavar="NUMBER",
    type=float,
    help="The number of a white pixel in the training images, where the checkpoint does not know it.",
)
DEVICE: Callable[[Any], Any] = click.option(
    "--device",
    type=click.Choice(["CPU", "Ascend", "GPU"]),
    default="CPU",
    show_default=True,
    help="Device to compute on.",
)
FORM: Callable[[Any], Any] = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
DATASET_PATH: Callable[[Any], Any] = click.option("--path", metavar="PATH", help="Path of the data set.")
CLASSES: Callable[[Any], Any] = click.option(
    "--classes", metavar="FILE", type=PATH, help="File with one class name per line. [default: the data set's names]"
)


def dataset(meaning: str) -> Callable[[Any], Any]:
    """The option --dataset with this help text."""
    return click.option("--dataset", metavar="NAME", type=click.Choice(get_args(DatasetName)), help=meaning)


PREPARED_AS: Callable[[Any], Any] = dataset("Prepare images as for this data set. [default: as in training]")


def prepared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of how pictures become the network's images, and of which network: of commands on single images."""
    shared = (PREPARED_AS, DATASET_PATH, SIZE, RESIZE, WHITE, CLASSES, WHICH, WEIGHTS, MODEL, DEVICE)
    for option in reversed(shared):
        command = option(command)
    return command
