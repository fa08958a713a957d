"""The Prometheus test bed's readers of rules and dashboards find everything in them."""

import pytest

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
