"""A real Prometheus for tests: where it runs, what it scrapes in the words of a cluster's monitors, what it answers."""

from prometheusbed.api import Api, Series
from prometheusbed.server import Prometheus, unavailable

__all__ = ["Api", "Prometheus", "Series", "unavailable"]
