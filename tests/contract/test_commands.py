"""The command line's registry, and the options and choices it shares with the trainer's commands."""

import argparse
import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from resnetboost_operator.cli.main import COMMANDS as REGISTRY
from resnetboost_operator.cli.main import main
from resnetboost_trainer import __main__
from resnetboost_trainer.cli import card, commands, doctor, export, predict
from resnetboost_trainer.cli import eval as evaluating

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "card": card.parser,
    "eval": evaluating.parser,
    "export": export.parser,
    "predict": predict.parser,
}
NEEDED_BY_HELP = {
    "resnetboost_operator.cli",
    "resnetboost_operator.cli.group",
    "resnetboost_operator.cli.main",
    "resnetboost_operator.errors",
    "resnetboost_operator.readable",
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


@pytest.mark.parametrize("name", PARSERS)
def test_options_and_choices_are_the_same(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    theirs = of_trainer(PARSERS[name]()) | {"--model": None}  # the trainer defines the networks
    assert of_command_line(command) == theirs
    assert name in commands.ALL
    assert command.name == name


def test_the_doctor_of_a_machine_has_the_options_of_the_trainers() -> None:
    command = main.get_command(click.Context(main), "doctor")
    assert command is not None
    ours = of_command_line(command)
    assert ours.keys() - {"--cluster", "--namespace"} == of_trainer(doctor.parser()).keys() - {"--no-self-check"}
    assert ours["--device"] == of_trainer(doctor.parser())["--device"]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_registered_command_can_be_called(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"main {name} " in result.output


def test_the_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; from resnetboost_operator.cli.main import main; main(['--help'], standalone_mode=False);"
        "print([name for name in sys.modules if name.startswith('resnetboost_operator.') or name == 'rich'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listing, imported = done.stdout.splitlines()
    assert {line.split()[0] for line in listing[listing.index("Commands:") + 1 :]} == set(REGISTRY)
    assert not set(ast.literal_eval(imported)) - NEEDED_BY_HELP


def test_the_trainers_help_names_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["resnetboost_trainer", "--help"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert f"Commands: {', '.join(commands.ALL)};" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("word", ["evla", "to_mind-record"])
def test_the_trainer_answers_an_unknown_command_with_their_names(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["resnetboost_trainer", word])
    with pytest.raises(SystemExit):
        __main__.main()
    answer = " ".join(capsys.readouterr().err.split())
    assert f"{word} is neither a command nor a config file; the commands are {', '.join(commands.ALL)}" in answer


def test_a_config_file_of_the_trainer_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job").touch()
    assert commands.unknown("job") is None
    assert commands.unknown("missing/config.json") is None
