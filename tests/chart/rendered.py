"""Objects rendered by `helm template`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from beds.cluster.helm import CHART, Helm

Manifest = dict[str, Any]
NAMESPACE = "team"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


class _Strict(yaml.CSafeLoader):
    """Refuses a mapping with a duplicate key, as kubectl and Argo CD do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, or fail on a duplicate key."""
        keys = [self.construct_object(key) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, takes 1e-08 for text; the API server takes it for a number.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def render(helm: Helm, *options: str | Path, chart: Path = CHART, release: str = "resnetboost") -> list[Manifest]:
    """All objects of a release."""
    text = helm("template", release, chart, f"--namespace={NAMESPACE}", *options)
    return [found for found in yaml.load_all(text, _Strict) if found]


def of(objects: Iterable[Manifest], kind: str) -> list[Manifest]:
    """All objects of a kind."""
    return [found for found in objects if found["kind"] == kind]


def one(objects: Iterable[Manifest], kind: str) -> Manifest:
    """The only object of a kind."""
    (found,) = of(objects, kind)
    return found
