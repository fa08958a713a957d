"""Extracts the series that an alert rule compares; without any of them the rule can never fire.

It parses only brackets, quotes, comparisons and set operators.
"""

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
      | (?P<open>[([{]) | (?P<close>[)\]}])
      | (?P<compare>==|!=|>=|<=|>|<)(?:\s*bool\b)?
      | \b(?P<set>and|or|unless)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_MATCHING = re.compile(r"\s*(?:on|ignoring|group_left|group_right)\s*\([^)]*\)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:[-+\d.eE_x*/^()\s]|Inf|NaN)+", re.IGNORECASE)


def compared(expression: str) -> list[str]:
    """Operands of its comparisons and set operators, except plain numbers.

    For a function or an aggregation of a comparison, only the operands inside.
    """
    expression = expression.strip()
    pieces = [piece.strip() for piece in _split(expression)]
    if len(pieces) > 1:
        return [part for piece in pieces for part in compared(piece)]
    groups = list(_groups(expression))
    if groups == [expression[1:-1]]:
        return compared(groups[0])
    inside = [part for group in groups if len(list(_split(group))) > 1 for part in compared(group)]
    return inside or ([] if _NUMBER.fullmatch(expression) else [expression])


def _split(expression: str) -> Iterator[str]:
    """Split at operators outside all brackets."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(expression):
        depth += bool(token["open"]) - bool(token["close"])
        if depth == 0 and (token["compare"] or token["set"]):
            yield expression[start : token.start()]
            start = token.end()
            while matching := _MATCHING.match(expression, start):
                start = matching.end()
    yield expression[start:]


def _groups(expression: str) -> Iterator[str]:
    """Contents of the outermost round brackets."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(expression):
        if token["open"]:
            depth += 1
            start = token.end() if depth == 1 else start
        elif token["close"]:
            depth -= 1
            if depth == 0 and token["close"] == ")":
                yield expression[start : token.start()]
