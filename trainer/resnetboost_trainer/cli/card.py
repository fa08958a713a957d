"""`python -m resnetboost_trainer card SOURCE [OUT]`: the model card of a trained network."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from resnetboost_trainer.checkpoint import model_card, trained
from resnetboost_trainer.cli import options


def main(words: Sequence[str]) -> int:
    """Print the card or write it to a file; return the exit code."""
    arguments = parser().parse_args(words)
    return options.main("card", lambda: _card(arguments))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = options.parser("card", __doc__)
    made.add_argument("target", metavar="OUT", nargs="?", type=Path, help="file to write (default: print it)")
    return made


def _card(arguments: argparse.Namespace) -> int:
    network = trained.read(arguments.source, arguments.model, arguments.weights, arguments.which)
    text = model_card.text(model_card.facts(network, network.preparation))
    if arguments.target is None:
        print(text, end="")
    else:
        arguments.target.write_text(text, encoding="utf-8")
        print(f"{arguments.target}: the model card of {network.describe()}")
    return 0
