"""Reads the YAML documents of a job file like kubectl.

PyYAML follows YAML 1.1, where 1e-4 is text and `no` is false; kubectl follows neither version to the letter.
So plain values are resolved here: what kubectl and YAML 1.2 read alike is read so, the rest is refused.
ruamel.yaml reads YAML 1.2, but refuses none of the rest, nor aliases that expand, and takes 6.0 s instead of 0.8 s for
60,000 keys.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["JobFileError", "load", "load_all", "parse"]

MAX_BYTES = 1 << 20  # etcd takes no object above 1.5 MiB
MAX_DEPTH = 50
MAX_VALUES = 100_000  # aliases of aliases can make a small file expand without bound

_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TRUE_FOR_SOME = frozenset(["y", "Y", "yes", "Yes", "YES", "on", "On", "ON"])
_FALSE_FOR_SOME = frozenset(["n", "N", "no", "No", "NO", "off", "Off", "OFF"])
# Leading zeros, underscores, signs before a base, and bases that only one of the two readers knows.
_NUMBER_FOR_SOME = re.compile(r"[-+]?(0[0-9_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9.][0-9_]*_[0-9_.eE+-]*)")

_PLAIN = "plain"
_TEXT = "tag:yaml.org,2002:str"
_TOO_DEEP = "nested too deeply; a job needs no more than ten levels"


class JobFileError(Exception):
    """The file cannot be read as one YAML document; the text is one sentence for the user."""


def load(source: Path | str) -> dict[str, Any]:
    """Read a job file (a `Path`) or its text (a `str`): one YAML document that is a mapping."""
    name = str(source) if isinstance(source, Path) else "the job file"
    text = _read(source) if isinstance(source, Path) else source
    try:
        value = parse(text)
    except JobFileError as error:
        raise JobFileError(f"{name}{error}") from None
    if value is None:
        raise JobFileError(f"{name} is empty; write a ResNetBoostJob into it")
    if not isinstance(value, dict):
        raise JobFileError(f"{name} holds no fields; a job file starts with apiVersion, kind, metadata and spec")
    return value


def load_all(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every YAML document of a file, each with how to name it: the file, with a line where there are several."""
    try:
        documents = _built(_read(path))
    except JobFileError as error:
        raise JobFileError(f"{path}{error}" if str(error).startswith((",", ":")) else str(error)) from None
    if len(documents) < 2:
        return [(str(path), load(path))]
    found = [(f"{path}, line {line}", value) for line, value in documents]
    for place, value in found:
        if not isinstance(value, dict):
            raise JobFileError(f"{place}: this document holds no fields; an object starts with apiVersion and kind")
    return found


def _built(text: str) -> list[tuple[int, Any]]:
    try:
        return [(node.start_mark.line + 1, _Builder().build(node)) for node in _compose(text)]
    except RecursionError:
        raise JobFileError(f": {_TOO_DEEP}") from None


