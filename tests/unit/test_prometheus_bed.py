"""The Prometheus test bed's readers of monitors, rules and dashboards find everything in them."""

from pathlib import Path
from typing import Any

import pytest

from beds.prometheus import monitors
from beds.prometheus.dashboards import filled
from beds.prometheus.promql import compared


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a > 1", ["a"]),
        ("time() - a > bool 600", ["time() - a"]),
        ("(a / b) > 0.5 and on (job) c == 0", ["a / b", "c"]),
        ("a > ignoring (rank) group_left () 2 * b", ["a", "2 * b"]),
        ("(a > 1 or b < 2) unless c", ["a", "b", "c"]),
        ('a{reason="x > y and z"} == 1', ['a{reason="x > y and z"}']),
        ('absent(up{job="x"} == 1)', ['up{job="x"}']),
        ("max by (pod) (rate(a[5m])) > 60 * 15", ["max by (pod) (rate(a[5m]))"]),
        ("(a) / (b) < 1", ["(a) / (b)"]),
        ("max by (job) (a != a or abs(b) == Inf) * 2", ["a", "a", "abs(b)"]),
        ("((a > 1))", ["a"]),
        ("android > 1", ["android"]),
    ],
)
def test_series_that_a_rule_compares(expression: str, parts: list[str]) -> None:
    assert compared(expression) == parts


def test_variables_are_filled_in_however_they_are_written() -> None:
    query = 'rate(a{job="$job", stage=~"${stage:regex}"}[$__rate_interval])'
    assert filled(query, {"job": "x", "stage": ".*"}) == 'rate(a{job="x", stage=~".*"}[20s])'
    with pytest.raises(KeyError, match="rank"):
        filled('a{rank="$rank"}', {"job": "x"})


def pod_monitor(**endpoint: Any) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"a.b/c": "x"}}, "podMetricsEndpoints": [{"port": "metrics", **endpoint}]}
    return {"kind": "PodMonitor", "metadata": {"name": "trainers", "namespace": "system"}, "spec": spec}


def test_a_monitor_selects_by_label_and_port_in_its_own_namespace() -> None:
    (scrape,) = monitors.scrapes(pod_monitor(interval="5s"), Path("/found"))
    assert (scrape["scrape_interval"], scrape["metrics_path"]) == ("5s", "/metrics")
    kept = [(one["source_labels"], one["regex"]) for one in scrape["relabel_configs"] if one.get("action") == "keep"]
    label = ["__meta_kubernetes_pod_label_a_b_c", "__meta_kubernetes_pod_labelpresent_a_b_c"]
    place = (["__meta_kubernetes_namespace"], "system")
    assert kept == [place, (label, "(x);true"), (["__meta_kubernetes_pod_container_port_name"], "metrics")]


def test_a_field_that_would_be_ignored_is_an_error() -> None:
    with pytest.raises(ValueError, match="honorTimestamps"):
        monitors.scrapes(pod_monitor(honorTimestamps=False), Path("/found"))
