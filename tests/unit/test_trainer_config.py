"""The trainer's config file: defaults, bounds, and files of earlier versions."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError
from support.trainerconfig import GOOD, MODEL, THOR


def load(tmp_path: Path, text: str) -> config.Config:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return config.load(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    loaded = load(tmp_path, yaml.safe_dump(GOOD))
    assert (loaded.model.num_classes, loaded.learning_rate.warmup_epochs) == (10, 1)


def test_a_thor_stages_settings_are_read(tmp_path: Path) -> None:
    assert load(tmp_path, yaml.safe_dump(GOOD)).thor is None
    thor = load(tmp_path, yaml.safe_dump(GOOD | {"algorithm": "THOR", "thor": THOR | {"clipNorm": 2}})).thor
    assert thor is not None
    assert (thor.frequency, thor.damping.decay_epochs, thor.trace_rule.update_above) == (10, 10, 0.3)
    assert thor.clip_norm == 2


def test_numbers_that_yaml_1_1_reads_as_text_are_numbers(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD).replace("peak: 0.1", "peak: 1e-1")
    assert load(tmp_path, text).learning_rate.peak == 0.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (yaml.safe_dump(GOOD | {"epoch": 3}), "epoch"),
        (yaml.safe_dump(GOOD | {"epochs": "many"}), "epochs"),
        (yaml.safe_dump(GOOD | {"algorithm": "Magic"}), "algorithm"),
        ("a: [1", "not a YAML file"),
        ("", "a config file is a mapping"),
        ("\x00", "not a YAML file"),
        ("- " * 5000, "nested too deeply"),
        ("seed: !!timestamp x", "not a YAML file"),
    ],
    ids=[
        "unknown field",
        "wrong type",
        "unknown algorithm",
        "broken YAML",
        "empty file",
        "binary",
        "deep",
        "tag",
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": -3}, "epochs: -3 is too small; use at least 1"),
        ({"epochs": "-3"}, "epochs: -3 is too small; use at least 1"),
        ({"epochs": None}, "epochs: is missing; use a whole number from 1 to 100000"),
        ({"localBatchSize": 70000}, "localBatchSize: 70000 is too large; use at most 65536"),
        ({"learningRate": {"peak": 0}}, "learningRate.peak: 0 is too small; use more than 0"),
        ({"momentum": {"momentum": 1.0}}, "momentum.momentum: 1.0 is too large; use less than 1"),
        ({"algorithm": "momentum"}, "algorithm: 'momentum' is not known; did you mean Momentum?"),
        ({"stage": "Base"}, "stage: 'Base' does not fit; use a-z, 0-9 and '-', starting with a letter"),
        ({"model": MODEL | {"freeze": ["tail"]}}, "model.freeze[0]: 'tail' is not known; use stem,"),
        ({"learningRate": {"milestones": []}}, "learningRate.milestones: is empty; give at least 1 item"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_value_out_of_bounds_is_named_with_what_would_be_right(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, yaml.safe_dump(GOOD | change))
    assert f"config.yaml: {says}" in str(caught.value)


def test_fields_with_defaults_are_optional(tmp_path: Path) -> None:
    """A user of the trainer without the operator writes only the required fields."""
    needed = {"job", "stage", "attempt", "model", "dataset", "algorithm", "epochs", "localBatchSize"}
    short = {name: value for name, value in GOOD.items() if name in needed}
    loaded = load(tmp_path, yaml.safe_dump(short | {"model": {"name": "resnet20", "numClasses": 10}}))
    assert (loaded.learning_rate.schedule, loaded.momentum.momentum, loaded.checkpoint.every_steps) == (
        "Cosine",
        0.9,
        500,
    )


@pytest.mark.parametrize(
    ("algorithm", "has"),
    [("Momentum", ()), ("THOR", ("thor",)), ("PCA", ("pca",)), ("Adasum", ("adasum",))],
)
def test_an_algorithm_without_its_block_has_its_defaults(tmp_path: Path, algorithm: str, has: tuple[str, ...]) -> None:
    loaded = load(tmp_path, yaml.safe_dump(GOOD | {"algorithm": algorithm}))
    assert tuple(name for name in ("thor", "pca", "adasum") if getattr(loaded, name) is not None) == has


def test_a_config_of_an_earlier_version_in_a_checkpoint_is_read() -> None:
    """Those manifests hold every field, null where unset, and older ones have no augmentation."""
    earlier = msgspec.to_builtins(config.parse(GOOD)) | {"clipNorm": None, "startFrom": None}
    earlier["dataset"] |= {"augmentation": None, "maxCorruptImages": None}
    assert config.recorded(earlier) == config.parse(GOOD)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read"):
        config.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RESNETBOOST_RANK": "two"}, "RESNETBOOST_RANK: 'two'"),
        ({"RESNETBOOST_RANK": "2", "RESNETBOOST_WORLD_SIZE": "2"}, "below RESNETBOOST_WORLD_SIZE: 2"),
        ({"RESNETBOOST_WORLD_SIZE": "2"}, "RESNETBOOST_COORDINATOR: 2 ranks need one"),
        ({"RESNETBOOST_WORLD_SIZE": "2", "RESNETBOOST_COORDINATOR": "host"}, "'host' is not host:port"),
    ],
    ids=["rank is no number", "rank too large", "no coordinator", "coordinator without a port"],
)
def test_a_bad_environment_names_the_variable(variables: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.environment(variables)
    assert says in str(caught.value)


def test_one_rank_needs_no_environment() -> None:
    environment = config.environment({})
    assert (environment.rank, environment.world_size, environment.coordinator) == (0, 1, None)
