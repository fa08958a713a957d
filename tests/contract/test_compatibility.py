"""Jobs of earlier releases stay valid: no field of theirs is gone, narrower, or means something else."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_api import crd
from resnetboost_operator.job import parse_job
from resnetboost_operator.validation import jobfile, schema
from support.schemadiff import narrowed

RELEASES = sorted(path for path in (Path(__file__).parents[1] / "upgrade").iterdir() if path.is_dir())
JOBS = [path for release in RELEASES for path in sorted((release / "jobs").glob("*.yaml"))]

# What was narrowed on purpose, and why nobody loses by it.
MEANT = {
    (".spec.model.weights.path", "pattern"): "no path on a node contains NUL",
    (".spec.dataset.path", "pattern"): "no path on a node contains NUL",
    (".spec.template.image", "pattern"): "kubelet refuses every name that is refused now",
}


def openapi(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = (found for found in definition["spec"]["versions"] if found["name"] == "v1alpha1")
    return dict(version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_no_field_is_gone_or_narrower(release: Path) -> None:
    old = openapi(yaml.safe_load((release / "resnetboostjobs.yaml").read_text()))
    found = {(path, problem.split()[0]): problem for path, problem in narrowed("", old, openapi(crd.definition()))}
    assert {place: problem for place, problem in found.items() if place not in MEANT} == {}
    assert MEANT.keys() <= found.keys(), "an exception that is not needed any more"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_a_job_file_of_an_earlier_release_is_valid(path: Path) -> None:
    job = jobfile.load(path)
    assert schema.check(job) == []
    parse_job(schema.defaulted(job))


BASE = openapi(crd.definition())
STAGE = ("properties", "spec", "properties", "stages", "items")


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        (("properties", "spec", "properties", "seed"), {"maximum": 10}, "maximum 2147483647 became 10"),
        (("properties", "spec", "properties", "seed"), {"minimum": 1}, "minimum 0 became 1"),
        (("properties", "spec", "properties", "seed"), {"type": "string"}, "type integer became string"),
        (("properties", "spec", "properties", "seed"), {"default": 1}, "the default 0 became 1"),
        ((*STAGE, "properties", "algorithm"), {"enum": ["Momentum"]}, "the values Ada"),
        (STAGE, {"required": ["seed"]}, "seed became required"),
        ((*STAGE, "properties"), {"epochs": None}, "is gone"),
        ((*STAGE, "properties", "lossScale"), {"exclusiveMinimum": True}, "exclusiveMinimum is new"),
    ],
)
def test_a_narrower_field_would_be_found(place: tuple[str, ...], change: dict[str, Any], said: str) -> None:
    changed = copy.deepcopy(BASE)
    field = changed
    for name in place:
        field = field[name]
    for key, value in change.items():
        field[key] = value
        if value is None:
            del field[key]
    problems = [problem for _, problem in narrowed("", BASE, changed)]
    assert len(problems) == 1
    assert problems[0].startswith(said)
