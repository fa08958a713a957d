"""The command line and the trainer's commands that it starts take the same options, with the same choices."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from resnetboost_operator.cli import trained
from resnetboost_trainer import __main__
from resnetboost_trainer.cli import card, commands, export, predict
from resnetboost_trainer.cli import eval as evaluating

COMMANDS: dict[str, tuple[click.Command, Callable[[], argparse.ArgumentParser]]] = {
    "card": (trained.card, card.parser),
    "eval": (trained.evaluate, evaluating.parser),
    "export": (trained.export, export.parser),
    "predict": (trained.predict, predict.parser),
}


def of_trainer(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Choices by option."""
    return {
        option: sorted(action.choices) if action.choices else None
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


def of_command_line(command: click.Command) -> dict[str, Any]:
    return {
        option: sorted(parameter.type.choices) if isinstance(parameter.type, click.Choice) else None
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_choices_are_the_same(name: str) -> None:
    command, parser = COMMANDS[name]
    theirs = of_trainer(parser()) | {"--model": None}  # the trainer says which networks there are
    assert of_command_line(command) == theirs
    assert name in commands.ALL
    assert command.name == name


def test_the_trainers_help_names_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["resnetboost_trainer", "--help"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert f"Commands: {', '.join(commands.ALL)};" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("word", ["evla", "to_mind-record"])
def test_an_unknown_command_is_answered_with_their_names(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["resnetboost_trainer", word])
    with pytest.raises(SystemExit):
        __main__.main()
    told = " ".join(capsys.readouterr().err.split())
    assert f"{word} is neither a command nor a config file; the commands are {', '.join(commands.ALL)}" in told


def test_a_config_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job").touch()
    assert commands.unknown("job") is None
    assert commands.unknown("missing/config.json") is None
