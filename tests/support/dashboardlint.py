"""Linter for Grafana dashboards: problems as sentences; it does not check whether queries return data.

Grafana's own SDK knows all field names and their places; it checks neither types nor the names of our metrics.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as Model

Dashboard = Mapping[str, Any]
Series = Mapping[str, frozenset[str]]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
_METRIC = re.compile(r"\b(?:resnetboost|process|python)_\w+(?![\w(])")
_SELECTOR = re.compile(r"\b(?P<metric>(?:resnetboost|process|python)_\w+)(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*),\s*(?P<label>\w+)\)")
_VARIABLE = re.compile(r"\$\{?(\w+)")
# Fields of annotations and variables that Grafana writes and its SDK omits.
_BESIDE_SDK = re.compile(
    r"annotations\.list\[\d+\]\.(builtIn|step|tagKeys|textFormat|titleFormat|useValueForTime)"
    r"|templating\.list\[\d+\]\.definition"
)
# Labels that a scrape adds.
_OF_TARGETS = frozenset({"instance", "job", "namespace", "pod", "service"})


def problems(dashboard: Dashboard, series: Series) -> list[str]:
    """Problems as sentences, empty for a good dashboard; `series` are the labels of exposed series, by name."""
    checks = (_of_fields, _of_the_whole, _of_variables, _of_panels, _of_places)
    return [text for check in checks for text in check(dashboard)] + list(_of_queries(dashboard, series))


def metrics(dashboard: Dashboard) -> set[str]:
    """Names of all series that panels and annotations show."""
    return {name for _, text in _queries(dashboard) for name in _METRIC.findall(text)}


def _of_fields(dashboard: Dashboard) -> Iterator[str]:
    """Fields that the SDK loses or changes when it reads the dashboard and writes it again."""
    plugins.register_default_plugins()
    written = json.loads(JSONEncoder().encode(Model.from_json(dict(dashboard))))
    for path in _lost(dashboard, written, ""):
        if not _BESIDE_SDK.fullmatch(path):
            yield f"{path}: Grafana has no such field, or not with this value"


def _lost(given: Any, written: Any, path: str) -> Iterator[str]:
    if isinstance(given, Mapping) and isinstance(written, Mapping):
        for key, value in given.items():
            inner = f"{path}.{key}".removeprefix(".")
            yield from _lost(value, written[key], inner) if key in written else (inner,)
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for index, pair in enumerate(zip(given, written, strict=True)):
            yield from _lost(*pair, f"{path}[{index}]")
    elif given != written:
        yield path


def _of_the_whole(dashboard: Dashboard) -> Iterator[str]:
    if not re.fullmatch(r"resnetboost-[a-z]+", dashboard["uid"]):
        yield f"its uid is {dashboard['uid']}; links need resnetboost-NAME"
    if "__inputs" in dashboard or dashboard.get("id") is not None:
        yield "it was exported for one Grafana; take __inputs and id out"
    if dashboard["schemaVersion"] < 36 or "resnetboost" not in dashboard["tags"]:
        yield "its schemaVersion is older than Grafana 10, or it lacks the tag resnetboost"
    if not any("resnetboost" in link.get("tags", ()) for link in dashboard["links"]):
        yield "it has no links to the others"


def _of_variables(dashboard: Dashboard) -> Iterator[str]:
    names = [found["name"] for found in dashboard["templating"]["list"]]
    if names[:1] != ["datasource"]:
        yield "its first variable is not datasource"
    texts = [text for _, text in _queries(dashboard)]
    texts += [str(found.get("query", "")) for found in dashboard["templating"]["list"]]
    used = {name for text in texts for name in _VARIABLE.findall(text) if not name.startswith("__")}
    yield from (f"nothing uses the variable {name}" for name in names if name not in used | {"datasource"})
    yield from (f"there is no variable {name}" for name in sorted(used - set(names)))
    for found in dashboard["templating"]["list"][1:]:
        if found["datasource"] != DATASOURCE or not _LABEL_VALUES.fullmatch(found["query"]["query"]):
            yield f"the variable {found['name']} does not ask the datasource by label_values"


def _of_panels(dashboard: Dashboard) -> Iterator[str]:
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) < len(ids):
        yield "two panels have one id"
    for panel in (found for found in dashboard["panels"] if found["type"] != "row"):
        title = panel["title"]
        if not panel.get("description", "").endswith("."):
            yield f"{title}: no description, or one that ends without a full stop"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"{title}: no unit"
        sources = [panel.get("datasource"), *(target.get("datasource") for target in panel["targets"])]
        if any(source != DATASOURCE for source in sources):
            yield f"{title}: a datasource of its own"
        if "noValue" in panel["fieldConfig"]["defaults"] and not all(target["instant"] for target in panel["targets"]):
            yield f"{title}: of a range it shows the last value there was, though there is none now; ask instantly"
        if len({target["refId"] for target in panel["targets"]}) < len(panel["targets"]):
            yield f"{title}: two queries have one refId"
    for found in dashboard["annotations"]["list"]:
        if not found.get("builtIn") and found["datasource"] != DATASOURCE:
            yield f"{found['name']}: a datasource of its own"


def _of_places(dashboard: Dashboard) -> Iterator[str]:
    places = [(panel["title"], panel["gridPos"]) for panel in dashboard["panels"]]
    for title, place in places:
        if place["x"] + place["w"] > COLUMNS:
            yield f"{title}: it ends beyond the right edge"
    for (one, first), (other, second) in combinations(places, 2):
        if _overlap(first, second):
            yield f"{one}: it lies over {other}"


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


def _of_queries(dashboard: Dashboard, series: Series) -> Iterator[str]:
    for title, text in _all_queries(dashboard):
        names = set(_METRIC.findall(text))
        yield from (f"{title}: nobody exposes {name}" for name in sorted(names - series.keys()))
        for found in _SELECTOR.finditer(text):
            known = series.get(found["metric"], frozenset()) | _OF_TARGETS
            for label in set(_MATCHER.findall(found["matchers"] or "")) - known:
                yield f"{title}: {found['metric']} has no label {label}"
        known = _OF_TARGETS.union(*(series.get(name, ()) for name in names))
        for label in sorted(_grouped(text) - known):
            yield f"{title}: none of its series has the label {label}"
        if any(name.endswith(("_total", "_bucket", "_sum", "_count")) for name in names) and "_job_" not in text:
            yield from () if "rate(" in text or "increase(" in text else (f"{title}: a counter without its rate",)


def _grouped(text: str) -> set[str]:
    return {label.strip() for labels in _GROUPING.findall(text) for label in labels.split(",") if label.strip()}


def _queries(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    yield from ((found["name"], found["expr"]) for found in dashboard["annotations"]["list"] if "expr" in found)


def _all_queries(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    """All queries including those of variables, which are written as a grouping."""
    yield from _queries(dashboard)
    for found in dashboard["templating"]["list"][1:]:
        asked = _LABEL_VALUES.fullmatch(found["query"]["query"])
        if asked is not None:
            yield found["name"], f"count by ({asked['label']}) ({asked['selector']})"
