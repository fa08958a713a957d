"""A real Prometheus for tests: server, scrape configuration from the chart's monitors, and queries."""

from beds.prometheus.api import Api, Series
from beds.prometheus.server import Prometheus, unavailable

__all__ = ["Api", "Prometheus", "Series", "unavailable"]
