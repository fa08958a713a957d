"""Configs of a newer operator for an older trainer: read if no new field is used, else refused with its name."""

import copy
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import crd
from resnetboost_api.trainerconfig import NEEDED_BY_0_1_0, TrainerConfig
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.validation import jobfile, schema
from resnetboost_trainer import __version__, config
from resnetboost_trainer.failures import ConfigError

ROOT = Path(__file__).parents[2]

# Fields a newer operator may add: one of a stage, one in a block, a block, and one of the whole job.
NEW = {
    "clipNorm": ("clipNorm", {"clipNorm": 2.5}),
    "allReduceFusion.bucketBytes": ("allReduceFusion.bucketBytes", {"allReduceFusion": {"bucketBytes": 131072}}),
    "lars": ("lars", {"lars": {}}),
}


def older(field: str) -> dict[str, Any]:
    """The schema of a trainer without that field."""
    found = copy.deepcopy(crd.schema(TrainerConfig))
    *blocks, name = field.split(".")
    place = found
    for block in blocks:
        place = place["properties"][block]
    del place["properties"][name]
    return found


def written(change: dict[str, Any]) -> dict[str, Any]:
    """The operator's config for examples/digits.yaml with a change to its stage."""
    obj = jobfile.load(ROOT / "examples" / "digits.yaml")
    obj["spec"]["stages"][0] |= change
    assert schema.check(obj) == []
    job = parse_job(schema.defaulted(obj))
    return trainer_config(job, job.spec.stages[0], 0)


@pytest.mark.parametrize("field", NEW)
def test_a_config_without_the_new_field_is_read_by_an_older_trainer(field: str) -> None:
    document = written({})
    assert config.parse(document, older(field)) == config.parse(document)


@pytest.mark.parametrize(("field", "change"), NEW.values(), ids=NEW)
def test_a_config_with_the_new_field_is_refused_in_one_sentence(field: str, change: dict[str, Any]) -> None:
    document = written(change)
    config.parse(document)
    with pytest.raises(ConfigError) as caught:
        config.parse(document, older(field))
    assert str(caught.value) == (
        f"config field {field} is not known to this trainer version {__version__}: "
        "use a newer trainer image or leave it out"
    )


def test_the_operator_writes_nothing_that_is_at_its_default_but_what_the_first_trainers_need() -> None:
    """Also if a user sets the default explicitly, as in copied output of `kubectl get -o yaml`, which has them all."""
    plain = jobfile.load(ROOT / "examples" / "digits.yaml")
    configs = [
        trainer_config(job, job.spec.stages[0], 0) for job in (parse_job(plain), parse_job(schema.defaulted(plain)))
    ]
    assert configs[0] == configs[1]
    assert {"seed", "device", "momentum", "lossScale"} <= configs[0].keys() & NEEDED_BY_0_1_0
    assert not {"precision", "accumulationSteps", "labelSmoothingOver", "stragglerFactor"} & configs[0].keys()
    newer = written({"algorithm": "AdamW", "learningRate": {"peak": 0.001}})
    assert not {"seed", "device", "momentum", "lossScale"} & newer.keys(), "no trainer of 0.1.0 reads it anyway"
