"""The trainer by itself refuses what the CRD's rules on training refuse, in the same words."""

import re
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import celrules, crd
from resnetboost_api.trainerconfig import TrainerConfig
from resnetboost_api.wording import Schema
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.validation import cel, jobfile, schema
from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError
from support.trainerconfig import GOOD, MODEL, THOR

CORPUS = Path(__file__).parents[1] / "corpus"
OF_A_STAGE = re.compile(r"^spec\.(stages\[(?P<stage>\d+)\]\.?)?")


def rules_of(node: Schema) -> list[dict[str, str]]:
    below = [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]
    return [*node.get("x-kubernetes-validations", ()), *(rule for part in below for rule in rules_of(part))]


KNOWN = {rule["rule"] for rule in rules_of(crd.schema(TrainerConfig))}


def refused(path: Path) -> list[Any]:
    """The first rule of a trainer's that a job breaks, as `cel` sees it, with the problem; empty for none."""
    obj = schema.defaulted(jobfile.load(path))
    if list(schema._structure().problems(obj)):
        return []
    found = cel.broken(obj, cel.ABSENT, schema.openapi())
    return [(obj, problem) for rule, problem in found if rule.text in KNOWN][:1]


CASES = {path.stem: found[0] for path in sorted((CORPUS / "bad").glob("*.yaml")) for found in [refused(path)] if found}


def written(obj: Any, index: int) -> dict[str, Any]:
    job = parse_job(obj)
    return trainer_config(job, job.spec.stages[index], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_trainer_refuses_a_stage_that_the_crd_refuses_in_the_same_words(name: str) -> None:
    obj, problem = CASES[name]
    place = OF_A_STAGE.match(problem.field)
    assert place is not None
    document = written(obj, int(place["stage"] or 0))
    with pytest.raises(ConfigError) as caught:
        config.parse(document)
    expected = f"{problem.field[place.end() :]}: {problem.message}"
    assert re.sub(r"(\d)\.0\b", r"\1", str(caught.value)) == expected, "0 is 0.0 where the operator has written it"


def test_most_rules_have_a_case() -> None:
    assert len(CASES) > 50


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CORPUS / "good").glob("*.yaml")), ids=lambda path: str(path.stem))
def test_the_trainer_takes_the_stages_of_good_jobs(path: Path) -> None:
    obj = schema.defaulted(jobfile.load(path))
    for index in range(len(obj["spec"]["stages"])):
        config.parse(written(obj, index))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"syncBatchNorm": True, "algorithm": "Adasum"}, "syncBatchNorm: Adasum sums what each device learns from its"),
        ({"syncBatchNorm": True, "allReduceFusion": {}}, "allReduceFusion: allReduceFusion sums gradients while"),
        ({"dropPath": 0.1, "algorithm": "PCA"}, "dropPath: the line search of PCA compares losses of one network"),
        (
            {"clipNorm": 1, "algorithm": "THOR"},
            "clipNorm: clipNorm is for the algorithms Momentum, AdamW and LAMB, and",
        ),
        ({"accumulationSteps": 2, "algorithm": "PCA"}, "accumulationSteps: the line search of PCA looks at all images"),
        ({"thor": THOR}, "thor: thor is for the algorithms THOR and Adasum, and this one is Momentum; leave it out"),
        ({"learningRate": {"peak": 0.1, "final": 0.2}}, "learningRate.final: the learning rate must not end above its"),
        ({"precision": "BFloat16"}, "precision BFloat16 is for device.type Ascend"),
        ({"model": MODEL | {"numClasses": 3}}, "model.numClasses: data sets digits, mnist_5k, MNIST and CIFAR10 have"),
        ({"loss": {"classWeights": [1, 2]}}, "loss.classWeights of a stage are not as many as model.numClasses"),
        (
            {"localBatchSize": 31, "dataset": {"name": "digits", "augmentation": {"mixupAlpha": 0.2}}},
            "mixup and cutmix mix pairs of a rank's batch; use an even localBatchSize in each stage",
        ),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_a_combination_is_refused_in_one_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(GOOD | change)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_later_stage_of_a_job_with_weights_goes_on_from_the_one_before() -> None:
    """The rule that the first stage has one beginning alone does not hold for a config, which has the job's model."""
    document = GOOD | {"model": MODEL | {"weights": {"path": "w.pth"}}, "startFrom": {"stage": "base"}, "stage": "next"}
    assert config.parse(document).start_from is not None


@pytest.mark.parametrize("text", ["self.a.min()", "quantity(self.a)", "self.a == )", "self.a 'b'", "#"])
def test_an_expression_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        celrules.compiled(text)
