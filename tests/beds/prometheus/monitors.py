"""Translates a PodMonitor or ServiceMonitor to Prometheus' scrape configuration.

Follows the Prometheus operator (pkg/prometheus/promcfg.go) for the fields below; any other field is an error.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from beds.prometheus.discovery import ENDPOINTS, PODS, sanitized

Manifest = dict[str, Any]

_FIELDS = {
    "spec": {"endpoints", "jobLabel", "namespaceSelector", "podMetricsEndpoints", "podTargetLabels", "selector"},
    "namespaceSelector": {"any", "matchNames"},
    "selector": {"matchExpressions", "matchLabels"},
    "endpoint": {
        *("honorLabels", "interval", "metricRelabelings", "path", "port", "relabelings", "scheme", "scrapeTimeout"),
    },
}


class _Kind(NamedTuple):
    """How a kind of monitor discovers targets."""

    file: str
    labels: str  # labels that the selector matches
    port: str
    endpoints: str


_KINDS = {
    "PodMonitor": _Kind(PODS, "pod", "__meta_kubernetes_pod_container_port_name", "podMetricsEndpoints"),
    "ServiceMonitor": _Kind(ENDPOINTS, "service", "__meta_kubernetes_endpoint_port_name", "endpoints"),
}


def scrapes(monitor: Manifest, folder: Path) -> list[Manifest]:
    """A scrape configuration per endpoint of a monitor, for targets in a folder. Raises `ValueError`."""
    kind, spec = _KINDS[monitor["kind"]], monitor["spec"]
    _check("spec", spec)
    found = []
    for number, endpoint in enumerate(spec[kind.endpoints]):
        _check("endpoint", endpoint)
        metadata = monitor["metadata"]
        scrape = {
            "job_name": f"{monitor['kind']}/{metadata['namespace']}/{metadata['name']}/{number}",
            "file_sd_configs": [{"files": [str(folder / kind.file)]}],
            "relabel_configs": [*_relabelings(monitor, kind, endpoint)],
            "metric_relabel_configs": [_snake(one) for one in endpoint.get("metricRelabelings", ())],
            "metrics_path": endpoint.get("path", "/metrics"),
            "honor_labels": endpoint.get("honorLabels", False),
            "scheme": endpoint.get("scheme", "http").lower(),
        }
        times = {"scrape_interval": "interval", "scrape_timeout": "scrapeTimeout"}
        found.append(scrape | {ours: endpoint[theirs] for ours, theirs in times.items() if theirs in endpoint})
    return found


def _within(monitor: Manifest) -> Iterator[Manifest]:
    """Namespaces of a monitor: its own, if it names none."""
    where = monitor["spec"].get("namespaceSelector", {})
    _check("namespaceSelector", where)
    if not where.get("any"):
        names = where.get("matchNames") or [monitor["metadata"]["namespace"]]
        yield _filter("keep", ["__meta_kubernetes_namespace"], "|".join(map(re.escape, names)))


def _relabelings(monitor: Manifest, kind: _Kind, endpoint: Manifest) -> Iterator[Manifest]:
    """Relabelings in order: drop unselected targets, add the labels, then the monitor's own relabelings."""
    yield _filter("drop", ["__meta_kubernetes_pod_phase"], "(Failed|Succeeded)")
    yield from _within(monitor)
    yield from _selection(monitor["spec"]["selector"], kind.labels)
    yield _filter("keep", [kind.port], endpoint["port"])
    labels = {"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"}
    if kind.labels == "service":
        labels |= {"service": "service_name"}
    yield from (_copy(f"__meta_kubernetes_{source}", target) for target, source in labels.items())
    for label in monitor["spec"].get("podTargetLabels", ()):
        yield _copy(f"__meta_kubernetes_pod_label_{sanitized(label)}", sanitized(label), "(.+)")
    yield from _job_name(monitor, kind)
    yield {"target_label": "endpoint", "replacement": endpoint["port"]}
    yield from (_snake(one) for one in endpoint.get("relabelings", ()))


def _job_name(monitor: Manifest, kind: _Kind) -> Iterator[Manifest]:
    if kind.labels == "service":
        yield _copy("__meta_kubernetes_service_name", "job")
    else:
        metadata = monitor["metadata"]
        yield {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"}
    if label := monitor["spec"].get("jobLabel"):
        yield _copy(f"__meta_kubernetes_{kind.labels}_label_{sanitized(label)}", "job", "(.+)")


def _selection(selector: Manifest, labels: str) -> Iterator[Manifest]:
    """Relabelings of a Kubernetes label selector."""
    _check("selector", selector)
    for label, value in selector.get("matchLabels", {}).items():
        yield _filter("keep", _both(labels, label), f"({re.escape(value)});true")
    for wanted in selector.get("matchExpressions", ()):
        action = "keep" if wanted["operator"] in ("In", "Exists") else "drop"
        if wanted["operator"] in ("Exists", "DoesNotExist"):
            yield _filter(action, _both(labels, wanted["key"])[1:], "true")
        else:
            yield _filter(action, _both(labels, wanted["key"]), f"({'|'.join(map(re.escape, wanted['values']))});true")


def _both(labels: str, label: str) -> list[str]:
    """A label's value, and whether it is present."""
    return [f"__meta_kubernetes_{labels}_{kind}_{sanitized(label)}" for kind in ("label", "labelpresent")]


def _filter(action: str, sources: list[str], regex: str) -> Manifest:
    return {"action": action, "source_labels": sources, "regex": regex}


def _copy(source: str, target: str, regex: str = "(.*)") -> Manifest:
    return {"source_labels": [source], "regex": regex, "target_label": target, "replacement": "$1"}


def _snake(relabeling: Manifest) -> Manifest:
    """A relabeling with Prometheus' names of the fields."""
    found = {re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", key): value for key, value in relabeling.items()}
    return found | ({"action": found["action"].lower()} if "action" in found else {})


def _check(what: str, given: Manifest) -> None:
    if unknown := set(given) - _FIELDS[what]:
        raise ValueError(f"{what} of a monitor: nobody here knows what Prometheus makes of {sorted(unknown)}")
