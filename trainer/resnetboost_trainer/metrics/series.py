"""Creates the Prometheus series of one rank: prefix `resnetboost_`, base units, the labels of job, stage and rank."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

LABELS = ("job_name", "job_namespace", "stage", "rank")
# From a millisecond (a collective among threads) to minutes (a first step that compiles), factor 2 to 2.5.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)

# Otherwise each counter and histogram has a second series with the time of its creation, which nobody queries.
disable_created_metrics()


class LateGauge:
    """A gauge that is exposed only while it has a value: before, a loss of 0 would be wrong."""

    def __init__(self, gauge: Gauge, labels: tuple[str, ...]) -> None:
        self._gauge, self._labels = gauge, labels

    def set(self, value: float) -> None:
        """Set the value."""
        self._gauge.labels(*self._labels).set(value)

    def clear(self) -> None:
        """Expose it no longer, until it has a value again."""
        self._gauge.remove(*self._labels)


class LateHistogram:
    """A histogram that is exposed only after `begin`: ranks that never observe would have eighteen series of zeros."""

    def __init__(self, histogram: Histogram, labels: tuple[str, ...]) -> None:
        self._histogram, self._labels = histogram, labels

    def begin(self) -> None:
        """Expose it, starting from zero: otherwise rate() would miss the first sample."""
        self._histogram.labels(*self._labels)

    def observe(self, seconds: float) -> None:
        """Add a sample."""
        self._histogram.labels(*self._labels).observe(seconds)


class LabelledHistogram:
    """A histogram with one more label; each value of it is exposed from its first sample on."""

    def __init__(self, histogram: Histogram, labels: tuple[str, ...]) -> None:
        self._histogram, self._labels = histogram, labels

    def observe(self, label: str, seconds: float) -> None:
        """Add a sample."""
        self._histogram.labels(*self._labels, label).observe(seconds)


class SeriesFactory:
    """Creates series in a registry, with the values of `LABELS` filled in. Names come without the prefix."""

    def __init__(self, registry: CollectorRegistry, labels: tuple[str, ...]) -> None:
        self.registry, self.labels = registry, labels

    def gauge(self, name: str, text: str) -> LateGauge:
        """A gauge without a value."""
        return LateGauge(Gauge(f"resnetboost_{name}", text, LABELS, registry=self.registry), self.labels)

    def counter(self, name: str, text: str) -> Counter:
        """A counter at zero; `name` is without `_total`."""
        return Counter(f"resnetboost_{name}", text, LABELS, registry=self.registry).labels(*self.labels)

    def histogram(self, name: str, text: str) -> Histogram:
        """A histogram of seconds without samples."""
        return self._histogram(name, text).labels(*self.labels)

    def late_histogram(self, name: str, text: str) -> LateHistogram:
        """A histogram of seconds that is not exposed yet."""
        return LateHistogram(self._histogram(name, text), self.labels)

    def histogram_by(self, label: str, name: str, text: str) -> LabelledHistogram:
        """A histogram of seconds with one more label."""
        return LabelledHistogram(self._histogram(name, text, label), self.labels)

    def gauges(self, label: str, values: tuple[str, ...], name: str, text: str) -> dict[str, Gauge]:
        """A gauge for each of the values of one more label, at zero."""
        gauge = Gauge(f"resnetboost_{name}", text, (*LABELS, label), registry=self.registry)
        return {value: gauge.labels(*self.labels, value) for value in values}

    def counters(self, label: str, values: tuple[str, ...], name: str, text: str) -> dict[str, Counter]:
        """A counter for each of the values of one more label, at zero."""
        counter = Counter(f"resnetboost_{name}", text, (*LABELS, label), registry=self.registry)
        return {value: counter.labels(*self.labels, value) for value in values}

    def info(self, name: str, text: str, **labels: str) -> None:
        """A gauge of 1 with more labels."""
        info = Gauge(f"resnetboost_{name}", text, (*LABELS, *labels), registry=self.registry)
        info.labels(*self.labels, *labels.values()).set(1)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"resnetboost_{name}", text, (*LABELS, *labels), registry=self.registry, buckets=SECONDS)
