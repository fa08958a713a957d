"""A real Prometheus for tests: where it runs, what it scrapes in the words of a cluster's monitors, what it answers."""

from beds.prometheus.api import Api, Series
from beds.prometheus.server import Prometheus, unavailable

__all__ = ["Api", "Prometheus", "Series", "unavailable"]
