"""All metrics that operator and trainer expose, from their own registries: name, kind, labels and help."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from resnetboost_operator.controller.job_series import FAMILIES
from resnetboost_operator.controller.metrics import Metrics as OperatorMetrics
from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.prometheus import Metrics as TrainerMetrics
from resnetboost_trainer.optim import registry
from support.trainerconfig import GOOD, THOR

JOB = frozenset({"job_name", "job_namespace"})
# Labels of job series besides the job's name; a test compares them with the exposed ones.
OF_JOBS = {
    "info": {"device_type", "model", "dataset"},
    "phase": {"phase"},
    "stage_info": {"stage", "algorithm"},
    "waiting": {"reason"},
    "failed": {"reason"},
    "ranks": {"state"},
    "recent_attempts": {"reason"},
    "attempt_end_timestamp_seconds": {"reason"},
    "roll_back_timestamp_seconds": {"stage"},
    "lost_device_seconds_total": {"reason", "failure"},
}
_PARTS = {"histogram": ("_bucket", "_sum", "_count")}
_ALGORITHMS: dict[str, Any] = {
    "ema": {"decay": 0.999},
    "thor": THOR,
    "adasum": {"reduce": "Delta", "ranksPerNode": 1},
    "pca": {
        "components": 4,
        "solver": "BFGS",
        "lineSearch": {"contraction": 0.5, "sufficientDecrease": 0.4, "maxTrials": 9},
        "residual": {"momentum": 0.9, "learningRate": 0.001},
    },
    "snapshots": {"everyEpochs": 1, "from": 0, "keep": 5},
    "preflight": {},
    "checkpoint": {"best": {}},
    "gradientNoise": True,
}


class Metric(NamedTuple):
    """One metric family; a counter's name includes `_total`."""

    name: str
    kind: str
    labels: frozenset[str]
    help: str

    @property
    def series(self) -> dict[str, frozenset[str]]:
        """Labels by the series names that queries use."""
        parts = _PARTS.get(self.kind, ("",))
        return {self.name + part: self.labels | ({"le"} if part == "_bucket" else set()) for part in parts}


def operator() -> tuple[Metric, ...]:
    """Metrics of the operator, of jobs, and of its process."""
    metrics = OperatorMetrics()
    metrics.watch_phases(lambda: ["Running"])
    metrics.watch_nodes(lambda: {"node-a": 1.0})
    jobs = (
        Metric(family.name, family.kind, JOB | _of_job(family.name), family.help.rstrip(".")) for family in FAMILIES
    )
    return (*_registered(metrics.registry), *jobs)


def trainer() -> tuple[Metric, ...]:
    """Metrics of a rank in a stage with every feature enabled."""
    config = msgspec.convert(GOOD | _ALGORITHMS, Config)
    metrics = TrainerMetrics(config, 0, "GEMM", registry.METRICS)
    metrics.tracking(("mlflow",))
    return tuple(_registered(metrics.registry))


def _of_job(name: str) -> frozenset[str]:
    return frozenset(OF_JOBS.get(name.removeprefix("resnetboost_job_"), ()))


def _registered(registry: CollectorRegistry) -> Iterator[Metric]:
    wrapped = [found for found in registry._collector_to_names if isinstance(found, MetricWrapperBase)]
    named = {found._name: frozenset(found._labelnames) for found in wrapped}
    for family in registry.collect():
        told = frozenset(label for sample in family.samples for label in sample.labels if label != "le")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield Metric(name, family.type, named.get(family.name, told), family.documentation.rstrip("."))
