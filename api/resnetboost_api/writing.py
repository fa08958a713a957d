"""Converts structs to plain values: without defaults, or without nulls."""

from collections.abc import Collection
from typing import Any

import msgspec

__all__ = ["without_defaults", "without_nulls"]


def without_defaults(block: msgspec.Struct, always: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """The fields of a block that are not at their default; required ones always.

    Also those in `always`, such as "learningRate.peak", unless they are None. `prefix` is the block's own place.
    """
    found = {}
    for field in msgspec.structs.fields(block):
        value, name = getattr(block, field.name), f"{prefix}{field.encode_name}"
        if field.required or value != _default(field) or (value is not None and name in always):
            found[field.encode_name] = _shortened(value, always, f"{name}.")
    return found


def without_nulls(value: Any) -> Any:
    """Any value as plain dicts and lists, without fields that are None."""
    return _pruned(msgspec.to_builtins(value))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _shortened(value: Any, always: Collection[str], prefix: str) -> Any:
    if isinstance(value, msgspec.Struct):
        return without_defaults(value, always, prefix)
    return [_shortened(item, always, prefix) for item in value] if isinstance(value, tuple) else value


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pruned(item) for name, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list | tuple) else value
