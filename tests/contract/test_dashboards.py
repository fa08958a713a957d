"""Dashboards, alert rules and docs name exactly the metrics that operator and trainer expose."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_api.status import Attempt, Condition, Goodput, Loss, Progress, Status
from resnetboost_operator import lost_time
from resnetboost_operator.controller.job_series import FAMILIES
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.runs import report
from support import dashboardlint, exposedmetrics
from support.exposedmetrics import Metric
from support.simulation import job

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "charts" / "resnetboost" / "dashboards").glob("*.json"))
RULES = sorted((ROOT / "charts" / "resnetboost" / "rules").glob("*.yaml"))
DOCUMENT = ROOT / "docs" / "monitoring.md"
METRICS = (*exposedmetrics.operator(), *exposedmetrics.trainer())
SERIES = {name: labels for metric in METRICS for name, labels in metric.series.items()}
TIME = "2026-01-01T00:00:00Z"
OURS = tuple(metric for metric in METRICS if metric.name.startswith("resnetboost_"))


def dashboard(name: str) -> Any:
    return json.loads((ROOT / "charts" / "resnetboost" / "dashboards" / f"{name}.json").read_text())


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_no_problems(path: Path) -> None:
    found = json.loads(path.read_text())
    assert dashboardlint.problems(found, SERIES) == []
    assert found["uid"] == f"resnetboost-{path.stem}"
    assert path.read_text() == json.dumps(found, indent=2, ensure_ascii=False) + "\n", "a diff must be readable"


@pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)
def test_every_metric_is_in_a_dashboard_or_alert(metric: Metric) -> None:
    shown = {name for path in DASHBOARDS for name in dashboardlint.metrics(json.loads(path.read_text()))}
    asked = " ".join(path.read_text() for path in RULES)
    assert any(name in shown or re.search(rf"\b{name}\b", asked) for name in metric.series)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rules_use_only_exposed_metrics(path: Path) -> None:
    rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        names = set(re.findall(r"[\w:]*\bresnetboost_[\w:]+", rule["expr"]))
        assert names and names <= SERIES.keys() | recorded, rule


def test_the_docs_list_every_metric_with_labels_and_help() -> None:
    rows = re.findall(r"^\| `(resnetboost_\w+)` \| (\w+) \|(.*?)\| (.*?) \|$", DOCUMENT.read_text(), re.MULTILINE)
    told = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), words) for name, kind, labels, words in rows}
    assert len(told) == len(rows)
    common = exposedmetrics.JOB | {"stage", "rank"}
    for metric in OURS:
        left_out = exposedmetrics.JOB if metric.name.startswith("resnetboost_job_") else common
        assert told.get(metric.name) == (metric.kind, metric.labels - left_out, metric.help), metric.name
    assert told.keys() == {metric.name for metric in OURS}


def test_labels_of_job_series_match_the_linters() -> None:
    """A job with every feature at once, which no real job has, must expose exactly these labels."""
    wanted = job(device={"type": "Ascend", "count": 2})
    conditions = (
        Condition("Admitted", "False", "C", "", TIME),
        Condition("Failed", "True", "A", "", TIME),
        Condition("Running", "False", "B", "", TIME),
    )
    status = Status(
        phase="Queued",
        stage="base",
        conditions=conditions,
        attempts=(Attempt(attempt=0, stage="base", reason="Killed", end_time=TIME, rolled_back=True),),
        goodput=Goodput(attempt_seconds=10, lost=(Loss("Killed", 20),)),
        progress=Progress(stage="base", heartbeat=1, heartbeat_time=TIME),
    )
    record = JobRecord("u", "default", "digits", 1, False, wanted, status, problem="", created=TIME)
    for family in FAMILIES:
        told = [set(labels) for labels, _ in family.samples(record)]
        assert told, f"{family.name} tells nothing"
        assert told == [exposedmetrics.OF_JOBS.get(family.name.removeprefix("resnetboost_job_"), set())] * len(told)


def test_each_cause_of_lost_time_has_one_colour_in_the_dashboard_and_in_reports() -> None:
    panel = next(found for found in dashboard("job")["panels"] if found["type"] == "barchart")
    assert panel["options"]["stacking"] == "normal"
    colours = {
        override["matcher"]["options"]: override["properties"][0]["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
    }
    assert colours.keys() == {*lost_time.CAUSES}
    assert len({*colours.values()}) == len(colours)
    assert colours.items() <= report.COLOURS.items()


def _first_panel(found: Any) -> Any:
    return next(panel for panel in found["panels"] if panel["type"] != "row")


def _with_query(text: str) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        _first_panel(found)["targets"][0]["expr"] = text

    return change


def _with_value_for_nothing(panel: Any) -> None:
    panel["fieldConfig"]["defaults"]["noValue"] = "0"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_with_query("sum(resnetboost_job_phases)"), "nobody exposes resnetboost_job_phases"),
        (_with_query('resnetboost_job_phase{rank="0"}'), "resnetboost_job_phase has no label rank"),
        (_with_query("sum by (colour) (resnetboost_loss)"), "none of its series has the label colour"),
        (_with_query('resnetboost_loss{stage="$algorithm"}'), "there is no variable algorithm"),
        (_with_query("sum(resnetboost_images_total)"), "a counter without its rate"),
        (lambda found: _first_panel(found).pop("description"), "no description"),
        (lambda found: _first_panel(found)["fieldConfig"]["defaults"].pop("unit"), "no unit"),
        (lambda found: _first_panel(found).update(datasource={"uid": "prom-1"}), "a datasource of its own"),
        (lambda found: _first_panel(found)["gridPos"].update(w=20), "it lies over"),
        (lambda found: _with_value_for_nothing(found["panels"][1]), "ask instantly"),
        (lambda found: found["panels"][1].update(titel="Steps"), "panels[1].titel: Grafana has no such field"),
        (
            lambda found: _first_panel(found)["targets"][0].update(legend="a"),
            "targets[0].legend: Grafana has no such field",
        ),
        (lambda found: found["panels"][1].update(id=1), "two panels have one id"),
        (lambda found: found.update(uid="a8Xb"), "its uid is a8Xb"),
        (lambda found: found.update(__inputs=[]), "exported for one Grafana"),
    ],
)
def test_the_linter_finds_problems(change: Callable[[Any], None], complaint: str) -> None:
    broken = copy.deepcopy(dashboard("job"))
    change(broken)
    assert any(complaint in problem for problem in dashboardlint.problems(broken, SERIES))
