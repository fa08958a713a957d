"""Evaluates the CEL rules of a schema."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import cel as evaluator

from resnetboost_api import celrules, wording
from resnetboost_api.structure import INT64_MAX, Problem
from resnetboost_api.wording import Schema

ABSENT: Any = object()  # the value of `old` if there is nothing to compare with

# Suffixes of Kubernetes quantities and their factors.
_QUANTITY = re.compile(
    r"(?P<digits>[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)"
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {
    suffix: Fraction(1000) ** power
    for suffix, power in {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}.items()
}


class Rule:
    """One of `x-kubernetes-validations`, with the field that it applies to."""

    def __init__(self, rule: Mapping[str, str], field: str) -> None:
        self.text = rule["rule"]
        self.message = rule["message"]
        self.expression = rule.get("messageExpression")
        self.place = rule.get("fieldPath", "")
        self.field = (field + self.place).removeprefix(".")
        self.is_transition = "oldSelf" in self.text
        self.references = celrules.references(self.text)
        self.fields = tuple((field + reference).removeprefix(".") for reference in self.references)

    def problem(self, value: Any, old: Any, names: evaluator.Context) -> Problem | None:
        """The problem if the value breaks the rule, or if the rule fails to evaluate. `names`: both for CEL."""
        if _evaluate(self.text, names) is True:
            return None
        return Problem(self.field, celrules.at(value, self.place), self._sentence(value, old, names))

    def _sentence(self, value: Any, old: Any, names: evaluator.Context) -> str:
        if self.is_transition:
            return self.message + self._first_change(value, old)
        evaluated = _evaluate(self.expression, names) if self.expression else None
        return evaluated if isinstance(evaluated, str) else self.message + celrules.numbers(self.references, value)

    def _first_change(self, value: Any, old: Any) -> str:
        for reference in self.references:
            new, before = celrules.at(value, reference), celrules.at(old, reference)
            if new != before:
                return _change(new, before, reference.removeprefix(".") or self.field.rpartition(".")[2])
        return ""  # the item of a keyed list was only moved


def problems(value: Any, old: Any, schema: Schema, known: Sequence[Problem]) -> list[Problem]:
    """Problems by the rules; rules about a field with a known problem are skipped."""
    return [problem for _, problem in broken(value, old, schema, known)]


def broken(value: Any, old: Any, schema: Schema, known: Sequence[Problem] = ()) -> Iterator[tuple[Rule, Problem]]:
    """The broken rules of a defaulted object, each with its problem."""
    return _walk(value, old, schema, "", [problem.field for problem in known])


def _walk(value: Any, old: Any, schema: Schema, field: str, known: Sequence[str]) -> Iterator[tuple[Rule, Problem]]:
    rules = schema.get("x-kubernetes-validations", ())
    names = _names(value, old, schema) if rules else evaluator.Context()
    for given in rules:
        rule = Rule(given, field)
        if (rule.is_transition and old is ABSENT) or any(_related(a, b) for a in known for b in rule.fields):
            continue
        problem = rule.problem(value, old, names)
        if problem is not None:
            yield rule, problem
    for child, before, inner, place in _children(value, old, schema):
        yield from _walk(child, before, inner, field + place, known)


def _names(value: Any, old: Any, schema: Schema) -> evaluator.Context:
    names = {"self": _cel(value, schema)}
    if old is not ABSENT:
        # A rule at a list may compare the order too: it sees both as they are.
        names["oldSelf"] = _cel(old if isinstance(old, list) else _aligned(old, value, schema), schema)
    return evaluator.Context(names, {"quantity": _quantity, "compareTo": _compare})


def _children(value: Any, old: Any, schema: Schema) -> Iterator[tuple[Any, Any, Schema, str]]:
    if isinstance(value, Mapping):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                before = old.get(name, ABSENT) if isinstance(old, Mapping) else ABSENT
                yield value[name], before, inner, f".{name}"
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield item, _counterpart(item, old, schema), schema["items"], f"[{index}]"


def _counterpart(item: Any, old: Any, schema: Schema) -> Any:
    """The old item with the same key; only keyed lists have one."""
    names = schema.get("x-kubernetes-list-map-keys", ())
    if not names or not isinstance(old, list) or not isinstance(item, Mapping):
        return ABSENT
    same = (
        before
        for before in old
        if isinstance(before, Mapping) and all(before.get(name) == item.get(name) for name in names)
    )
    return next(same, ABSENT)


def _related(one: str, other: str) -> bool:
    """True if one field is the other, or is inside it."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (long == short or not short or long[len(short)] in ".[")


def _change(new: Any, old: Any, field: str) -> str:
    """The first difference, for a message: ` (device.count was 2 and is now 3)`."""
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        differing = [name for name in (*old, *new) if new.get(name) != old.get(name)]
        return _change(new.get(differing[0]), old.get(differing[0]), f"{field}.{differing[0]}") if differing else ""
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        index = next((index for index in range(len(new)) if new[index] != old[index]), None)
        return _change(new[index], old[index], f"{field}[{index}]") if index is not None else ""
    if isinstance(new, list) and isinstance(old, list):
        return f" ({field} had {len(old)} items, now {len(new)})"
    return f" ({field} was {wording.shown(old)} and is now {wording.shown(new)})"


def _aligned(old: Any, new: Any, schema: Schema) -> Any:
    """Return `old` with the items of keyed lists in the order of `new`: on the API server it makes no difference."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        fields = schema.get("properties", {})
        return {name: _aligned(item, new.get(name), fields.get(name, {})) for name, item in old.items()}
    if not (isinstance(old, list) and isinstance(new, list)):
        return old
    before, now = _by_key(old, schema), _by_key(new, schema)
    if before is None or now is None or before.keys() != now.keys():
        return old
    return [_aligned(before[key], item, schema["items"]) for key, item in now.items()]


def _by_key(items: list[Any], schema: Schema) -> dict[tuple[str, ...], Any] | None:
    """Items of a keyed list by their keys, None for any other list and for one with a key twice."""
    names = schema.get("x-kubernetes-list-map-keys", ())
    if not names or not all(isinstance(item, Mapping) for item in items):
        return None
    found = {tuple(str(item.get(name)) for name in names): item for item in items}
    return found if len(found) == len(items) else None


def _cel(value: Any, schema: Schema) -> Any:
    """Convert a value for CEL by the schema, since 1 is a double in a field of numbers."""
    if isinstance(value, Mapping):
        fields, free = schema.get("properties", {}), schema.get("additionalProperties", {})
        return {str(name): _cel(item, fields.get(name, free)) for name, item in value.items()}
    if isinstance(value, list):
        return [_cel(item, schema.get("items", {})) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) <= INT64_MAX:
        return float(value) if schema.get("type") == "number" else value
    return value if isinstance(value, float) else str(value)


def _evaluate(text: str, names: evaluator.Context) -> bool | str | None:
    """Evaluate to a bool or str; None for an error, or anything else."""
    try:
        result = _program(text).execute(names)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    return result if isinstance(result, bool | str) else None


@functools.cache
def _program(text: str) -> evaluator.Program:
    return evaluator.compile(text)


def _quantity(text: Any) -> str:
    """Return a resource quantity as an exact fraction in text; CEL's values have no type for it."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text} is no quantity")
    digits, suffix = found["digits"], found["suffix"]
    if suffix in _BINARY:
        return str(Fraction(digits) * 1024 ** _BINARY.index(suffix))
    return str(Fraction(digits + suffix) if suffix not in _DECIMAL else Fraction(digits) * _DECIMAL[suffix])


def _compare(one: str, other: str) -> int:
    left, right = Fraction(one), Fraction(other)
    return (left > right) - (left < right)
