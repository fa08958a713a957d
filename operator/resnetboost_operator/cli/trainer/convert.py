"""`resnetboost convert`: converts weights between PyTorch's names and this trainer's."""

from pathlib import Path
from typing import Any

import click

from resnetboost_operator.cli.trainer import options, process


@click.command()
@click.argument("source", metavar="IN", callback=options.named)
@click.argument("target", metavar="OUT", type=options.PATH)
@click.option("--to", type=click.Choice(["torch", "resnetboost"]), help="Names in OUT. [default: the opposite of IN]")
@options.WEIGHTS
@click.option("--model", metavar="NAME", help="Fail unless IN is this network, such as resnet50. [default: accept any]")
@click.pass_context
def convert(ctx: click.Context, /, source: str, target: Path, **given: Any) -> None:
    """Convert weights between PyTorch's names and this trainer's. The content of IN determines the direction.

    IN is a state dict of torchvision or timm (.safetensors, or .pth written by torch.save; nothing in it is
    executed), a checkpoint folder or its model.safetensors, or a run (its newest complete checkpoint).
    OUT is a .safetensors file.

    \b
    Examples:
      resnetboost convert resnet50.pth resnet50.safetensors
      resnetboost convert runs/digits for-pytorch.safetensors
    """
    ctx.exit(process.run("convert", [source, str(target)], **given))
