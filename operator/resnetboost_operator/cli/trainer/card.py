"""`resnetboost card`: prints or writes the model card of a trained network."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import options, process


@click.command()
@options.SOURCE
@click.argument("target", metavar="[OUT]", required=False, type=options.PATH)
@options.WHICH
@options.WEIGHTS
@options.MODEL
@click.pass_context
def card(ctx: click.Context, /, source: str, target: Path | None, **given: Any) -> None:
    """Print the model card of a trained network, or write it to OUT.

    The card is Markdown with YAML front matter: the job, its stages and algorithms, results, the data's
    fingerprint and preparation, versions, and how to use the network.

    \b
    Example:
      resnetboost card runs/flowers README.md
    """
    ctx.exit(process.run("card", [source, *([str(target)] if target is not None else [])], **given))
