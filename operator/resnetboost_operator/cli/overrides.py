"""Applies `--set a.b[0].c=value` to a job object; the schema checks the result."""

import copy
import re
from collections.abc import Sequence
from typing import Any

from resnetboost_operator import readable
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import jobfile

Manifest = dict[str, Any]

SHOWN = 80  # characters of an assignment that a message repeats

_ROOTS = ("apiVersion", "kind", "metadata", "spec")
# A name, or after it .name, [3] or ["a name with dots"].
_PART = re.compile(r"""(?:^|\.)(?P<name>[^.\[\]"'=\s]+)|\[(?P<index>[0-9]{1,9})\]|\[(["'])(?P<key>.+?)\3\]""")


class OverrideError(UserError):
    """A `--set` that cannot be applied."""

    def __init__(self, assignment: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"--set {readable.printable(readable.cut(assignment, SHOWN))}: {reason}")


def apply(job: Manifest, assignments: Sequence[str]) -> Manifest:
    """Return a copy of the job with all assignments applied in order."""
    changed = copy.deepcopy(job)
    for assignment in assignments:
        path, value = _split(assignment)
        _set(changed, _parse_path(path, assignment), _parse_value(value, assignment), assignment)
    return changed


def assign(job: Manifest, path: str, value: Any) -> Manifest:
    """Return a copy of the job with the value at a path such as `stages[0].epochs`. Raises `OverrideError`."""
    changed = copy.deepcopy(job)
    _set(changed, parts(path), value, path)
    return changed


def parts(path: str) -> list[str | int]:
    """Names and indexes from a job to the field at a path such as `stages[0].epochs`. Raises `OverrideError`."""
    if not path or _path_end(path) != len(path):
        raise OverrideError(path, "write it as a path, for example stages[0].epochs")
    return _parse_path(path, path)


def _split(assignment: str) -> tuple[str, str]:
    """Split an assignment into path and value at the first `=` outside brackets."""
    end = _path_end(assignment)
    if end == 0 or assignment[end : end + 1] != "=":
        raise OverrideError(assignment, "write it as path=value, for example stages[0].epochs=3")
    return assignment[:end], assignment[end + 1 :]


def _path_end(assignment: str) -> int:
    end = 0
    while found := _PART.match(assignment, end):
        if found.end() == end:
            break
        end = found.end()
    return end


def _parse_path(path: str, assignment: str) -> list[str | int]:
    parts: list[str | int] = []
    for found in _PART.finditer(path):
        index = found["index"]
        parts.append(int(index) if index is not None else found["name"] or found["key"])
    if parts[0] not in _ROOTS:
        parts.insert(0, "spec")
    if len(parts) == 1:
        raise OverrideError(assignment, f"name a field below {parts[0]}")
    if len(parts) > jobfile.MAX_DEPTH:
        raise OverrideError(assignment, "the path is too long; a job has no more than ten levels")
    return parts


def _parse_value(text: str, assignment: str) -> Any:
    try:
        return jobfile.parse(text)
    except jobfile.JobFileError as error:
        reason = re.sub("^(, line [0-9]+)?: ", "", str(error))
        raise OverrideError(assignment, reason) from None


def _set(job: Manifest, parts: Sequence[str | int], value: Any, assignment: str) -> None:
    holder: Any = job
    for depth, part in enumerate(parts[:-1]):
        holder = _step(holder, part, parts[: depth + 1], assignment)
        if holder is None:
            holder = _fill(job, parts[: depth + 1])
    _step(holder, parts[-1], parts, assignment)
    holder[parts[-1]] = value


def _fill(job: Manifest, parts: Sequence[str | int]) -> Manifest:
    """Create an empty mapping for a missing field; the schema reports it if it must not be one."""
    holder: Any = job
    for part in parts[:-1]:
        holder = holder[part]
    empty: Manifest = {}
    holder[parts[-1]] = empty
    return empty


def _step(holder: Any, part: str | int, parts: Sequence[str | int], assignment: str) -> Any:
    """The value at `part`, or None; refuses indexes past the end and names in values without fields."""
    above = _written(parts[:-1])
    if isinstance(part, int):
        if not isinstance(holder, list):
            raise OverrideError(assignment, f"{above} is not a list, so [{part}] means nothing")
        if part >= len(holder):
            raise OverrideError(assignment, f"{above} has no [{part}]; its {len(holder)} entries count from [0]")
        return holder[part]
    if not isinstance(holder, dict):
        kind = "a list, name an entry such as [0]" if isinstance(holder, list) else f"{holder}, it has no fields"
        raise OverrideError(assignment, f"{above} is {kind}")
    return holder.get(part)


def _written(parts: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")
