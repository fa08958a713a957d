"""What a step within the principal subspace reports, and how metrics.csv and Prometheus show it."""

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory

# What a line search does with a direction.
OUTCOMES = ("full", "shortened", "rejected")


class SubspaceStep(msgspec.Struct, frozen=True):
    """A step within the subspace, the same on every rank but for the seconds.

    `length` is the accepted fraction of the direction, 0 when no trial was good enough; `evaluations` counts those of
    the loss; `share` is the part of the squared gradient that lies within the subspace; `explained` is the part of the
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
    """Series and columns of steps within the subspace."""

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
        """As `AlgorithmMetrics` says."""
        return config.pca is not None

    def observe(self, report: SubspaceStep, compiled: bool) -> None:
        """As `AlgorithmMetrics` says."""
        if not compiled:
            self.seconds.observe(report.seconds)
        self.explained_variance.set(report.explained)
        self.step_length.set(report.length)
        self.gradient_share.set(report.share)
        self.evaluations.inc(report.evaluations)
        self.steps[report.outcome].inc()

    @staticmethod
    def row(report: SubspaceStep) -> Row:
        """As `AlgorithmMetrics` says."""
        return {
            "pca_explained_variance": report.explained,
            "pca_step_length": report.length,
            "pca_evaluations": report.evaluations,
            "pca_gradient_share": report.share,
            "pca_seconds": report.seconds,
        }
