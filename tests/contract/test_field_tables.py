"""The field tables in docs/ match the fields and defaults of the schema."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resnetboost_operator.validation import schema

DOCS = Path(__file__).parents[2] / "docs"
# Header of a table: a block such as `adasum.` or "field of a stage", then the column of defaults.
HEADER = re.compile(r"\| (?:`(?P<block>\w+)\.`|field of a stage) \| default \|")
ROW = re.compile(r"\| (?P<fields>`[^|]+) \|(?P<defaults>[^|]*)\|")


def rows(text: str) -> Iterator[tuple[str, str]]:
    """Each stage field that a table names, with its documented default."""
    block: str | None = None
    for line in text.splitlines():
        if header := HEADER.match(line):
            block = f"{header['block']}." if header["block"] else ""
        elif not line.startswith("|"):
            block = None
        elif block is not None and (row := ROW.match(line)):
            fields = re.findall(r"`([\w.]+)`", row["fields"])
            parent = fields[0].rpartition(".")[0]  # in `damping.initial`, `decay` the second is damping.decay
            whole = [fields[0], *(".".join(filter(None, (parent, name.lstrip(".")))) for name in fields[1:])]
            defaults = [part.strip().strip("`") for part in row["defaults"].split(",")]
            defaults = defaults if len(defaults) == len(whole) else defaults * len(whole)
            yield from ((block + name, said) for name, said in zip(whole, defaults, strict=True))


def field(path: str) -> dict[str, Any]:
    """Schema of a stage's field; KeyError if there is none."""
    found: dict[str, Any] = schema.openapi()["properties"]["spec"]["properties"]["stages"]["items"]
    for name in path.split("."):
        found = found["properties"][name]
    return found


TABLES = {page.stem: list(rows(page.read_text())) for page in sorted(DOCS.glob("*.md"))}
TABLES = {name: found for name, found in TABLES.items() if found}


def test_the_documents_of_algorithms_have_one() -> None:
    assert {"adasum", "pca", "thor"} <= TABLES.keys()


@pytest.mark.parametrize(("path", "said"), [row for found in TABLES.values() for row in found])
def test_each_field_has_the_default_that_a_table_says(path: str, said: str) -> None:
    default = field(path).get("default")
    assert default is None or str(default) == said
