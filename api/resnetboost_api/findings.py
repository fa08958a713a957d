"""What `resnetboost doctor` finds: one line per finding, from the trainer on this machine and from a cluster alike."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "problem")
# Exit codes of the command; others are those of errors (10: no cluster, no trainer).
FINE, PROBLEMS = 0, 1
# Of one message: what a broken program prints is not bounded by itself.
MESSAGE_LIMIT = 400


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check found. `remedy` is what to do about it; a finding that is ok has none."""

    check: str
    level: Level
    message: str
    remedy: str = ""


class Report(msgspec.Struct, frozen=True):
    """All findings about a machine or a cluster, as `-o json` prints them."""

    version: str
    findings: tuple[Finding, ...]


def ok(check: str, message: str) -> Finding:
    """A finding that needs nothing."""
    return Finding(check, "ok", _line(message))


def warning(check: str, message: str, remedy: str) -> Finding:
    """A finding with which jobs run, but slowly, or only some of them."""
    return Finding(check, "warning", _line(message), _line(remedy))


def problem(check: str, message: str, remedy: str) -> Finding:
    """A finding with which no job can run."""
    return Finding(check, "problem", _line(message), _line(remedy))


def exit_code(found: Iterable[Finding]) -> int:
    """The exit code of a command that found this; warnings are no problem."""
    return PROBLEMS if any(one.level == "problem" for one in found) else FINE


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """One line per finding and one that counts them."""
    level, check = (max((len(text) for text in texts), default=0) for texts in _columns(found))
    for one in found:
        remedy = f"; {one.remedy}" if one.remedy else ""
        yield f"{one.level:{level}}  {one.check:{check}}  {one.message}{remedy}"
    yield ", ".join(_counted(sum(one.level == level for one in found), level) for level in reversed(LEVELS))


def _columns(found: Sequence[Finding]) -> tuple[list[str], list[str]]:
    return [one.level for one in found], [one.check for one in found]


def _counted(count: int, level: Level) -> str:
    return f"{count} {level}" if level == "ok" or count == 1 else f"{count} {level}s"


def _line(text: str) -> str:
    """One printable line of bounded length."""
    line = "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))
    return line if len(line) <= MESSAGE_LIMIT else f"{line[: MESSAGE_LIMIT - 3]}..."
