"""All checks of a cluster, in the order of the report. A new one is one file and one line here."""

from collections.abc import Callable, Iterable, Iterator

from resnetboost_api.findings import Finding
from resnetboost_operator.cli.doctor.cluster import (
    definition,
    images,
    monitoring,
    nodes,
    operators,
    queues,
    rights,
    server,
    storage,
)
from resnetboost_operator.cli.doctor.cluster.facts import Facts

CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    server.check,
    definition.check,
    operators.check,
    rights.check,
    nodes.check,
    images.check,
    queues.check,
    storage.check,
    monitoring.check,
)


def examine(facts: Facts) -> Iterator[Finding]:
    """All findings."""
    for check in CHECKS:
        yield from check(facts)
