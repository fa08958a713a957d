"""Converts structs to plain values: without defaults, or without nulls."""

from typing import Any

import msgspec

__all__ = ["without_defaults", "without_nulls"]


def without_defaults(block: msgspec.Struct) -> dict[str, Any]:
    """The fields of a block that are not at their default; required ones always."""
    return {
        field.encode_name: _shortened(getattr(block, field.name))
        for field in msgspec.structs.fields(block)
        if field.required or getattr(block, field.name) != _default(field)
    }


def without_nulls(value: Any) -> Any:
    """Any value as plain dicts and lists, without fields that are None."""
    return _pruned(msgspec.to_builtins(value))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _shortened(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return without_defaults(value)
    return [_shortened(item) for item in value] if isinstance(value, tuple) else value


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pruned(item) for name, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list | tuple) else value
