"""Client of Prometheus' HTTP API; ignores proxies of the environment."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from beds.cluster.errors import ClusterError

_TIMEOUT_SECONDS = 30


class Series(NamedTuple):
    """Labels, and values by time (s since the epoch) without NaN, which a ratio of two zeros has."""

    labels: dict[str, str]
    points: list[tuple[float, float]]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


class Api:
    """Queries. All raise `ClusterError` with Prometheus' error message, and `OSError` where there is no Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def is_ready(self) -> bool:
        """Whether Prometheus is ready for queries."""
        try:
            with self._open(f"{self.url}/-/ready", timeout=_TIMEOUT_SECONDS):
                return True
        except OSError:
            return False

    def reload(self) -> None:
        """Have it read its configuration again; returns once it has."""
        try:
            self._open(urllib.request.Request(f"{self.url}/-/reload", method="POST"), timeout=_TIMEOUT_SECONDS).close()
        except urllib.error.HTTPError as error:
            with error:
                raise ClusterError(error.read().decode()) from None

    def instant(self, query: str, when: float | None = None) -> list[Series]:
        """Result of a query at a time, by default now."""
        data = self._ask("query", query=query, **({} if when is None else {"time": repr(when)}))
        if data["resultType"] == "scalar":
            return _numbers([{"metric": {}, "values": [data["result"]]}])
        return _numbers([{"metric": one["metric"], "values": [one["value"]]} for one in data["result"]])

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """Result of a query over a range of time."""
        data = self._ask("query_range", query=query, start=repr(start), end=repr(end), step=repr(step))
        return _numbers(data["result"])

    def label_values(self, label: str, selector: str) -> list[str]:
        """All values of a label on the series of a selector."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Active scrape targets."""
        found: list[dict[str, Any]] = self._ask("targets", state="active")["activeTargets"]
        return found

    def up(self) -> list[dict[str, str]]:
        """Labels of the targets whose last scrape succeeded."""
        return [target["labels"] for target in self.targets() if target["health"] == "up"]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health and their alerts."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self, name: str) -> dict[str, dict[str, str]]:
        """Active alerts of a rule: their labels, by state."""
        found = [alert for rule in self.rules() if rule["name"] == name for alert in rule.get("alerts", ())]
        return {alert["state"]: alert["labels"] for alert in found}

    def _ask(self, what: str, **parameters: str) -> Any:
        body = urllib.parse.urlencode(parameters)
        try:
            with self._open(f"{self.url}/api/v1/{what}?{body}", timeout=_TIMEOUT_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ClusterError(f"{what} {parameters}: {json.load(error)['error']}") from None


def _numbers(found: list[dict[str, Any]]) -> list[Series]:
    """Series that have any values."""
    told = [Series(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in found]
    kept = [Series(one.labels, [point for point in one.points if not math.isnan(point[1])]) for one in told]
    return [one for one in kept if one.points]
