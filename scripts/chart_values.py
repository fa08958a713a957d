#!/usr/bin/env python3
"""Writes the table of values in the chart's README from the comments in values.yaml.

`chart_values.py [CHART]`; `make chart` runs it.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"
_KEY = re.compile(r"^( *)([A-Za-z]\w*):")
_COMMENT = re.compile(r"^ *# ?(.*)$")


def main(chart: Path) -> None:
    """Write it."""
    readme = chart / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + BEGIN + "\n" + table((chart / "values.yaml").read_text()) + "\n" + END + after)


def table(text: str) -> str:
    """A Markdown table of every value that has a comment: its path, default and meaning."""
    values = yaml.safe_load(text)
    rows = ["| value | default | |", "|---|---|---|"]
    for path, meaning in described(text):
        rows.append(f"| `{'.'.join(path)}` | `{json.dumps(at(values, path))}` | {meaning} |")
    return "\n".join(rows) + "\n"


def described(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path and comment of each key under a comment that begins with `# --`."""
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        if comment := _COMMENT.match(line):
            said = comment[1]
            words = [said.removeprefix("-- ")] if said.startswith("-- ") else [*words, said] if words else []
        elif key := _KEY.match(line):
            indent = len(key[1])
            path = [(depth, name) for depth, name in path if depth < indent] + [(indent, key[2])]
            if words:
                yield tuple(name for _, name in path), " ".join(words)
            words = []


def at(values: Any, path: tuple[str, ...]) -> Any:
    """The value at a path."""
    for name in path:
        values = values[name]
    return values


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "charts" / "resnetboost")
