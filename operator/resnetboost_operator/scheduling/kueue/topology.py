"""Kueue's topology assignment: which node labels each rank gets, read from its compressed form (v1beta2)."""

from collections.abc import Iterator, Mapping
from typing import Any

Manifest = Mapping[str, Any]


def node_selectors(assignment: Manifest) -> dict[int, dict[str, str]]:
    """The node labels of each index. Domains are filled in order, so neighbours in rank share one.

    `levels` are label keys. Each slice has `domainCount` domains: per level either one `universal` value or
    `individual` ones (`prefix` + one of `roots` + `suffix`), and pods per domain likewise.
    """
    found: dict[int, dict[str, str]] = {}
    for part in assignment.get("slices") or ():
        for labels, pods in _domains(assignment["levels"], part):
            for _ in range(pods):
                found[len(found)] = labels
    return found


def _domains(levels: list[str], part: Manifest) -> Iterator[tuple[dict[str, str], int]]:
    """The labels and the number of pods of each domain of a slice."""
    counts = part["podCounts"]
    for place in range(part["domainCount"]):
        values = (_value(level, place) for level in part["valuesPerLevel"])
        pods = counts["universal"] if counts.get("universal") is not None else counts["individual"][place]
        yield dict(zip(levels, values, strict=True)), pods


def _value(level: Manifest, place: int) -> str:
    if level.get("universal") is not None:
        return str(level["universal"])
    individual = level["individual"]
    return f"{individual.get('prefix') or ''}{individual['roots'][place]}{individual.get('suffix') or ''}"
