"""Monitoring end to end: a real Prometheus scrapes real runs and the operator; dashboards and alerts have data.

The real Prometheus operator turns the chart's monitors and rules into its configuration. Every query of every
dashboard, and every series that a rule compares, must have had data while the fleet ran.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from beds.cluster.helm import CHART
from beds.deviceplugin import ASCEND, DevicePlugin
from beds.kubelet import Bed, operatorpod
from beds.kubelet.onnode import OnNode
from beds.operator import Space
from beds.operator.namespace import JOB
from beds.operator.wait import eventually
from beds.prometheus import Prometheus, fleet
from beds.prometheus.dashboards import Dashboard, choices, filled
from beds.prometheus.operator import PrometheusOperator
from beds.prometheus.picture import Moment, draw
from beds.prometheus.promql import compared

pytestmark = [pytest.mark.slow, pytest.mark.long]

DASHBOARDS = [Dashboard(path) for path in sorted(CHART.glob("dashboards/*.json"))]
MONITORS = (operatorpod.RELEASE, f"{operatorpod.RELEASE}-trainers")
FLEET = "fleet"
STEP_SECONDS = 2.0
PATIENCE_SECONDS = 420.0
SOON_SECONDS = 60.0
LEADING = "resnetboost_operator_leading"
DOWN = "ResNetBoostOperatorDown"


class Watched(NamedTuple):
    """A fleet that ran from `start` to `end` while Prometheus scraped it."""

    prometheus: Prometheus
    space: Space
    start: float
    end: float

    def had(self, query: str) -> bool:
        """Whether there was data at any time."""
        return bool(self.prometheus.api.range(query, self.start, self.end, STEP_SECONDS))


ALERTS = {
    ("ResNetBoostJobStuckPending", "no-devices", "warning"),
    ("ResNetBoostRankTableNotReady", "no-rank-table", "warning"),
    ("ResNetBoostJobHung", "hangs", "warning"),
    ("ResNetBoostLossNotFinite", "diverges", "warning"),
    ("ResNetBoostCheckpointFailing", "disk-full", "critical"),
}
# Alerts that only their cause may raise, however long they must last.
TELLING = {name for name, _, _ in ALERTS} - {"ResNetBoostJobStuckPending"}
HEALTHY = {"digits-thor", "digits-adasum"}
# Series of queues: the node has no Kueue.
QUEUES = re.compile(r"resnetboost_(job_queued|operator_(admission|admissions|evictions))_")


class Picture(NamedTuple):
    """A dashboard's picture in the docs: its panels above a row, with these values of its variables."""

    dashboard: str
    lowest: int
    choice: dict[str, str]


PICTURES = [Picture("fleet", 30, {}), Picture("job", 34, {"job": "digits"})]


_RESTARTS = 'max by (job_namespace, job_name) (resnetboost_job_restarts_total{job_name="digits"})[10m:1m]'
RESTARTS_BEFORE, RESTARTED = f"count_over_time({_RESTARTS})", f"increase({_RESTARTS}) > 0"


