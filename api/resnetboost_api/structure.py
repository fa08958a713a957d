"""Checks a value against an OpenAPI schema like the API server.

Rules between fields are evaluated in the operator's validation/cel, and by the trainer with celrules.
"""

import copy
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_api import aliases, wording
from resnetboost_api.wording import Schema

INT64_MAX = 2**63 - 1
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

# Characters of a field's path in a sentence: its last name may be anybody's.
MOST_OF_A_PATH = 200


class Problem(msgspec.Struct, frozen=True):
    """A problem: the path of a field, its value and a sentence with the remedy."""

    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        field = self.field if len(self.field) <= MOST_OF_A_PATH else f"{self.field[: MOST_OF_A_PATH - 3]}..."
        return wording.printable(f"{field}: {self.message}" if field else self.message)


class Structure:
    """A schema with an index of its field names, for hints on where a misplaced field belongs."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def problems(self, value: Any, field: str = "") -> Iterator[Problem]:
        """All problems of a value, in the order of the value."""
        return self._check(value, self.schema, field)

    def _check(self, value: Any, schema: Schema, field: str) -> Iterator[Problem]:
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return  # anything is allowed, at any depth
        if not _is_type(value, schema):
            yield Problem(field, value, _wrong_type(value, schema, field))
        elif "enum" in schema and value not in schema["enum"]:
            yield Problem(field, value, wording.not_in_enum(value, schema["enum"]))
        elif isinstance(value, Mapping):
            yield from self._mapping(value, schema, field)
        elif isinstance(value, list):
            yield from self._list(value, schema, field)
        elif isinstance(value, str):
            yield from _text(value, schema, field)
        elif not isinstance(value, bool):
            yield from _number(value, schema, field)

    def _mapping(self, value: Mapping[Any, Any], schema: Schema, field: str) -> Iterator[Problem]:
        properties = schema.get("properties", {})
        free = schema.get("additionalProperties")
        yield from _length(value, "key", "Properties", schema, field)
        for name in schema.get("required", ()):
            if name not in value:
                yield Problem(_join(field, name), None, wording.missing(properties[name]))
        for name, item in value.items():
            inner = properties.get(name, free)
            if inner is not None:
                yield from self._check(item, inner, _join(field, name))
            else:
                yield Problem(_join(field, name), item, self._unknown(name, properties, field))

    def _unknown(self, name: object, properties: Schema, field: str) -> str:
        meant = aliases.meant(name, field)
        if meant is not None:
            return f"no such field; did you mean {meant}?"
        return wording.unknown(name, properties, self._places.get(str(name), ()))

    def _list(self, value: list[Any], schema: Schema, field: str) -> Iterator[Problem]:
        yield from _length(value, "item", "Items", schema, field)
        for index, item in enumerate(value):
            yield from self._check(item, schema["items"], f"{field}[{index}]")
        yield from _duplicates(value, schema, field)

    @functools.cached_property
    def _places(self) -> dict[str, tuple[str, ...]]:
        """The places under spec where each field name exists."""
        found: dict[str, tuple[str, ...]] = {}
        for name, place in _walk(self.schema.get("properties", {}).get("spec", {}), "spec"):
            found[name] = (*found.get(name, ()), place)
        return found


def _walk(schema: Schema, field: str) -> Iterator[tuple[str, str]]:
    for name, inner in schema.get("properties", {}).items():
        yield name, field
        yield from _walk(inner, f"{field}.{name}")
    if "items" in schema:
        yield from _walk(schema["items"], f"{field}[]")


def _join(field: str, name: object) -> str:
    return (field + wording.key(name)).removeprefix(".")


def _is_type(value: Any, schema: Schema) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, str) or _is_integer(value)
    match schema.get("type"):
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_integer(value)
        case "number":
            return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))
    return True


def _wrong_type(value: Any, schema: Schema, field: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    block = aliases.as_block(field, value) if is_number and schema.get("type") == "object" else None
    if block is not None:
        return f"{wording.shown(value)} is not a mapping; write {block}"
    if is_number and not -INT64_MAX <= value <= INT64_MAX and schema.get("type") == "integer":
        high, low = schema.get("maximum", INT64_MAX), schema.get("minimum", -INT64_MAX)
        return wording.too_large(value, high, exclusive=False) if value > 0 else wording.too_small(value, low, False)
    return wording.wrong_type(value, schema)


def _is_integer(value: Any) -> bool:
    """True for integers and for 1.0, which defaulting converts as the API server does."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX


def _number(value: Any, schema: Schema, field: str) -> Iterator[Problem]:
    least, above = schema.get("minimum"), bool(schema.get("exclusiveMinimum"))
    most, below = schema.get("maximum"), bool(schema.get("exclusiveMaximum"))
    unit = schema.get("title", "") if schema.get("type") == "number" else ""
    if least is not None and (value < least or (above and value == least)):
        yield Problem(field, value, wording.too_small(value, least, above, unit))
    elif most is not None and (value > most or (below and value == most)):
        yield Problem(field, value, wording.too_large(value, most, below, unit))


def _text(value: str, schema: Schema, field: str) -> Iterator[Problem]:
    wrong_length = list(_length(value, "character", "Length", schema, field))
    yield from wrong_length
    if not wrong_length and "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield Problem(field, value, wording.not_matching(value, schema))
    if schema.get("format") == "date-time" and not _DATE_TIME.fullmatch(value):
        yield Problem(field, value, f"{wording.shown(value)} is no time; use one such as 2026-01-31T12:00:00Z")


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """The pattern with RE2's meaning: $ is the very end, \\s is ASCII."""
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def _length(value: Any, unit: str, kind: str, schema: Schema, field: str) -> Iterator[Problem]:
    least, most = schema.get(f"min{kind}", 0), schema.get(f"max{kind}", math.inf)
    if not least <= len(value) <= most:
        yield Problem(field, value, wording.bad_length(len(value), unit, least, most))


def _duplicates(value: list[Any], schema: Schema, field: str) -> Iterator[Problem]:
    """Items of a keyed list whose key came before."""
    names = schema.get("x-kubernetes-list-map-keys", ())
    seen: list[list[Any]] = []
    for index, item in enumerate(value):
        if not isinstance(item, Mapping) or any(name not in item for name in names):
            continue
        keys = [item[name] for name in names]
        if keys and keys in seen:
            yield Problem(f"{field}[{index}].{names[0]}", keys[0], wording.duplicate(keys[0]))
        seen.append(keys)


def unknown(value: Any, schema: Schema, field: str = "") -> Iterator[str]:
    """The fields of a value that its schema does not have, at any depth."""
    if isinstance(value, Mapping):
        free = schema.get("additionalProperties")
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, free)
            if inner is None:
                yield _join(field, name)
            else:
                yield from unknown(item, inner, _join(field, name))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from unknown(item, schema["items"], f"{field}[{index}]")


def filled(value: Any, schema: Schema | None) -> Any:
    """Fill in defaults from the outside in, so that a default {} gets those of its fields."""
    if schema is None:
        return value
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if "default" in inner and value.get(name) is None:
                value[name] = copy.deepcopy(inner["default"])
        return {name: filled(item, part(schema, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, schema.get("items")) for item in value]
    whole = schema.get("type") == "integer" or schema.get("x-kubernetes-int-or-string")
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def part(schema: Schema | None, name: Any) -> Schema | None:
    """The schema of a field of a mapping; None where anything is allowed."""
    if schema is None:
        return None
    found: Schema | None = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
    return found
