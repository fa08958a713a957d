"""Series of each job, made from the jobs there are whenever Prometheus asks, so that none outlives its job.

They are written as text by ourselves: prometheus-client takes 50 µs a sample, which for a thousand jobs is a second in
which the operator would do nothing else. A job that did not change since the last time costs no more than its copy.
"""

from collections.abc import Callable, Iterable, Mapping

from resnetboost_operator.controller.job_series import FAMILIES, Family
from resnetboost_operator.controller.jobs import JobRecord


class JobMetrics:
    """The text of all families; `jobs` tells the jobs to speak of, none where another operator does."""

    def __init__(self, jobs: Callable[[], Iterable[JobRecord]]) -> None:
        self._jobs = jobs
        self._told: dict[str, tuple[JobRecord, tuple[str, ...]]] = {}

    def text(self) -> bytes:
        """In Prometheus' text format."""
        self._told = {record.uid: (record, self._lines(record)) for record in self._jobs()}
        blocks = ([lines[index] for _, lines in self._told.values()] for index in range(len(FAMILIES)))
        return "".join(_head(family) + "".join(block) for family, block in zip(FAMILIES, blocks, strict=True)).encode()

    def _lines(self, record: JobRecord) -> tuple[str, ...]:
        before = self._told.get(record.uid)
        return before[1] if before is not None and before[0] is record else _text(record)


def _text(record: JobRecord) -> tuple[str, ...]:
    """The job's lines of each family."""
    job = _pairs({"job_name": record.name, "job_namespace": record.namespace})
    return tuple(_family_text(family, record, job) for family in FAMILIES)


def _family_text(family: Family, record: JobRecord, job: str) -> str:
    found = family.samples(record)
    return "".join(
        f"{family.name}{{{','.join(filter(None, (job, _pairs(labels))))}}} {float(value)!r}\n"
        for labels, value in found
    )


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """Reasons may come from kubelet and from admission webhooks."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _head(family: Family) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
