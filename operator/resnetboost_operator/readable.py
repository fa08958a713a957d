"""Formats numbers, durations, lists and names for people, and makes text safe for terminals."""

import codecs
import io
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from resnetboost_api import wording

printable = wording.printable

# Replacements for characters that a stream's encoding lacks.
_PLAIN = str.maketrans({"·": "-", "━": "=", "─": "-", "…": "...", "→": "->", "✓": "+", "✗": "x", "●": "*", "○": "o"})
_AS_PLAIN = "resnetboost.plain"
_PATH = re.compile(r"(?<![^\s'\"(=])[.~]{0,2}/[^\s:;,]+")
_LEAST_PATH = 24  # characters of a path that still identify it
_LEAST_REASON = 40  # characters before a remedy that still state the problem


def duration(seconds: float) -> str:
    """Seconds as 0:42, 12:05 or 3:07:09; days as 2 d 3 h."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def share(value: float) -> str:
    """0.9783 as 97.8 %, with a space as the SI has it."""
    return f"{100 * value:.1f} %"


def quantity(value: float) -> str:
    """Three significant digits: 0.871, 12.3, 1234."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.3g}"


def plural(count: int, word: str) -> str:
    """1 restart, 2 restarts."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """a and b; a, b, c and 5 more."""
    if len(names) > shown:
        return f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def ranks(kind: str, counts: Iterable[int]) -> str:
    """2 CPU ranks, 1 CPU rank, 2/4 CPU ranks where stages differ."""
    ascending = sorted(set(counts))
    return f"{'/'.join(map(str, ascending))} {kind} rank{'' if ascending == [1] else 's'}"


def cut(text: str, width: int) -> str:
    """Cut the text to a width and mark the cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def shortened(text: str, width: int) -> str:
    """Shorten a message to a width: first the middle of long paths, then that of the text before the remedy.

    The remedy is what stands behind the last semicolon.
    """
    for path in sorted(set(_PATH.findall(text)), key=len, reverse=True):
        excess = -(-max(0, len(text) - width) // text.count(path))
        text = text.replace(path, _without_middle(path, max(_LEAST_PATH, len(path) - excess)))
    problem, mark, remedy = text.rpartition("; ")
    room = width - len(mark) - len(remedy)
    if room < _LEAST_REASON:
        return _without_middle(text, width)
    return _without_middle(problem, room) + mark + remedy


def _without_middle(text: str, width: int) -> str:
    """Cut the middle, with more of the end kept: it holds a path's file name and a sentence's point."""
    head = width // 3
    return text if len(text) <= width else f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def _as_plain(error: UnicodeError) -> tuple[str, int]:
    """Error handler of encodings: similar ASCII characters, else a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(sign if sign.isascii() else "?" for sign in plain), error.end


codecs.register_error(_AS_PLAIN, _as_plain)


def make_plain(stream: TextIO) -> None:
    """Make a stream replace characters that its encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_AS_PLAIN)
