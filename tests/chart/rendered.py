"""What helm makes of the chart, as objects."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cluster.helm import CHART, Helm

Manifest = dict[str, Any]
NAMESPACE = "team"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def render(helm: Helm, *options: str | Path, chart: Path = CHART, release: str = "resnetboost") -> list[Manifest]:
    """All objects of a release."""
    text = helm("template", release, chart, f"--namespace={NAMESPACE}", *options)
    return [found for found in yaml.safe_load_all(text) if found]


def of(objects: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Those of a kind."""
    return [found for found in objects if found["kind"] == kind]


def one(objects: Iterable[Manifest], kind: str) -> Manifest:
    """The only one of a kind."""
    (found,) = of(objects, kind)
    return found
