"""Reads Grafana dashboard files: their queries, with variables filled in."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from beds.prometheus.api import Api

# Values of Grafana's own variables, for scrapes each second: the window spans several scrapes on a busy machine.
_WINDOWS = {"__rate_interval": "20s", "__interval": "10s", "__range": "10m", "__range_s": "600"}
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")


class Query(NamedTuple):
    """A query of a panel or an annotation, with the title of its place; legend: of its series."""

    title: str
    text: str
    legend: str


class Panel(NamedTuple):
    """A panel: x, y, width and height in Grafana's units, 24 to a row."""

    title: str
    kind: str
    unit: str
    place: tuple[int, int, int, int]
    queries: tuple[Query, ...]
    settings: Mapping[str, Any]


class Variable(NamedTuple):
    """A variable with the values of a label; several: more than one may be selected."""

    name: str
    label: str
    selector: str
    several: bool
    all_value: str


class Dashboard:
    """One dashboard file."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._content: dict[str, Any] = json.loads(path.read_text())
        self.title = str(self._content["title"])
        self.panels = tuple(_panel(found) for found in _flat(self._content["panels"]) if found.get("targets"))
        self.annotations = tuple(_annotations(self._content))
        self.variables = tuple(_variables(self._content))

    @property
    def queries(self) -> tuple[Query, ...]:
        """All queries of the dashboard."""
        return (*(query for panel in self.panels for query in panel.queries), *self.annotations)


def choices(dashboard: Dashboard, api: Api) -> list[dict[str, str]]:
    """Assignments of the variables: all values where several may be selected, else one at a time."""
    found: list[dict[str, str]] = [{}]
    for variable in dashboard.variables:
        longer = []
        for choice in found:
            values = api.label_values(variable.label, filled(variable.selector, choice))
            offered = [_everything(variable, values)] if variable.several else values
            longer += [{**choice, variable.name: value} for value in offered]
        found = longer
    return found


def filled(query: str, choice: Mapping[str, str]) -> str:
    """A query with the variables replaced. Raises `KeyError` for an unknown one."""
    values = {**_WINDOWS, **choice}
    return _VARIABLE.sub(lambda found: values[next(filter(None, found.groups()))], query)


def _everything(variable: Variable, values: list[str]) -> str:
    return variable.all_value or f"({'|'.join(map(re.escape, values))})"


def _flat(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All panels, including those in collapsed rows."""
    for panel in panels:
        yield panel
        yield from _flat(panel.get("panels", []))


def _panel(found: dict[str, Any]) -> Panel:
    place = found["gridPos"]
    settings = {**found.get("fieldConfig", {}).get("defaults", {}), **found.get("options", {})}
    title = found["title"]
    queries = tuple(Query(title, one["expr"], one.get("legendFormat", "")) for one in found["targets"])
    return Panel(title, found["type"], settings.get("unit", ""), tuple(place[key] for key in "xywh"), queries, settings)


def _annotations(content: dict[str, Any]) -> Iterator[Query]:
    """Annotations that query Prometheus; Grafana's own have no query."""
    for one in content.get("annotations", {}).get("list", ()):
        if text := one.get("expr") or one.get("target", {}).get("expr"):
            yield Query(one["name"], text, one.get("titleFormat", ""))


def _variables(content: dict[str, Any]) -> Iterator[Variable]:
    for one in content.get("templating", {}).get("list", ()):
        if one["type"] == "query":
            text = one["query"]["query"] if isinstance(one["query"], dict) else one["query"]
            if not (found := re.fullmatch(r"label_values\((.*),\s*(\w+)\)", text)):
                raise ValueError(f"variable {one['name']}: label_values(SERIES, LABEL) was meant, not {text}")
            several = bool(one.get("multi") or one.get("includeAll"))
            yield Variable(one["name"], found[2], found[1], several, one.get("allValue") or "")
