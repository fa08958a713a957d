"""Command groups of the command line: commands imported on first use, errors as sentences with an exit code."""

import importlib
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click
import msgspec

from resnetboost_operator import readable
from resnetboost_operator.errors import UserError, storage_error

_INTERRUPTED = 128 + signal.SIGINT


class Entry(msgspec.Struct, frozen=True):
    """A command in the registry: `module:attribute` of the click command, and its line in `resnetboost --help`."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that `--help` imports none of them."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{entry.target} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._entries[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that the user can fix becomes a sentence on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(str(error), error.exit_code)
        except BrokenPipeError:
            raise
        except OSError as error:
            found = storage_error(error)
            _fail(str(found), found.exit_code)
        except KeyboardInterrupt:  # before a command handles signals itself, or where it has nothing to keep
            _fail("interrupted", _INTERRUPTED)


def _fail(sentences: str, code: int) -> NoReturn:
    readable.make_plain(sys.stderr)
    for line in sentences.split("\n"):
        print(f"resnetboost: {readable.printable(line)}", file=sys.stderr)
    sys.exit(code)
