"""The checked-in CRD equals the one generated from the structs of api/."""

from pathlib import Path
from typing import Any

import yaml

from resnetboost_api import crd

ROOT = Path(__file__).parents[2]


def comparable(node: Any) -> Any:
    """The tree in a form where 1, 1.0 and true differ, and the order of required fields does not count."""
    if isinstance(node, dict):
        return {name: comparable(part if name != "required" else sorted(part)) for name, part in node.items()}
    return [comparable(part) for part in node] if isinstance(node, list) else (type(node).__name__, node)


def test_types_bounds_defaults_rules_and_columns_are_those_of_the_file() -> None:
    found = yaml.safe_load((ROOT / "crds" / "resnetboostjobs.yaml").read_text())
    assert comparable(crd.definition()) == comparable(found)
