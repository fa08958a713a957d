"""Monitoring: whether the Prometheus operator reads the chart's monitors and rules."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_operator.cli.doctor.cluster.facts import MONITORING, Facts, Unknown, unknown

CHECK = "monitoring"


def check(facts: Facts) -> Iterator[Finding]:
    """Jobs run without it."""
    if isinstance(facts.served, Unknown):
        yield from unknown(CHECK, facts.served)
    elif facts.served[MONITORING]:
        yield findings.ok(CHECK, "the Prometheus operator is here")
    else:
        remedy = "let your Prometheus scrape /metrics of operator and rank 0, as in docs/monitoring.md"
        yield findings.warning(CHECK, "no Prometheus operator: monitors and alert rules have no reader", remedy)
