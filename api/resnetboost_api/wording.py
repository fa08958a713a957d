"""Sentences about values that do not fit a schema: the problem and the remedy."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from resnetboost_api import aliases

Schema = Mapping[str, Any]

LIKELY = 0.7  # similarity of two words above which one is taken for a misspelling of the other

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def printable(text: str) -> str:
    """One line of printable text: control characters, colours and line ends are escaped."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def sentence(text: str, most: int = 1000) -> str:
    """One printable line of at most so many characters, which may quote anybody's words."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def shown(value: Any) -> str:
    """The value on one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[0] if isinstance(value, str) else ''}"


def key(name: object) -> str:
    """A key as part of a field's path: `.name`, or `[a/b]` where a dot would mislead."""
    text = str(name)
    plain = text.replace("_", "").replace("-", "").isalnum()
    return f".{text}" if plain else f"[{text}]"


def wanted(schema: Schema) -> str:
    """What the schema accepts, to follow "use"."""
    if "enum" in schema:
        return _one_of(schema["enum"])
    if "title" in schema:
        return str(schema["title"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _KINDS[kind] + _range(schema)
    if kind == "object" and "properties" in schema:
        return f"a mapping with {_listed(schema.get('required') or schema['properties'])}"
    if kind == "array" and "properties" in schema["items"]:
        return f"a list, each item {wanted(schema['items'])}"
    return _KINDS.get(str(kind), "another value")


def missing(schema: Schema) -> str:
    """Sentence for a required field that is missing."""
    return f"is missing; use {wanted(schema)}"


def wrong_type(value: Any, schema: Schema) -> str:
    """Sentence for a value of the wrong type."""
    kind = schema.get("type")
    if value is None:
        return f"is empty; use {wanted(schema)}"
    if kind == "string" and isinstance(value, bool | int | float):
        return f'{shown(value)} is not text; write it in quotes: "{shown(value)}"'
    if kind in ("integer", "number") and isinstance(value, str) and _is_number(value):
        return f"{shown(value)} is text; write the number without quotes"
    if kind == "boolean":
        return f"{shown(value)} is neither true nor false; use one of them, without quotes"
    if kind not in _KINDS:  # a quantity
        quoted = f', with quotes: "{value}"' if isinstance(value, float) else ""
        return f"{shown(value)} does not fit; use {wanted(schema)}{quoted}"
    return f"{shown(value)} is not {_KINDS[kind]}; use {wanted(schema)}"


def not_in_enum(value: Any, allowed: Sequence[Any]) -> str:
    """Sentence for a value that is not one of those allowed."""
    if (why := aliases.refusal(value, allowed)) is not None:
        return f"{shown(value)} is {why}"
    near = aliases.value_meant(value, allowed) or nearest(str(value), [str(item) for item in allowed])
    if near is not None:
        return f"{shown(value)} is not known; did you mean {near}?"
    return f"{shown(value)} is not known; use {_one_of(allowed)}"


def too_small(value: float, least: float, exclusive: bool, unit: str = "") -> str:
    """Sentence for a number below the minimum; `unit` is what it counts, where that is not obvious."""
    return f"{shown(value)} is too small; use {'more than' if exclusive else 'at least'} {least}{_in(unit)}"


def too_large(value: float, most: float, exclusive: bool, unit: str = "") -> str:
    """Sentence for a number above the maximum."""
    return f"{shown(value)} is too large; use {'less than' if exclusive else 'at most'} {most}{_in(unit)}"


def _in(unit: str) -> str:
    return f", {unit}" if unit else ""


def not_matching(value: str, schema: Schema) -> str:
    """Sentence for a text that does not match the pattern."""
    return f"{shown(value)} does not fit; use {schema.get('title', 'text like ' + str(schema.get('pattern')))}"


def bad_length(count: int, unit: str, least: int, most: float) -> str:
    """Sentence for a text, list or mapping that is too short or too long."""
    if count == 0:
        return f"is empty; give at least {least} {unit}{'' if least == 1 else 's'}"
    if count < least:
        return f"has {count} {unit}s; use at least {least}"
    return f"has {count} {unit}s; use at most {most}"


def duplicate(value: Any) -> str:
    """Sentence for an item of a keyed list whose key came before."""
    return f"{shown(value)} is given twice; use each only once"


def unknown(name: object, siblings: Iterable[str], elsewhere: Sequence[str]) -> str:
    """Sentence for an unknown field; `elsewhere`: places where a field of that name exists."""
    siblings = list(siblings)
    near = nearest(str(name), siblings)
    if near is not None:
        return f"no such field; did you mean {near}?"
    if 0 < len(elsewhere) <= 2:  # more places would not help
        return f"no such field here; it belongs to {' or '.join(elsewhere)}"
    return f"no such field; use {_listed(siblings)}" if siblings else "no such field; nothing can be set here"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant; None if no word, or more than one, is that similar."""
    match = difflib.SequenceMatcher(b=word.lower())
    closeness = {item: _closeness(match, item.lower()) for item in known}
    best = [item for item in known if closeness[item] == max(closeness.values()) >= LIKELY]
    return best[0] if len(best) == 1 else None


def _closeness(match: difflib.SequenceMatcher[str], item: str) -> float:
    """The similarity, or 0 if its cheap upper bounds are too low already."""
    match.set_seq1(item)
    likely = match.real_quick_ratio() >= LIKELY and match.quick_ratio() >= LIKELY
    return match.ratio() if likely else 0.0


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    low = "" if least is None else f"{'above' if schema.get('exclusiveMinimum') else 'from'} {least}"
    high = "" if most is None else f"{'below' if schema.get('exclusiveMaximum') else 'at most'} {most}"
    if low.startswith("from") and high:
        return f" from {least} to {high.removeprefix('at most ')}"
    if low.startswith("from") and not high:
        return f" of at least {least}"
    return " " + " and ".join(filter(None, (low, high))) if low or high else ""


def _one_of(values: Sequence[Any]) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{', '.join(str(value) for value in values[:-1])} or {values[-1]}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
