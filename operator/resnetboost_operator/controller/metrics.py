"""The operator's own metrics. Those of jobs are appended (see `job_metrics`)."""

import itertools
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from resnetboost_api import failures
from resnetboost_api.status import Status
from resnetboost_operator.controller import admissions
from resnetboost_operator.controller.admissions import Admission, Eviction

PREFIX = "resnetboost_operator"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Without the `_created` series of each counter and histogram.
disable_created_metrics()

# Series of nodes that failed: how many at most, and from how many points on.
MOST_NODES = 100
LEAST_POINTS = 0.1
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_WAITS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 168 * 3600)
_SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """Metrics of the operator, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._appended: list[Callable[[], bytes]] = []
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_seconds", "Duration of one pass of a job.", buckets=_FAST, registry=self.registry
        )
        self.queue_depth = Gauge(
            f"{PREFIX}_queue_depth", "Jobs that are due for a pass and have none yet.", registry=self.registry
        )
        self.queue_wait_seconds = Histogram(
            f"{PREFIX}_queue_wait_seconds", "Time from due to begun.", buckets=_FAST, registry=self.registry
        )
        self.failures = Counter(
            f"{PREFIX}_reconcile_failures", "Passes that failed and are tried again.", registry=self.registry
        )
        self.requests = Counter(
            f"{PREFIX}_api_requests",
            "Requests to the API server; code is 'error' where none came back.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.gang_creation_seconds = Histogram(
            f"{PREFIX}_gang_creation_seconds",
            "From the first request for an attempt's objects until all its pods exist.",
            buckets=_SLOW,
            registry=self.registry,
        )
        self.restarts = Counter(
            f"{PREFIX}_restarts", "Restarts of gangs by failure class.", ["reason"], registry=self.registry
        )
        for verdict in failures.RESTARTING:  # increase() does not see the first restart of a series that begins with it
            self.restarts.labels(verdict.name)
        self.admissions = Counter(
            f"{PREFIX}_admissions", "Jobs that their queue let run, each time it did.", registry=self.registry
        )
        self.admission_wait_seconds = Histogram(
            f"{PREFIX}_admission_wait_seconds",
            "From when a job began to wait for its queue until it was admitted.",
            buckets=_WAITS,
            registry=self.registry,
        )
        self.evictions = Counter(
            f"{PREFIX}_evictions", "Jobs that lost their queue's admission, by why.", ["reason"], registry=self.registry
        )
        for reason in admissions.REASONS:
            self.evictions.labels(reason)
        self.leading = Gauge(f"{PREFIX}_leading", "1 while this process plans and writes.", registry=self.registry)

    def count_request(self, verb: str, resource: str, code: str) -> None:
        """Count one request to the API server; `code` is 'error' if no response arrived."""
        self.requests.labels(verb, resource, code).inc()

    def count_admission(self, before: Status, after: Status) -> None:
        """Count what the queue did to a job between two of its statuses."""
        match admissions.change(before, after):
            case Admission(queued_seconds):
                self.admissions.inc()
                self.admission_wait_seconds.observe(queued_seconds)
            case Eviction(reason):
                self.evictions.labels(reason).inc()

    def watch_phases(self, phases: Callable[[], Iterable[str]]) -> None:
        """Count jobs by phase at each scrape; `phases` returns the phase of each job."""
        self.registry.register(_Phases(phases))

    def watch_nodes(self, points: Callable[[], Mapping[str, float]]) -> None:
        """Report the points of nodes at each scrape; `points` returns them by node, the highest first."""
        self.registry.register(_NodePoints(points))

    def append(self, text: Callable[[], bytes]) -> None:
        """Append this text, in Prometheus' format, to each scrape."""
        self._appended.append(text)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return b"".join((generate_latest(self.registry), *(text() for text in self._appended)))


class _NodePoints(Collector):
    """Points of the nodes that failed most, computed at each scrape, so that a series ends when its points decay."""

    def __init__(self, points: Callable[[], Mapping[str, float]]) -> None:
        self._points = points

    def collect(self) -> Iterator[Metric]:
        """One series for each node with points to speak of, at most MOST_NODES."""
        family = GaugeMetricFamily(
            f"{PREFIX}_node_failure_points",
            "Failures of all jobs that are blamed on a node; they lose half of their weight every hour.",
            labels=["node_name"],
        )
        worst = itertools.islice(self._points().items(), MOST_NODES)
        for node, points in worst:
            if points >= LEAST_POINTS:
                family.add_metric([node], points)
        yield family


class _Phases(Collector):
    """Jobs by phase, counted at each scrape, so that no series outlives its jobs."""

    def __init__(self, phases: Callable[[], Iterable[str]]) -> None:
        self._phases = phases

    def collect(self) -> Iterator[Metric]:
        """One series for each phase that has jobs."""
        family = GaugeMetricFamily(f"{PREFIX}_jobs", "ResNetBoostJobs by phase.", labels=["phase"])
        for phase, count in sorted(Tally(self._phases()).items()):
            family.add_metric([phase], count)
        yield family
