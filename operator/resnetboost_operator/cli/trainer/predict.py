"""`resnetboost predict`: classifies images with a trained network."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import options, process


@click.command()
@options.SOURCE
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=options.PATH)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", default=5, show_default=True, help="Number of classes to print."
)
@options.prepared
@options.FORM
@click.pass_context
def predict(ctx: click.Context, /, source: str, images: tuple[Path, ...], **given: Any) -> None:
    """Classify images with a trained network: print the names of the most probable classes.

    Images go through the evaluation transform of the training data set. A file that is not an image is
    reported, and the exit code is 11.

    \b
    Examples:
      resnetboost predict runs/flowers rose.jpg tulip.jpg
      resnetboost predict resnet50.pth cat.jpg --classes imagenet.txt -o json
    """
    ctx.exit(process.run("predict", [source, *(str(image) for image in images)], **given))
