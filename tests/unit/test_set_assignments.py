"""`--set path=value` changes one field of a job, or says in one sentence why it cannot."""

from typing import Any

import pytest

from resnetboost_operator.cli import overrides
from resnetboost_operator.errors import UserError

JOB: dict[str, Any] = {
    "kind": "ResNetBoostJob",
    "metadata": {"name": "digits"},
    "spec": {"seed": 0, "stages": [{"name": "base", "epochs": 10}], "runPolicy": None},
}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("spec.seed=7", {"seed": 7}),
        ("seed=7", {"seed": 7}),
        ("spec.stages[0].epochs=3", {"stages": [{"name": "base", "epochs": 3}]}),
        (
            "stages[0].learningRate.peak=1e-4",
            {"stages": [{"name": "base", "epochs": 10, "learningRate": {"peak": 1e-4}}]},
        ),
        ("device.count=2", {"device": {"count": 2}}),
        ("runPolicy.suspend=true", {"runPolicy": {"suspend": True}}),
        ("dataset.path=/a/b=c.npz", {"dataset": {"path": "/a/b=c.npz"}}),
        ("template.env=[{name: A, value: '1'}]", {"template": {"env": [{"name": "A", "value": "1"}]}}),
        (
            'template.nodeSelector["kubernetes.io/arch"]=arm64',
            {"template": {"nodeSelector": {"kubernetes.io/arch": "arm64"}}},
        ),
        ("checkpoint.claimName=", {"checkpoint": {"claimName": None}}),
    ],
    ids=[
        "a full path",
        "without spec",
        "in a list",
        "YAML 1.2 numbers, and mappings that are not there yet",
        "a mapping that is not there yet",
        "a mapping that is null",
        "an equals sign in the value",
        "a list as value",
        "a key with dots",
        "nothing",
    ],
)
def test_a_field_is_set(assignment: str, expected: dict[str, Any]) -> None:
    assert overrides.apply(JOB, [assignment])["spec"] == JOB["spec"] | expected


def test_metadata_can_be_set_too() -> None:
    assert overrides.apply(JOB, ["metadata.name=other"])["metadata"] == {"name": "other"}


def test_later_assignments_see_earlier_ones_and_the_job_stays_as_it_was() -> None:
    changed = overrides.apply(JOB, ["stages=[{name: a}, {name: b}]", "stages[1].epochs=2"])
    assert changed["spec"]["stages"] == [{"name": "a"}, {"name": "b", "epochs": 2}]
    assert JOB["spec"]["stages"] == [{"name": "base", "epochs": 10}]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("seed", "write it as path=value"),
        ("=3", "write it as path=value"),
        ("a b=3", "write it as path=value"),
        ("spec=3", "name a field below spec"),
        ("stages[1].epochs=3", r"spec.stages has no \[1\]; its 1 entries count from \[0\]"),
        ("stages.epochs=3", r"spec.stages is a list, name an entry such as \[0\]"),
        ("seed.value=3", "spec.seed is 0, it has no fields"),
        ("seed[0]=3", "spec.seed is not a list"),
        (f"stages[{10**9}]=3", "write it as path=value"),
        ("seed=[1", "bracket"),
        ("seed=yes", "write true"),
    ],
)
def test_an_invalid_assignment_is_one_sentence(assignment: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        overrides.apply(JOB, [assignment])
    assert str(caught.value).startswith(f"--set {assignment}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("assignment", ["seed=" + "[" * 60_000, ".".join("a" * 30_000) + "=1"], ids=["value", "path"])
def test_endless_nesting_is_refused_in_a_short_sentence(assignment: str) -> None:
    with pytest.raises(UserError, match=r"a job (needs|has) no more than ten levels") as caught:
        overrides.apply(JOB, [assignment])
    assert len(str(caught.value)) < 200
