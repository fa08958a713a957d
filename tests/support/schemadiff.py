"""Finds where one schema of a custom resource accepts less than an earlier one."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

LOWER = ("minimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
EXACT = ("type", "format", "pattern", "x-kubernetes-int-or-string", "x-kubernetes-list-type")


def narrowed(path: str, old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
    """Yield each field, and what of it is narrower than it was. A field that is gone is pruned from stored objects.

    Rules (x-kubernetes-validations) are programs, which no comparison decides: examples and the corpus try those.
    """
    yield from ((path, problem) for problem in _narrower(old, new))
    for name, field in old.get("properties", {}).items():
        if name in new.get("properties", {}):
            yield from narrowed(f"{path}.{name}", field, new["properties"][name])
        else:
            yield f"{path}.{name}", "is gone"
    if "items" in old and "items" in new:
        yield from narrowed(f"{path}[]", old["items"], new["items"])


def _narrower(old: Schema, new: Schema) -> Iterator[str]:
    for key in EXACT:
        if key in new and new[key] != old.get(key):
            yield f"{key} {old.get(key)} became {new[key]}"
    for key in LOWER:
        if key in new and new[key] > old.get(key, -float("inf")):
            yield f"{key} {old.get(key)} became {new[key]}"
    for key in UPPER:
        if key in new and new[key] < old.get(key, float("inf")):
            yield f"{key} {old.get(key)} became {new[key]}"
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if new.get(key) and not old.get(key):
            yield f"{key} is new"
    if "enum" in new and (gone := sorted(set(old.get("enum", ["any value"])) - set(new["enum"]))):
        yield f"the values {', '.join(gone)} are gone"
    if required := sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"{', '.join(required)} became required"
    if old.get("default") != new.get("default") and "default" in old:
        yield f"the default {old['default']} became {new.get('default')}: what leaves it out would mean something else"
