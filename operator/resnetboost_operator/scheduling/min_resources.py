"""Resources of a gang as its PodGroup names them: what one pod requests, and all of them together."""

import re
from decimal import Decimal

from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import container

_QUANTITY = re.compile(r"\+?(?P<number>[0-9.]+)(?P<unit>.*)")


def of_pod(job: Job) -> dict[str, str]:
    """What one pod requests. A limit without a request is one, as the API server has it."""
    needed = container.resources(job)
    requests = {**needed.get("limits", {}), **needed.get("requests", {})}
    return {name: str(amount) for name, amount in requests.items()}


def of_gang(job: Job, stage: Stage) -> dict[str, str]:
    """What all pods of a stage's gang request together."""
    return {name: times(amount, stage.device_count) for name, amount in of_pod(job).items()}


def times(quantity: str, count: int) -> str:
    """A Kubernetes quantity multiplied exactly, in its own unit: 4 times 1.5Gi is 6Gi. Raises ValueError."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity} is no quantity")
    product = f"{Decimal(found['number']) * count:f}"
    return (product.rstrip("0").rstrip(".") if "." in product else product) + found["unit"]
