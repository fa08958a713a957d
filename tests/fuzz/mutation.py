"""Seeded mutations of bytes and, where they are JSON or YAML, of the values in them."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import yaml

# Where a parser's bounds usually lie.
NUMBERS = (0, -1, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    1e308,
    -0.0,
    0.1,
    True,
    False,
    None,
    "",
    " ",
    "\x00",
    "\x1b[2J\x07",
    "../../etc/passwd",
    "$(id)",
    "é" * 40,
    "\u202e",
    "x" * 5000,
    "1e999",
    "2001-99-99",
    "1" * 4400,
    [],
    {},
    [[]],
    {"": ""},
    [1] * 2000,
)
TOKENS = (
    *(b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r\n", b"\x1b", b"\\u0000", b"\\ud800", b"'", b'"'),
    *(b"{", b"}", b"[", b"]", b":", b",", b"-", b"---\n", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system "),
    *(b"nan", b"NaN", b"Infinity", b"-0", b"1e400", b"0x10", b"null", b"true", b"[" * 3000, b'{"a":' * 3000),
    *(b"9" * 5000, b"!!int ", b"!!float ", b"!!timestamp ", b"!!binary ", b"!!set ", b"? "),
)


class Mutator:
    """Makes inputs of a corpus; two of one seed make the same."""

    def __init__(self, seed: int, corpus: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._corpus = list(corpus)
        self._structures = [found for found in map(_structure, corpus) if found is not None]

    def next(self) -> bytes:
        """A new input: a corpus entry after one to six changes, of its values or of its bytes."""
        if self._structures and self._random.random() < 0.6:
            return self._changed_structure()
        data = self._random.choice(self._corpus)
        for _ in range(self._random.randint(1, 6)):
            data = self._random.choice(self._changes)(self, data)
        return data

    def _changed_structure(self) -> bytes:
        value, dump = self._random.choice(self._structures)
        value = copy.deepcopy(value)
        for _ in range(self._random.randint(1, 4)):
            value = self._changed_value(value)
        try:
            data = dump(value)
        except RecursionError:  # deeper than the writer can follow
            return self.next()
        return self._random.choice(self._changes)(self, data) if self._random.random() < 0.1 else data

    def _changed_value(self, value: Any) -> Any:
        """The value with one of its parts replaced, removed, doubled, renamed or put deeper."""
        places = _places(value) if isinstance(value, dict | list) else []
        if not places:
            return self._random.choice(VALUES)
        holder, key = self._random.choice(places)
        kind = self._random.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(self._random.choice(VALUES))[:300]] = holder.pop(key)
        elif kind == 1:
            holder.insert(key, holder[key])
        elif kind == 2:
            other, name = self._random.choice(places)
            try:
                holder[key] = copy.deepcopy(other[name])
            except (KeyError, IndexError, RecursionError):
                holder[key] = None
        elif kind == 3:
            for _ in range(self._random.choice((1, 5, 30, 90))):
                holder[key] = {"a": holder[key]} if self._random.random() < 0.5 else [holder[key]]
        elif kind == 4 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * self._random.choice((-1, 2, 1000, 0.5, 1e9))
        else:
            holder[key] = copy.deepcopy(self._random.choice(VALUES))
        return value

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._random.randrange(8))]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        begin, end = self._span(data)
        return data[:begin] + data[end:]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._random.randint(0, len(data))]

    def _double(self, data: bytes) -> bytes:
        begin, end = self._span(data)
        return data[:end] + data[begin:end] * self._random.choice((1, 2, 20)) + data[end:]

    def _insert(self, data: bytes) -> bytes:
        at = self._random.randint(0, len(data))
        return data[:at] + self._random.choice(TOKENS) + data[at:]

    def _overwrite(self, data: bytes) -> bytes:
        """A number in binary, as lengths in headers are."""
        size = self._random.choice((1, 2, 4, 8))
        number = self._random.choice(NUMBERS) % (1 << (8 * size))
        at = self._random.randint(0, len(data))
        return data[:at] + number.to_bytes(size, self._random.choice(("little", "big"))) + data[at + size :]

    def _splice(self, data: bytes) -> bytes:
        other = self._random.choice(self._corpus)
        begin, end = self._span(other)
        at = self._random.randint(0, len(data))
        return data[:at] + other[begin:end] + data[at:]

    def _span(self, data: bytes) -> tuple[int, int]:
        begin = self._random.randint(0, len(data))
        return begin, min(len(data), begin + self._random.choice((1, 2, 8, 40, 400)))

    _changes = (_flip, _flip, _cut, _truncate, _double, _insert, _insert, _overwrite, _splice)


def _structure(data: bytes) -> tuple[Any, Callable[[Any], bytes]] | None:
    """The value that the bytes are the JSON or YAML of, and how to write it; None if it has no parts."""
    try:
        value, dump = json.loads(data), _json
    except ValueError:
        try:
            value, dump = yaml.safe_load(data), _yaml
        except (yaml.YAMLError, ValueError):
            return None
    return (value, dump) if isinstance(value, dict | list) else None


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _yaml(value: Any) -> bytes:
    return yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)).encode(errors="replace")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every part, as the container that holds it and its key there."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left and len(found) < 3000:
        holder = left.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        left += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return found
