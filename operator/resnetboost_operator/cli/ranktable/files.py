"""Rank tables as files: generates, merges, checks, shows and writes them."""

import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.ranktable import text
from resnetboost_operator.cli.ranktable.text import MOST_SHOWN
from resnetboost_operator.errors import StorageError, UserError
from resnetboost_operator.ranktable import document, hccn, merging, tables
from resnetboost_operator.ranktable.check import rules
from resnetboost_operator.ranktable.check import verdict as checking
from resnetboost_operator.ranktable.check.findings import Finding, errors, grouped
from resnetboost_operator.ranktable.check.verdict import Verdict
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.merging import Merged
from resnetboost_operator.ranktable.tables import RankList, ServerTable

__all__ = ["FileError", "check", "deliver", "generate", "merge", "show"]

STANDARD_INPUT = "-"
_REFUSED = UserError.exit_code
_SUFFIX = ".json"
_NOWHERE_ELSE: Mapping[str, str] = MappingProxyType({})


class FileError(UserError):
    """An unusable file; the message names it and the remedy."""


def generate(sources: Sequence[str], server_ids: Sequence[str], devices: str | None) -> ServerTable:
    """Generate the table of the servers whose addresses the sources contain."""
    device_ids = None if devices is None else hccn.device_ids(devices)
    servers: dict[str, dict[int, str]] = {}
    for source, server_id in zip(sources, _server_ids(sources, server_ids), strict=True):
        if server_id in servers:
            raise FileError(f'{source}: another source has the server id "{server_id}" too; give each one --server-id')
        try:
            servers[server_id] = hccn.read(_text(source), device_ids)
        except hccn.AddressError as error:
            raise FileError(f"{_named(source)}: {error}") from None
    return hccn.table(servers)


def _server_ids(sources: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    if given:
        if len(given) != len(sources):
            count = readable.plural(len(given), "--server-id")
            raise FileError(
                f"there are {count} for {readable.plural(len(sources), 'source')}; give one for each, in order"
            )
        return given
    if len(sources) == 1:
        return [platform.node()]
    if STANDARD_INPUT in sources:
        raise FileError("standard input has no name among several sources; give each source a --server-id")
    return [Path(source).stem for source in sources]


def merge(files: Sequence[str]) -> Merged:
    """Merge all files into one table; also returns the origin of each entry."""
    found: dict[str, tables.Table] = {}
    for file in files:
        if _named(file) in found:
            raise FileError(f"{file} is named twice; name each table once")
        try:
            found[_named(file)] = tables.read(document.parse(_read(file)))
        except (document.DocumentError, tables.TableError) as error:
            raise FileError(f"{_named(file)}: {error}") from None
    return merging.merge(found)


def deliver(
    table: ServerTable | RankList, chip: Chip | None, output: Path | None, origins: Mapping[str, str] = _NOWHERE_ELSE
) -> None:
    """Print the table or write it, unless HCCL would refuse it; warnings go to standard error.

    `origins` are the files and places that a merged table's parts come from.
    """
    data = document.readable(table)
    verdict = checking.judge_bytes(data, chip)
    if not verdict.accepted:
        problems = [text.finding(held, verdict, origins) for held in grouped(errors(verdict.findings))]
        refused = f"HCCL would refuse this table{_on(chip)}; it was not written"
        raise FileError("\n".join([*_few(problems), refused]))
    notes = [_note(held, verdict) + text.finding(held, verdict, origins) for held in grouped(verdict.findings)]
    for note in _few(notes):
        print(f"resnetboost: {note}", file=sys.stderr)
    if output is None:
        standard_output().write(data.decode())
        return
    _write(output, data)
    standard_output().write(f"{output}: {text.size(table)}\n")


def _note(held: Sequence[Finding], verdict: Verdict) -> str:
    """Prefix of findings that do not refuse the table: one refused for a chip may be meant for another."""
    chips = [chip for finding in held for chip in finding.chips]
    if held[0].severity == "error":
        return f"not for {', '.join(chips)}: "
    return "warning: " if len(chips) == len(verdict.chips) else f"warning on {', '.join(chips)}: "


def _few(lines: Sequence[str]) -> list[str]:
    """The first findings only: a mistake may be repeated thousands of times."""
    more = len(lines) - MOST_SHOWN
    return [*lines[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _on(chip: Chip | None) -> str:
    return f" on {chip}" if chip else ""


def check(file: str, chip: Chip | None) -> int:
    """Print the verdict; the exit code is 0 if a chip accepts the table."""
    verdict = checking.judge_bytes(_read(file), chip)
    if misnamed := _misnamed(file, verdict):
        verdict = Verdict((*verdict.findings, misnamed), verdict.chips)
    screen = console(standard_output())
    for part in text.verdict(_named(file), verdict):
        screen.print(part, soft_wrap=isinstance(part, Text))
    return 0 if verdict.accepted else _REFUSED


def _misnamed(file: str, verdict: Verdict) -> Finding | None:
    """Warn about a path that HCCL misreads: it looks for the first .json, which must be at the end."""
    if file == STANDARD_INPUT or file.find(_SUFFIX) + len(_SUFFIX) == len(file):
        return None
    return Finding(
        rules.FILE_NAME,
        "",
        f"the path {file} must contain {_SUFFIX} exactly once, at its end; HCCL reads no other",
        verdict.chips,
    )


def show(file: str) -> None:
    """Print the ranks."""
    try:
        table = tables.read(document.parse(_read(file)))
    except (document.DocumentError, tables.TableError) as error:
        raise FileError(f"{_named(file)}: {error}") from None
    screen = console(standard_output())
    screen.print(f"{_named(file)}: {text.size(table)}", soft_wrap=True)
    screen.print(text.ranks(table))


def _named(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _text(source: str) -> str:
    data = _read(source, hccn.MAX_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FileError(f"{_named(source)} is not UTF-8 text; give hccn.conf or what hccn_tool printed") from None


def _read(source: str, most_bytes: int = document.MAX_BYTES) -> bytes:
    try:
        if source == STANDARD_INPUT:
            data = sys.stdin.buffer.read(most_bytes + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FileError(f"{source} cannot be read: {reason}; check its name and permissions") from None
    if len(data) > most_bytes:
        raise FileError(f"{_named(source)} has more than {most_bytes} bytes, too much for this; check what it is")
    return data


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically: HCCL polls it and treats a partial table as broken."""
    if path.suffix != _SUFFIX:
        raise FileError(f"--output {path}: HCCL reads only files that end in .json; name it {path}.json")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)  # every rank reads it, under any user id
        Path(file.name).replace(path)
    except OSError as error:
        raise StorageError(f"--output {path} cannot be written: {error.strerror}; name a folder with room") from None