def parse(text: str) -> Any:
    """Read one YAML value; errors read `, line 3: ...`, to go after the name of the file."""
    try:
        documents = _compose(text)
        if len(documents) > 1:
            raise _problem(documents[1], "a second document starts here; put each job into a file of its own")
        return _Builder().build(documents[0]) if documents else None
    except RecursionError:
        raise JobFileError(f": {_TOO_DEEP}") from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise JobFileError(f"{path} does not exist; check the path of the job file") from None
    except IsADirectoryError:
        raise JobFileError(f"{path} is a folder; name the job file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobFileError(f"{path} cannot be read ({reason}); check its name and permissions") from None
    if len(data) > MAX_BYTES:
        raise JobFileError(f"{path} is larger than 1 MiB; this cannot be a job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise JobFileError(f"{path} is not UTF-8 text; save it as such") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Leaves values without an explicit tag unresolved, but distinguishes plain from quoted ones."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Tag of a node that has none in the file."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return "tag:yaml.org,2002:seq" if kind is yaml.SequenceNode else "tag:yaml.org,2002:map"


def _compose(text: str) -> list[yaml.Node]:
    """The documents with anything in them; kubectl skips empty ones too."""
    try:
        _refuse_depth(text)
        documents = list(yaml.compose_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        raise JobFileError(_syntax_error(error)) from None
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # a character that no YAML may hold, such as a half surrogate
        reason = getattr(error, "reason", "characters that are no text")
        raise JobFileError(f": not valid YAML: {reason}; save it as plain text") from None
    return [node for node in documents if not _is_null(node)]


def _refuse_depth(text: str) -> None:
    """Events come one after another, but libyaml's composer calls itself: thousands of levels end the process."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, _Loader)
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise JobFileError(f", line {event.start_mark.line + 1}: {_TOO_DEEP}")


def _syntax_error(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    if error.context_mark and ("or ']'" in str(error.problem) or "or '}'" in str(error.problem)):
        return f", line {error.context_mark.line + 1}: the bracket that opens here lacks a comma or its end"
    line = f", line {mark.line + 1}" if mark else ""
    problem = error.problem or "it cannot be understood"
    if "'\\t'" in problem or "that cannot start any token" in problem:
        problem = "a tab or a reserved character starts a value; indent with spaces and quote the value"
    return f"{line}: not valid YAML: {problem}"


def _problem(node: yaml.Node, text: str) -> JobFileError:
    return JobFileError(f", line {node.start_mark.line + 1}: {text}")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _PLAIN and node.value in _NULL


class _Builder:
    """Turns YAML nodes into plain Python values."""

    def __init__(self) -> None:
        self.values = 0
        self.open: set[int] = set()  # the nodes being built, to notice one that holds itself

    def build(self, node: yaml.Node) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or id(node) in self.open:
            raise _problem(node, "aliases (*name) expand without end; write the values out")
        if len(self.open) > MAX_DEPTH:
            raise _problem(node, _TOO_DEEP)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
                return self.mapping(node)
            if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
                return [self.build(item) for item in node.value]
        finally:
            self.open.discard(id(node))
        raise _problem(node, f"the tag {_short(node.tag)} is not known; leave it out")

    def mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                for earlier in self.merges(value_node):
                    merged = earlier | merged
                continue
            key = _key(key_node)
            if key in own:
                raise _problem(key_node, f"{key} is given twice; keep one of the two")
            own[key] = self.build(value_node)
        return own | {key: value for key, value in merged.items() if key not in own}

    def merges(self, node: yaml.Node) -> Iterator[dict[str, Any]]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.build(source)
            if not isinstance(value, dict):
                raise _problem(source, "<< takes the fields of another mapping; give it an alias of one")
            yield value


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or _is_null(node):
        raise _problem(node, "the name of a field must be text; check the braces and the text before ':'")
    _scalar(node)  # refuses what is read differently by different readers
    return str(node.value)


def _scalar(node: yaml.ScalarNode) -> Any:
    if node.tag == _PLAIN:
        return _plain(node)
    if node.tag == _TEXT:
        return node.value
    raise _problem(node, f"the tag {_short(node.tag)} is not known; leave it out")


def _plain(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _int(node)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return _float(node)
    _refuse_ambiguous(node)
    return text


def _int(node: yaml.ScalarNode) -> int:
    if len(node.value) > 100:  # int() refuses very long numbers anyway
        raise _problem(node, "this number is too large")
    return int(node.value, 0 if node.value.startswith(("0o", "0x")) else 10)


def _float(node: yaml.ScalarNode) -> float:
    value = float(node.value)
    if math.isinf(value):
        shown = node.value if len(node.value) <= 40 else "this number"
        raise _problem(node, f"{shown} is too large for a number")
    return value


def _refuse_ambiguous(node: yaml.ScalarNode) -> None:
    text = node.value
    if text in _TRUE_FOR_SOME | _FALSE_FOR_SOME:
        meant = "true" if text in _TRUE_FOR_SOME else "false"
        raise _problem(
            node,
            f'{text} is {meant} for some readers of YAML and text for others; write {meant} or "{text}"',
        )
    if _NOT_FINITE.fullmatch(text):
        raise _problem(node, f"{text} is not a finite number; use one that is")
    if _NUMBER_FOR_SOME.fullmatch(text):
        raise _problem(
            node,
            f"{text} is not the same number for all readers of YAML; write it in plain decimals or quote it",
        )


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
