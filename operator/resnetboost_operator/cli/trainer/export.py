"""`resnetboost export`: writes a trained network for other programs."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import options, process


@click.command()
@options.SOURCE
@click.argument("target", metavar="OUT", type=options.PATH)
@click.option(
    "--format", type=click.Choice(["ONNX", "MINDIR", "AIR"]), help="File format. [default: from OUT's extension]"
)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Batch size of MINDIR and AIR. [default: 1]")
@click.option("--no-card", is_flag=True, help="Do not write a model card.")
@options.prepared
@click.pass_context
def export(ctx: click.Context, /, source: str, target: Path, **given: Any) -> None:
    """Export a trained network for other programs, and write its model card to OUT.md.

    ONNX accepts any batch size and needs no MindSpore to write or run. MINDIR is MindSpore's format. AIR is
    written on Ascend only. All accept normalised images and return logits; the card describes the preparation.

    \b
    Examples:
      resnetboost export runs/flowers flowers.onnx
      resnetboost export runs/flowers flowers.mindir --batch 8
    """
    ctx.exit(process.run("export", [source, str(target)], **given))
