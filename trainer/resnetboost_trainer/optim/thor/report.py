"""Report of THOR's curvature updates, and its series in metrics.csv and Prometheus."""

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory

# Possible decisions of an update for a layer.
DECISIONS = ("updated", "kept", "stopped", "failed")


class CurvatureUpdate(msgspec.Struct, frozen=True):
    """Result of a candidate update, in numbers of layers; `failed` layers were due and keep their old inverses.

    `damping` is that of the updated layers; other inverses have one within `trace_rule.DAMPING_WITHIN` of it, except
    failed layers and those whose trace was not finite. `stopped` layers were skipped because they are stopped.
    """

    damping: float
    seconds: float
    updated: int
    kept: int
    stopped: int
    failed: int


class CurvatureMetrics(AlgorithmMetrics):
    """Prometheus series and metrics.csv columns of curvature updates."""

    REPORT = CurvatureUpdate
    COLUMNS = ("damping", "thor_update_seconds", *(f"layers_{decision}" for decision in DECISIONS))

    def __init__(self, series: SeriesFactory) -> None:
        self.seconds = series.histogram("thor_update_seconds", "An update of the curvature.")
        self.damping = series.gauge("thor_damping", "Damping of the last update.")
        text = "Layers by what the last update of the curvature did with them, the same on every rank."
        self.layers = series.gauges("decision", DECISIONS, "thor_layers", text)
        text = "Layers updated, kept and failed by all updates of the curvature, the same on every rank."
        events = tuple(decision for decision in DECISIONS if decision != "stopped")  # stopped is a state, not an event
        self.decisions = series.counters("decision", events, "thor_layer_decisions", text)

    @staticmethod
    def applies(config: Config) -> bool:
        """See `AlgorithmMetrics`."""
        return config.thor is not None

    def observe(self, report: CurvatureUpdate, compiled: bool) -> None:
        """See `AlgorithmMetrics`."""
        if not compiled:
            self.seconds.observe(report.seconds)
        self.damping.set(report.damping)
        for decision, layers in self.layers.items():
            layers.set(getattr(report, decision))
        for decision, count in self.decisions.items():
            count.inc(getattr(report, decision))

    @staticmethod
    def row(report: CurvatureUpdate) -> Row:
        """See `AlgorithmMetrics`."""
        counts = {f"layers_{decision}": getattr(report, decision) for decision in DECISIONS}
        return {"damping": report.damping, "thor_update_seconds": report.seconds} | counts
