#!/usr/bin/env python3
"""Writes docs/reference-fields.md and docs/reference-commands.md from the schema and the commands; `--check` compares.

`make reference` runs it; `make lint` checks.
"""

import difflib
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from resnetboost_api import crd
from resnetboost_operator.cli import main as cli

DOCS = Path(__file__).parents[1] / "docs"
Schema = Mapping[str, Any]

FIELDS = """\
# Fields

After this page you know every field of a `ResNetBoostJob`: its type, its default and its bounds. `make reference` makes
this page from the structs in `api/`, like the CRD; `kubectl explain rbj.spec.device` prints the same texts.

A field without a default is optional unless it is marked as required. An object that is left out has the defaults of
its fields. The API server and `resnetboost validate` check types, bounds and the rules that stand below the tables.
"""
COMMANDS = """\
# Commands

After this page you know every command of `resnetboost` with its options and exit codes. `make reference` makes this
page from what `resnetboost COMMAND --help` prints.

| command | |
|---|---|
"""
WIDTH = 100


def fields() -> str:
    """The page of all fields: one table per object, in the schema's order."""
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    sections = [section for name in ("spec", "status") for section in _sections(name, schema[name])]
    return "\n".join([FIELDS, *sections])


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """The table of an object's fields, then those of the objects in it."""
    rows = ["| field | type | |", "|---|---|---|"]
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        needed = "; **required**" if name in required else ""
        rows.append(f"| `{name}` | {_cell(_type(field) + needed)} | {_cell(field.get('description', ''))} |")
    text = _sentence(schema.get("description", ""))
    rules = [rule["message"] for part in _here(schema) for rule in part.get("x-kubernetes-validations", ())]
    refused = ["What is refused, in the words of the message:", "", *map(_item, rules), ""] if rules else []
    yield "\n".join([f"## {path}", "", *([text, ""] if text else []), *rows, "", *refused])
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _sections(f"{path}.{name}{'[]' if inner is not field else ''}", inner)


def _here(schema: Schema) -> Iterator[Schema]:
    """The object and those of its fields that have no section of their own."""
    yield schema
    for field in schema["properties"].values():
        if "properties" not in field:
            yield field


def _item(rule: str) -> str:
    return textwrap.fill(rule, 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False)


def _sentence(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(schema: Schema) -> str:
    """Its type, bounds and default, for example "integer, 1 to 1024, default `1`"."""
    parts = [_kind(schema), *_bounds(schema)]
    if schema.get("default", {}) not in ({}, []):
        parts.append(f"default `{json.dumps(schema['default'])}`")
    return ", ".join(filter(None, parts))


def _kind(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema.get("type") == "array":
        return f"list of {_plural(schema['items'])}"
    if schema.get("format") == "date-time":
        return "time"
    return str(schema.get("type", "any"))


def _plural(items: Schema) -> str:
    return "objects" if "properties" in items else f"({_type(items)})" if "enum" in items else f"{_kind(items)}s"


def _bounds(schema: Schema) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = "above " if schema.get("exclusiveMinimum") else ""
    below = "below " if schema.get("exclusiveMaximum") else ""
    if low is not None and high is not None:
        yield f"{above}{low} to {below}{high}"
    elif low is not None:
        yield f"at least {low}" if not above else f"above {low}"
    for key, noun in (("maxItems", "items"), ("maxLength", "characters"), ("maxProperties", "entries")):
        if key in schema and "enum" not in schema:
            yield f"at most {schema[key]} {noun}"


def commands() -> str:
    """The page of all commands: what --help prints for each."""
    group = cli.main
    context = click.Context(group, info_name="resnetboost", terminal_width=WIDTH)
    rows, pages = [], []
    for name, command, inner in _commands(group, context):
        rows.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(command.get_short_help_str(limit=200))} |")
        pages.append(f"## {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n")
    return COMMANDS + "\n".join(rows) + "\n\n" + "\n".join(pages)


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name, terminal_width=WIDTH)
        yield inner.command_path, command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def main() -> None:
    """Write the pages, or compare them with what stands there."""
    check = sys.argv[1:] == ["--check"]
    for name, page in (("fields", fields()), ("commands", commands())):
        path = DOCS / f"reference-{name}.md"
        if check:
            _compare(path, page)
        else:
            path.write_text(page)


def _compare(path: Path, page: str) -> None:
    found = path.read_text() if path.exists() else ""
    if found != page:
        difference = difflib.unified_diff(found.splitlines(), page.splitlines(), str(path), "generated", lineterm="")
        sys.exit("\n".join([*list(difference)[:40], f"{path} is not what `make reference` writes; run it"]))


if __name__ == "__main__":
    main()
