"""Report of a step within the principal subspace, and its series in metrics.csv and Prometheus."""

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory

# Outcomes of a line search.
OUTCOMES = ("full", "shortened", "rejected")


class SubspaceStep(msgspec.Struct, frozen=True):
    """A step within the subspace, the same on every rank except `seconds`.

    `length` is the accepted fraction of the direction, 0 if every trial was rejected; `evaluations` counts evaluations
    of the loss; `share` is the part of the squared gradient within the subspace; `explained` is the part of the
    snapshots' variance that the components explain.
    """

    length: float
    evaluations: int
    share: float
    explained: float
    seconds: float

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        return "full" if self.length == 1 else "shortened" if self.length > 0 else "rejected"


class SubspaceMetrics(AlgorithmMetrics):
    """Prometheus series and metrics.csv columns of steps within the subspace."""

    REPORT = SubspaceStep
    COLUMNS = (
        "pca_explained_variance",
        "pca_step_length",
        "pca_evaluations",
        "pca_gradient_share",
        "pca_seconds",
    )

    def __init__(self, series: SeriesFactory) -> None:
        text = "Share of the snapshots' variance that the components explain."
        self.explained_variance = series.gauge("pca_explained_variance_ratio", text)
        text = "Accepted length of the last step's direction: 1 is all of it, 0 none."
        self.step_length = series.gauge("pca_step_length", text)
        text = "Share of the squared gradient of the last step that lies within the subspace."
        self.gradient_share = series.gauge("pca_gradient_share_ratio", text)
        self.seconds = series.histogram("pca_seconds", "Projection, line search and step of this rank.")
        self.evaluations = series.counter("pca_evaluations", "Evaluations of the loss by line searches.")
        text = "Steps by what the line search did with their direction."
        self.steps = series.counters("outcome", OUTCOMES, "pca_steps", text)

    @staticmethod
    def applies(config: Config) -> bool:
        """See `AlgorithmMetrics`."""
        return config.pca is not None

    def observe(self, report: SubspaceStep, compiled: bool) -> None:
        """See `AlgorithmMetrics`."""
        if not compiled:
            self.seconds.observe(report.seconds)
        self.explained_variance.set(report.explained)
        self.step_length.set(report.length)
        self.gradient_share.set(report.share)
        self.evaluations.inc(report.evaluations)
        self.steps[report.outcome].inc()

    @staticmethod
    def row(report: SubspaceStep) -> Row:
        """See `AlgorithmMetrics`."""
        return {
            "pca_explained_variance": report.explained,
            "pca_step_length": report.length,
            "pca_evaluations": report.evaluations,
            "pca_gradient_share": report.share,
            "pca_seconds": report.seconds,
        }
