"""`resnetboost data`: prepares data sets."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import options, process


@click.group()
def data() -> None:
    """Prepare data sets."""


@data.command("to-mindrecord")
@click.argument("source", metavar="IN", type=options.PATH)
@click.argument("target", metavar="OUT", type=options.PATH)
@click.option(
    "--train", metavar="NAME", default="train", show_default=True, help="Folder of the training images in IN."
)
@click.option("--test", metavar="NAME", default="val", show_default=True, help="Folder of the test images in IN.")
@click.option(
    "--shards",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of files for each of the two.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of unusable images to skip before failing.",
)
@click.pass_context
def to_mindrecord(ctx: click.Context, /, source: Path, target: Path, **given: Any) -> None:
    """Convert the image folder IN, with one folder per class, to MindRecord files in the new folder OUT.

    Checks that each file can be decoded and copies it unchanged. A job reads OUT with dataset.name MindRecord;
    training from it gives the same bits as from IN.

    \b
    Example:
      resnetboost data to-mindrecord imagenet imagenet-records --shards 16
    """
    ctx.exit(process.run("tomindrecord", [str(source), str(target)], **given))
