"""The interface through which an optimization algorithm adds columns to metrics.csv and series to Prometheus."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from resnetboost_trainer.config import Config
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory


class AlgorithmMetrics(ABC):
    """Series and columns of one algorithm, updated from its reports. `optim.registry` lists the subclasses."""

    REPORT: ClassVar[type]  # the type of the reports it reads
    COLUMNS: ClassVar[tuple[str, ...]]  # its columns of metrics.csv

    @abstractmethod
    def __init__(self, series: SeriesFactory) -> None:
        """Create the Prometheus series."""

    @staticmethod
    @abstractmethod
    def applies(config: Config) -> bool:
        """True if a stage exposes these series."""

    @abstractmethod
    def observe(self, report: Any, compiled: bool) -> None:
        """Update the series. Times of a step that `compiled` are no samples."""

    @staticmethod
    @abstractmethod
    def row(report: Any) -> Row:
        """Values of the columns."""
