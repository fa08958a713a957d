"""Writes objects as YAML that is readable and that every YAML parser reads the same way, and reads them back."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2 reads as a number: in PyYAML's YAML 1.1, 1e-4 is text."""


# PyYAML compares with the resolvers of plain scalars to decide what needs quotes.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^0o[0-7]+$"), ["0"])


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
# Aliases (&id001) would be valid but unreadable.
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]


def dump(value: Any) -> str:
    """One document, with keys in their own order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


def dump_all(values: Iterable[Any]) -> str:
    """Several documents, each with its own marker, for kubectl apply."""
    return "".join(f"---\n{dump(value)}" for value in values)


def read_mapping(path: Path) -> dict[str, Any] | None:
    """The mapping that a file of ours holds, None if it is damaged. Raises `OSError` if it cannot be read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (
        yaml.YAMLError,
        ValueError,
        AttributeError,
        RecursionError,
    ):  # the middle two: no text, or a date that is none
        return None
    return found if isinstance(found, dict) else None
