#!/usr/bin/env python3
"""Writes crds/resnetboostjobs.yaml and the chart's copy from the structs of api/; `--check` compares instead.

`make crd` runs it; `make lint` checks.
"""

import difflib
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from resnetboost_api import crd

ROOT = Path(__file__).parents[1]
TARGETS = (
    ROOT / "crds" / "resnetboostjobs.yaml",
    ROOT / "charts" / "resnetboost" / "files" / "resnetboostjobs.yaml",
)
HEAD = """\
# The API of ResNetBoost: made by `make crd` from the structs in api/resnetboost_api, where it is to be changed.
"""
WIDTH = 120


class _Dumper(yaml.SafeDumper):
    """Long texts folded, short lists of words on one line, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Everything is written out."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Items of a list are indented."""
        super().increase_indent(flow, False)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    words = all(isinstance(item, str) for item in items) and sum(len(item) + 2 for item in items) < WIDTH - 25
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=words)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    quoted = '"' if text.startswith("!") and '"' not in text else None  # rules are full of single quotes
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=">" if len(text) > WIDTH - 40 else quoted)


_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)


def rendered() -> str:
    """The file."""
    dumped = yaml.dump(crd.definition(), Dumper=_Dumper, sort_keys=False, width=math.inf, allow_unicode=True)
    return HEAD + "".join(f"{line}\n" for line in _wrapped(dumped))


def _wrapped(text: str) -> Iterator[str]:
    """Its lines; those of folded texts, which hold no double spaces, broken where they are too long."""
    is_folded = False
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if is_folded:
            filled = textwrap.TextWrapper(WIDTH, indent, indent, break_long_words=False, break_on_hyphens=False)
            yield from filled.wrap(line.strip())
        else:
            yield line
        is_folded = line.endswith(": >-")


def outdated() -> Iterator[str]:
    """The lines by which a file differs from what it should be."""
    for path in TARGETS:
        found, right = (text.splitlines(keepends=True) for text in (path.read_text(), rendered()))
        yield from difflib.unified_diff(found, right, str(path.relative_to(ROOT)), "by the structs of api/", n=1)


def main(arguments: list[str]) -> int:
    """Write, or compare: 1 if a file is not what it should be."""
    if "--check" in arguments:
        lines = list(outdated())
        if lines:
            print("".join(lines[:60]) + "the CRD is not what the structs say; run `make crd`", file=sys.stderr)
        return 1 if lines else 0
    for path in TARGETS:
        path.write_text(rendered())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