@pytest.fixture(scope="module")
def watched(
    bed: Bed, operator: None, prometheus_operator: PrometheusOperator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    bed.plane.kubectl("create", "namespace", FLEET)
    space = Space(bed.plane, FLEET, PATIENCE_SECONDS)
    written = prometheus_operator.until_written(*MONITORS)
    rules = hurried(written.rules, tmp_path_factory.mktemp("rules"))
    with (
        DevicePlugin(bed.plugins, ASCEND.resource, ASCEND.devices(2), ASCEND.give),
        Prometheus(written.configuration, rules, OnNode(bed.sandbox), prometheus_operator.prometheus) as prometheus,
    ):
        start = time.time()
        fleet.start(bed, space)
        # Rules and panels about restarts have a resolution of a minute: one sample before the restart, one after it.
        eventually(lambda: prometheus.api.instant(RESTARTS_BEFORE), bool, "restarts were looked at", PATIENCE_SECONDS)
        fleet.play(bed, space)
        eventually(lambda: prometheus.api.instant(RESTARTED), bool, "a restart was looked at", PATIENCE_SECONDS)
        yield Watched(prometheus, space, start, time.time())
        space.clear()


def hurried(rules: dict[str, str], folder: Path) -> list[Path]:
    """Files of rules with `for` reduced to a second."""
    for name, text in rules.items():
        (folder / name).write_text(re.sub(r"^(\s+for:) \S+$", r"\1 1s", text, flags=re.MULTILINE))
    return sorted(folder.iterdir())


def sum_of(watched: Watched, query: str) -> float:
    """Sum over all current series."""
    return sum(series.last for series in watched.prometheus.api.instant(query))


@contextlib.contextmanager
def operators(bed: Bed, watched: Watched, count: int) -> Iterator[None]:
    """Run that many operators, all scraped by Prometheus; afterwards one, which leads."""
    deployment = (f"deployment/{operatorpod.RELEASE}", f"--namespace={operatorpod.NAMESPACE}")

    def scale(wanted: int) -> None:
        bed.plane.kubectl("scale", *deployment, f"--replicas={wanted}")
        until(watched, lambda: sum_of(watched, f"count({LEADING})") == wanted, f"{wanted} operators")

    scale(count)
    try:
        yield
    finally:
        scale(1)
        until(watched, lambda: sum_of(watched, LEADING) == 1, "a leader")


def until(watched: Watched, condition: Callable[[], bool], what: str) -> None:
    watched.prometheus.processes.wait_until(condition, what, SOON_SECONDS)


def test_all_ranks_of_all_attempts_and_stages_are_scraped(watched: Watched) -> None:
    found = watched.prometheus.api.range(
        'resnetboost_step{job_name="digits"}', watched.start, watched.end, STEP_SECONDS
    )
    ranks = {(one.labels["stage"], one.labels["rank"], one.labels["pod"]) for one in found}
    assert ranks == {
        (stage, str(rank), f"digits-{stage}-{attempt}-{rank}")
        for stage, attempt in (("base", 0), ("base", 1), ("fine", 2))
        for rank in (0, 1)
    }


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_no_panel_stays_empty(watched: Watched, dashboard: Dashboard) -> None:
    ways = choices(dashboard, watched.prometheus.api)
    assert ways, f"nothing can be chosen for {', '.join(variable.name for variable in dashboard.variables)}"
    empty = [
        f"{query.title}: {query.text}"
        for query in dashboard.queries
        if not QUEUES.search(query.text) and not any(watched.had(filled(query.text, way)) for way in ways)
    ]
    assert not empty, "without data:\n" + "\n".join(empty)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.dashboard)
def test_a_picture_of_a_dashboard_is_small(watched: Watched, picture: Picture, tmp_path: Path) -> None:
    folder = Path(os.environ.get("DASHBOARD_PICTURES") or tmp_path)  # `make pictures`
    file = folder / f"dashboard-{picture.dashboard}.png"
    (dashboard,) = (one for one in DASHBOARDS if one.name == picture.dashboard)
    api = watched.prometheus.api
    way = next(way for way in choices(dashboard, api) if picture.choice.items() <= way.items())
    empty = draw(dashboard, api, Moment(watched.start, watched.end, STEP_SECONDS, way), file, picture.lowest)
    assert not empty, "axes without data"
    assert 10_000 < file.stat().st_size < 200_000


def test_what_rules_compare_is_there(watched: Watched) -> None:
    rules = watched.prometheus.api.rules()
    assert rules
    parts = [(rule["name"], part) for rule in rules for part in compared(rule["query"])]
    empty = [f"{name}: {part}" for name, part in parts if not QUEUES.search(part) and not watched.had(part)]
    assert not empty, "without data:\n" + "\n".join(empty)


def test_alerts_name_the_jobs_they_are_for(watched: Watched) -> None:
    query = 'ALERTS{alertstate="firing"}'
    found = [one.labels for one in watched.prometheus.api.range(query, watched.start, watched.end, STEP_SECONDS)]
    assert {(one["alertname"], one.get("job_name"), one["severity"]) for one in found} >= ALERTS
    assert not TELLING & {one["alertname"] for one in found if one.get("job_name") in HEALTHY}


def test_rules_can_be_evaluated(watched: Watched) -> None:
    rules = watched.prometheus.api.rules()
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_series_of_a_deleted_job_go(watched: Watched) -> None:
    series = f'count({{job_namespace="{FLEET}", job_name="no-devices"}})'
    assert sum_of(watched, series) > 0
    watched.space.delete(JOB, "no-devices")
    until(watched, lambda: sum_of(watched, series) == 0, "the end of its series")


def test_two_operators_do_not_count_a_job_twice(bed: Bed, watched: Watched) -> None:
    with operators(bed, watched, 2):
        assert sum_of(watched, LEADING) == 1
        assert sum_of(watched, f'resnetboost_job_phase{{job_namespace="{FLEET}"}}') == len(watched.space.all(JOB))


def test_it_alerts_while_there_is_no_operator(bed: Bed, watched: Watched) -> None:
    def alerts() -> bool:
        return "firing" in watched.prometheus.api.alerts(DOWN)

    assert not alerts()
    with operators(bed, watched, 0):
        until(watched, alerts, "an alert")
    until(watched, lambda: not alerts(), "its end")
