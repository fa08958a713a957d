"""Assignments of pods to nodes in the compressed form that Kueue writes since v1beta2."""

from collections.abc import Mapping
from typing import Any

HOSTNAME = "kubernetes.io/hostname"


def assignment(nodes: Mapping[str, int], pods: int) -> dict[str, Any]:
    """Fill the nodes in order. `nodes` are the free places of each."""
    counts: dict[str, int] = {}
    for name, places in nodes.items():
        counts[name] = min(places, pods - sum(counts.values()))
    used = {name: count for name, count in counts.items() if count}
    return {"levels": [HOSTNAME], "slices": [_slice(list(used), list(used.values()))]}


def _slice(names: list[str], counts: list[int]) -> dict[str, Any]:
    same = len(set(counts)) == 1
    return {
        "domainCount": len(names),
        "valuesPerLevel": [_values(names)],
        "podCounts": {"universal": counts[0]} if same else {"individual": counts},
    }


def _values(names: list[str]) -> dict[str, Any]:
    if len(names) == 1:
        return {"universal": names[0]}
    prefix = names[0][: next(end for end in range(len(names[0]), -1, -1) if _all_begin(names, names[0][:end]))]
    return {"individual": {"prefix": prefix, "roots": [name.removeprefix(prefix) for name in names]}}


def _all_begin(names: list[str], start: str) -> bool:
    return all(name.startswith(start) for name in names)
