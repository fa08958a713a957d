"""Parses untrusted JSON and serializes values to canonical bytes."""

import json
from typing import Any

import msgspec

from resnetboost_operator.errors import UserError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "DocumentError", "compact", "parse", "readable"]

MAX_BYTES = 64 << 20  # 65536 ranks of version 2.0, the most HCCL takes, are about 40 MiB
MAX_DEPTH = 20  # the deepest template has 9 levels
_MARK = b"\xef\xbb\xbf"  # HCCL's parser skips a byte order mark too

Document = dict[str, Any]


class DocumentError(UserError):
    """Bytes that HCCL could not load as a rank table (its EI0004); one sentence."""


def parse(data: bytes) -> Document:
    """The object in it. Raises DocumentError for too large, too deep, malformed JSON or JSON that is no object."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"it has {len(data)} bytes, more than {MAX_BYTES}: this cannot be a rank table")
    try:
        value = msgspec.json.decode(data.removeprefix(_MARK))
    except RecursionError:
        raise DocumentError(f"it is nested deeper than {MAX_DEPTH} levels; a rank table has at most 9") from None
    except UnicodeDecodeError:
        raise DocumentError(f"it is not UTF-8 text{_not_text(data)}; save it as such") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise DocumentError(f"it is not valid JSON: {_reason(data, str(error))}") from None
    if not isinstance(value, dict):
        raise DocumentError("it holds no JSON object; a rank table starts with {")
    if _depth(value) > MAX_DEPTH:
        raise DocumentError(f"it is nested deeper than {MAX_DEPTH} levels; a rank table has at most 9")
    return value


def _reason(data: bytes, error: str) -> str:
    """The decoder's message with the line number."""
    text, _, rest = error.removeprefix("JSON is malformed: ").partition(" (byte ")
    complaint = "it ends too early" if "truncated" in text else text.partition(" - at ")[0].lower()
    try:
        json.loads(data.removeprefix(_MARK))  # slower, but exact about the place
    except json.JSONDecodeError as found:
        return f"{complaint} in line {found.lineno}"
    except (ValueError, RecursionError):
        return complaint
    if "truncated" in text:
        complaint = "half of an escaped surrogate pair"
    number = rest.rstrip(")")
    return complaint + (_in_line(data, int(number)) if number.isdigit() else "")


def _not_text(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return _in_line(data, error.start)
    return ""


def _in_line(data: bytes, byte: int) -> str:
    newlines = data.count(b"\n", 0, byte)
    return f" in line {newlines + 1}"


def _depth(value: Any) -> int:
    """Nesting depth, computed level by level so that deep input needs no stack."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if depth > MAX_DEPTH:
            break
    return depth


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def compact(value: Any) -> bytes:
    """Canonical JSON: no spaces, keys in the order of the structs' fields; the same value, the same bytes."""
    return msgspec.json.encode(value)


def readable(value: Any) -> bytes:
    """The same with two spaces of indentation, for people."""
    return msgspec.json.format(compact(value), indent=2) + b"\n"
