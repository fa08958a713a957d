from pathlib import Path

import pytest
import yaml

from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError
from support.trainerconfig import GOOD, THOR


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
        (yaml.safe_dump(GOOD | {"thor": {"frequency": 10}}), "thor"),
        ("a: [1", "not a YAML file"),
        ("", "Expected `object`"),
        ("\x00", "not a YAML file"),
        ("[" * 5000, "nested too deeply"),
    ],
    ids=[
        "unknown field",
        "wrong type",
        "unknown algorithm",
        "settings left out",
        "broken YAML",
        "empty file",
        "binary",
        "deep",
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_one_rank_needs_nothing() -> None:
    environment = config.environment({})
    assert (environment.rank, environment.world_size, environment.coordinator) == (0, 1, None)
