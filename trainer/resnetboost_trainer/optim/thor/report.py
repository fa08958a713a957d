"""What THOR reports about an update of its curvature, and how metrics.csv and Prometheus show it."""

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory

# What an update does with a layer.
DECISIONS = ("updated", "kept", "stopped", "failed")


class CurvatureUpdate(msgspec.Struct, frozen=True):
    """What a candidate update did, as numbers of layers. `failed` ones were due and keep their old inverses.

    `damping` is that of the updated layers; in all other inverses it is within `trace_rule.DAMPING_WITHIN` of it, but
    for failed layers and those whose trace was not finite. `stopped` layers were skipped because they are stopped.
    """

    damping: float
    seconds: float
    updated: int
    kept: int
    stopped: int
    failed: int


class CurvatureMetrics(AlgorithmMetrics):
    """Series and columns of curvature updates."""

    REPORT = CurvatureUpdate
    COLUMNS = ("damping", "thor_update_seconds", *(f"layers_{decision}" for decision in DECISIONS))

    def __init__(self, series: SeriesFactory) -> None:
        self.seconds = series.histogram("thor_update_seconds", "An update of the curvature.")
        self.damping = series.gauge("thor_damping", "Damping of the last update.")
        text = "Layers by what the last update of the curvature did with them, the same on every rank."
        self.layers = series.gauges("decision", DECISIONS, "thor_layers", text)
        text = "Layers updated, kept and failed by all updates of the curvature, the same on every rank."
        events = tuple(decision for decision in DECISIONS if decision != "stopped")  # being stopped is no event
        self.decisions = series.counters("decision", events, "thor_layer_decisions", text)

    @staticmethod
    def applies(config: Config) -> bool:
        """As `AlgorithmMetrics` says."""
        return config.thor is not None

    def observe(self, report: CurvatureUpdate, compiled: bool) -> None:
        """As `AlgorithmMetrics` says."""
        if not compiled:
            self.seconds.observe(report.seconds)
        self.damping.set(report.damping)
        for decision, layers in self.layers.items():
            layers.set(getattr(report, decision))
        for decision, count in self.decisions.items():
            count.inc(getattr(report, decision))

    @staticmethod
    def row(report: CurvatureUpdate) -> Row:
        """As `AlgorithmMetrics` says."""
        counts = {f"layers_{decision}": getattr(report, decision) for decision in DECISIONS}
        return {"damping": report.damping, "thor_update_seconds": report.seconds} | counts
