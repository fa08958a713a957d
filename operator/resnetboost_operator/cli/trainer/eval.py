"""`resnetboost eval`: evaluates a trained network."""

from pathlib import Path
from typing import Any

import click

from resnetboost_api import evaluation_details
from resnetboost_operator.cli.trainer import options, process


@click.command("eval")
@options.SOURCE
@options.dataset("Data set to evaluate on. [default: that of the training]")
@options.DATASET_PATH
@click.option("--test-folder", metavar="NAME", help="For ImageFolder: folder of the test images.")
@click.option(
    "--test-set", is_flag=True, help="The data set's own test images, not those that validationSplit set apart."
)
@options.SIZE
@options.RESIZE
@options.WHITE
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Batch size. [default: 64]")
@click.option(
    "--skip", type=click.IntRange(0), metavar="N", help="Number of unusable images to skip before failing. [default: 0]"
)
@options.WHICH
@click.option("--details", is_flag=True, help="Also by class: accuracy, confusion matrix, calibration error.")
@click.option(
    "--save",
    metavar="DIR",
    type=options.PATH,
    help="Write the details into DIR: classes.csv, confusion.csv, confusion.png, evaluation.json.",
)
@click.option("--record", is_flag=True, help="Record the details with the checkpoint, for its report and model card.")
@options.WEIGHTS
@options.MODEL
@options.DEVICE
@options.FORM
@click.pass_context
def evaluate(ctx: click.Context, /, source: str, **given: Any) -> None:
    """Evaluate a trained network: top-1, top-5 and loss on a test set.

    The network is a run folder or the name of one in ./runs (its newest complete checkpoint), a checkpoint folder, or a
    file of weights (.safetensors, .pth). A checkpoint names its data set; images are normalised like its training
    images.

    \b
    Examples:
      resnetboost eval runs/digits
      resnetboost eval runs/digits --which best
      resnetboost eval runs/digits --details --save details
      resnetboost eval resnet50.pth --dataset ImageFolder --path /data/imagenet
    """
    code = process.run("eval", [source], **given)
    if code == 0 and given["save"] is not None:
        _draw(given["save"])
    ctx.exit(code)


def _draw(folder: Path) -> None:
    """Draw the confusion matrix of the saved details. Raises `UserError` without matplotlib."""
    from resnetboost_operator.runs import details
    from resnetboost_operator.runs.runfolder import write

    found = details.read(folder / evaluation_details.FILE)
    if found is not None:
        write(folder / "confusion.png", details.draw(found))
