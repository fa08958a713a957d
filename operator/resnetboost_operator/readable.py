"""How a run's numbers and names read for people: durations, shares, counts; it formats and decides nothing."""

from collections.abc import Iterable, Sequence


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
    """Three digits that say something: 0.871, 12.3, 1234."""
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
    """The text within a width, its end marked where something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def printable(text: str) -> str:
    """One line that only shows what a file holds: what would move a cursor, change colours or end a line is escaped."""
    return "".join(found if found.isprintable() else repr(found)[1:-1] for found in text)
