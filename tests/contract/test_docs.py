"""What the documents tell people to write into a job is accepted, and means what they say."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from resnetboost_operator import api, manifests
from resnetboost_operator.terminal import loadjob
from resnetboost_trainer import schedule
from resnetboost_trainer.config import Config

DOCS = Path(__file__).parents[2] / "docs"
THOR, ADASUM = DOCS / "thor.md", DOCS / "adasum.md"
STEPS_PER_EPOCH = 5004  # ImageNet at a global batch of 256


def blocks(document: Path) -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", document.read_text(), re.S | re.M)]


def trainer_config(stage: dict[str, Any], folder: Path, **device: Any) -> Config:
    """A stage in a job for ResNet-50, through everything that stands between its author and the trainer."""
    path = folder / "job.yaml"
    spec = {"model": {"name": "resnet50", "numClasses": 1001}, "dataset": {"name": "npz", "path": "/data/x.npz"}}
    metadata = {"name": "job"}
    document = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "metadata": metadata}
    spec |= {"device": device} if device else {}
    path.write_text(yaml.safe_dump(document | {"spec": spec | {"stages": [stage]}}))
    job = api.parse(loadjob.load(path, []))
    return msgspec.convert(manifests.trainer_config(job, job.spec.stages[0], 0), Config)


def test_the_shortest_stage_has_the_defaults_of_the_table(tmp_path: Path) -> None:
    config = trainer_config(blocks(THOR)[0]["stages"][0], tmp_path)
    assert config.thor is not None
    assert (config.learning_rate.peak, config.thor.frequency, config.thor.block_size) == (0.02, 10, 128)
    damping, rule = config.thor.damping, config.thor.trace_rule
    assert (damping.initial, damping.decay, damping.decay_epochs, damping.split) == (0.1, 0.5, 10, "Pi")
    assert (rule.update_above, rule.stop_below, rule.smoothing, config.thor.clip_norm) == (0.3, 0, 0.8, None)


@pytest.mark.parametrize(
    ("epoch", "rate", "damping"),
    [(0, 0.0580, 0.0300), (10, 0.0247, 0.0150), (20, 0.00838, 0.00751), (40, 4.67e-5, 0.00188)],
)
def test_the_recipe_of_mindspores_tutorial_has_its_schedules(
    epoch: int, rate: float, damping: float, tmp_path: Path
) -> None:
    config = trainer_config({"name": "thor"} | blocks(THOR)[1], tmp_path)
    step = epoch * STEPS_PER_EPOCH
    assert schedule.learning_rate(config, step, STEPS_PER_EPOCH) == pytest.approx(rate, rel=0.005)
    assert schedule.damping(config, step, STEPS_PER_EPOCH) == pytest.approx(damping, rel=0.005)


def test_the_shortest_stage_of_adasum_has_the_defaults_of_the_table(tmp_path: Path) -> None:
    shortest = blocks(ADASUM)[0]
    config = trainer_config(shortest["stages"][0], tmp_path, **shortest["device"])
    assert config.adasum is not None
    assert (config.adasum.reduce, config.adasum.ranks_per_node) == ("Delta", 2)


def test_the_recipe_of_adasum_is_that_of_mindspores_tutorial(tmp_path: Path) -> None:
    recipe = blocks(ADASUM)[1]
    config = trainer_config({"name": "adasum"} | recipe["stages"][0], tmp_path, **recipe["device"])
    assert config.adasum is not None
    assert (config.adasum.reduce, config.adasum.ranks_per_node) == ("Delta", 8)
    rates = [schedule.learning_rate(config, step, 312) for step in (5 * 312, 95 * 156, 90 * 312 - 3)]
    assert rates == pytest.approx([0.8, 0.4, 0], abs=0.01)


def test_a_network_that_is_fine_tuned_as_the_document_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    (spec,) = (found["spec"] for found in blocks(DOCS / "weights.md"))
    stage = {"name": "base", "algorithm": "Momentum", "epochs": 6, "localBatchSize": 32}
    spec |= {"dataset": {"name": "npz", "path": "/data/x.npz"}, "stages": [stage]}
    kind = {"apiVersion": "resnetboost.io/v1alpha1", "kind": "ResNetBoostJob", "metadata": {"name": "job"}}
    path.write_text(yaml.safe_dump(kind | {"spec": spec}))
    job = api.parse(loadjob.load(path, []))
    config = msgspec.convert(manifests.trainer_config(job, job.spec.stages[0], 0), Config)
    assert config.model.weights is not None
    assert (config.model.weights.head, config.model.freeze) == ("New", ("stem", "layer1", "layer2"))
    assert config.model.init.zero_gamma
