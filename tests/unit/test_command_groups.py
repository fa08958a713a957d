"""What every command of the command line has in common, whatever it does."""

import click
import pytest
from click.testing import CliRunner

from resnetboost_operator.cli.group import Entry, LazyGroup


@click.command()
def slow() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("arguments", [["slow"], ["inner", "slow"]], ids=["a command", "one of a group"])
def test_ctrl_c_before_a_command_handles_it_is_a_word_and_the_shells_code(arguments: list[str]) -> None:
    ended = CliRunner().invoke(outer, arguments)
    assert (ended.exit_code, ended.stderr) == (130, "resnetboost: interrupted\n")


ENTRIES = {"slow": Entry(f"{__name__}:slow", "Wait."), "inner": Entry(f"{__name__}:inner", "Group.")}
inner = LazyGroup("inner", entries=ENTRIES)
outer = LazyGroup("outer", entries=ENTRIES)
