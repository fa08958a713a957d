"""Evaluates the rules of a schema without CEL's library, for programs that do without it, such as the trainer.

It knows the part of CEL that the rules on training use: fields and indices of self, has(), comparisons, `in`, `!`,
`&&`, `||`, `+`, `-`, `%`, `c ? a : b`, double(), size(), contains(), matches(), all(), exists(), filter() and map().
Rules that compare with oldSelf are skipped, because there is nothing to compare with.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from resnetboost_api.structure import Problem
from resnetboost_api.wording import Schema

Names = Mapping[str, Any]
Evaluation = Callable[[Names], Any]

_TOKEN = re.compile(
    r"\s*(?P<token>r?'[^']*'|r?\"[^\"]*\"|\d+\.\d+|\d+|[A-Za-z_]\w*|&&|\|\||[=!<>]=|[-+%<>!?:.,()\[\]])"
)
_REFERENCE = re.compile(r"\bself((?:\.[A-Za-z]\w*(?![\w(]))*)")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
}
_SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {"%": lambda a, b: a % b}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"double": float, "size": len}
_METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}
_MACROS: dict[str, Callable[[list[Any], list[Any]], Any]] = {
    "all": lambda items, found: all(found),
    "exists": lambda items, found: any(found),
    "filter": lambda items, found: [item for item, kept in zip(items, found, strict=True) if kept],
    "map": lambda items, found: found,
}
_WORDS: dict[str, Any] = {"true": True, "false": False}


def problems(value: Any, schema: Schema, field: str = "") -> Iterator[Problem]:
    """The broken rules of a value with its defaults, the outermost first."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not compiled(rule["rule"])({"self": value}):
            place = rule.get("fieldPath", "")
            yield Problem((field + place).removeprefix("."), at(value, place), _sentence(rule, value))
    if isinstance(value, Mapping):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from problems(value[name], inner, f"{field}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from problems(item, schema["items"], f"{field}[{index}]")


def _sentence(rule: Mapping[str, str], value: Any) -> str:
    if "messageExpression" in rule:
        return str(compiled(rule["messageExpression"])({"self": value}))
    return rule["message"] + numbers(references(rule["rule"]), value)


def references(text: str) -> tuple[str, ...]:
    """The fields of self that a rule names, each once."""
    return tuple(dict.fromkeys(_REFERENCE.findall(text)))


def numbers(fields: Iterable[str], value: Any) -> str:
    """The numbers that a rule compares. The API server's cost limits prevent them in messageExpression."""
    found = {field.rpartition(".")[2]: at(value, field) for field in fields if field}
    named = [f"{name} is {number}" for name, number in found.items() if type(number) in (int, float)]
    return f" ({' and '.join(named)})" if named else ""


def at(value: Any, place: str) -> Any:
    """What is in that field of a value; None if it is not there."""
    for name in filter(None, place.split(".")):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


@functools.cache
def compiled(text: str) -> Evaluation:
    """A function of names that has the value of the expression. Raises ValueError for what is not known here."""
    return _Parser(text).whole()


class _Parser:
    """Recursive descent: a method for each level of precedence, the loosest first."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    def whole(self) -> Evaluation:
        """Parse all of it."""
        found = self._choice()
        if self._peek() is not None:
            raise ValueError(f"{self._peek()!r} is not expected")
        return found

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, *expected: str) -> str | None:
        """The next token if it is one of these, which is then behind us."""
        token = self._peek()
        if token not in expected:
            return None
        self._next += 1
        return token

    def _need(self, expected: str) -> None:
        if self._take(expected) is None:
            raise ValueError(f"{self._peek()!r} is not {expected!r}")

    def _choice(self) -> Evaluation:
        condition = self._either()
        if not self._take("?"):
            return condition
        then = self._choice()
        self._need(":")
        otherwise = self._choice()
        return lambda names: then(names) if condition(names) else otherwise(names)

    def _either(self) -> Evaluation:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda names: any(part(names) for part in parts)

    def _both(self) -> Evaluation:
        parts = [self._comparison()]
        while self._take("&&"):
            parts.append(self._comparison())
        return parts[0] if len(parts) == 1 else lambda names: all(part(names) for part in parts)

    def _comparison(self) -> Evaluation:
        return self._binary(self._sum, _COMPARISONS)

    def _sum(self) -> Evaluation:
        return self._binary(self._product, _SUMS)

    def _product(self) -> Evaluation:
        return self._binary(self._unary, _PRODUCTS)

    def _binary(self, operand: Callable[[], Evaluation], kinds: dict[str, Callable[[Any, Any], Any]]) -> Evaluation:
        found = operand()
        while operator := self._take(*kinds):
            found = _applied(kinds[operator], found, operand())
        return found

    def _unary(self) -> Evaluation:
        if not self._take("!"):
            return self._postfix()
        inner = self._unary()
        return lambda names: not inner(names)

    def _postfix(self) -> Evaluation:
        found = self._primary()
        while kind := self._take(".", "["):
            if kind == ".":
                found = self._member(found)
            else:
                found = _applied(lambda items, index: items[index], found, self._choice())
                self._need("]")
        return found

    def _member(self, owner: Evaluation) -> Evaluation:
        name = self._word()
        if not self._take("("):
            return lambda names: owner(names)[name]
        if name in _MACROS:
            variable = self._word()
            self._need(",")
            found = _macro(_MACROS[name], owner, variable, self._choice())
        elif name in _METHODS:
            found = _applied(_METHODS[name], owner, self._choice())
        else:
            raise ValueError(f"the method {name}() is not known here")
        self._need(")")
        return found

    def _primary(self) -> Evaluation:
        if self._take("("):
            found = self._choice()
            self._need(")")
            return found
        if self._take("["):
            return self._list()
        token = self._peek() or ""
        if token[:1].isdigit() or token[-1:] in ("'", '"'):
            self._next += 1
            constant = _constant(token)
            return lambda names: constant
        return self._named(self._word())

    def _list(self) -> Evaluation:
        items: list[Evaluation] = []
        while not self._take("]"):
            items.append(self._choice())
            self._take(",")
        return lambda names: [item(names) for item in items]

    def _named(self, word: str) -> Evaluation:
        if word in _WORDS:
            return lambda names: _WORDS[word]
        if not self._take("("):
            return lambda names: names[word]
        inner = self._choice()
        self._need(")")
        if word == "has":
            return lambda names: _is_there(inner, names)
        if word not in _FUNCTIONS:
            raise ValueError(f"the function {word}() is not known here")
        function = _FUNCTIONS[word]
        return lambda names: function(inner(names))

    def _word(self) -> str:
        token = self._peek() or ""
        if not token.isidentifier():
            raise ValueError(f"{token!r} is no name")
        self._next += 1
        return token


def _tokens(text: str) -> Iterator[str]:
    place, text = 0, text.strip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"{text[place : place + 20]!r} is not known here")
        yield found["token"]
        place = found.end()


def _constant(token: str) -> Any:
    if token[-1] in ("'", '"'):
        return token.removeprefix("r")[1:-1]
    return float(token) if "." in token else int(token)


def _applied(operator: Callable[[Any, Any], Any], left: Evaluation, right: Evaluation) -> Evaluation:
    return lambda names: operator(left(names), right(names))


def _macro(
    macro: Callable[[list[Any], list[Any]], Any], owner: Evaluation, variable: str, inner: Evaluation
) -> Evaluation:
    def evaluated(names: Names) -> Any:
        items = list(owner(names))
        return macro(items, [inner({**names, variable: item}) for item in items])

    return evaluated


def _is_there(field: Evaluation, names: Names) -> bool:
    """False for a field that is not there."""
    try:
        field(names)
    except KeyError:
        return False
    return True
