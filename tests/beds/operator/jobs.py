"""Job manifests for tests: small, without back-off, and with few fields set."""

from typing import Any

from resnetboost_api import names

Manifest = dict[str, Any]

CLAIM = "checkpoints"
QUEUE = "team-a"


def job(name: str = "digits", *, ranks: int = 2, stages: tuple[str, ...] = ("base",), **spec: Any) -> Manifest:
    """A job of CPU ranks that restarts without back-off; `spec` adds or replaces fields."""
    minimal: Manifest = {
        "device": {"type": "CPU", "count": ranks},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": [{"name": stage, "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8} for stage in stages],
        "failurePolicy": {"backoffSeconds": 0},
    }
    if len(stages) > 1:
        minimal["checkpoint"] = {"claimName": CLAIM}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": minimal | spec,
    }


def queued(manifest: Manifest, queue: str = QUEUE, priority: str = "") -> Manifest:
    """The job with Kueue's labels of its queue and, if given, of its priority class."""
    labels = {names.LABEL_QUEUE: queue} | ({names.LABEL_QUEUE_PRIORITY: priority} if priority else {})
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}
