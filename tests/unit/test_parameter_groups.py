"""Parameter groups by name and by depth, and the problems of their patterns."""

from typing import Any

import msgspec
import pytest

from resnetboost_trainer.config import Config
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.optim.groups import Group, named
from support.trainerconfig import GOOD

NAMES = [
    "conv1.weight",
    "bn1.gamma",
    "layer1.0.conv1.weight",
    "layer1.1.conv1.weight",
    "layer2.0.bn1.beta",
    "fc.weight",
]


def config(**fields: Any) -> Config:
    return msgspec.convert(GOOD | fields, Config)


def test_without_fields_all_have_the_whole_rate_and_the_usual_decay() -> None:
    assert named(config(), NAMES) == [Group()] * len(NAMES)


def test_the_first_matching_pattern_counts() -> None:
    first = {"parameters": "layer1.*", "learningRateFactor": 0.5}
    second = {"parameters": "*.weight", "learningRateFactor": 3, "weightDecay": 0}
    found = named(config(parameterGroups=[first, second]), NAMES)
    other, half = Group(3, 0), Group(0.5)
    assert found == [other, Group(), half, half, Group(), other]


def test_the_rate_decays_from_block_to_block_towards_the_images() -> None:
    found = [group.rate for group in named(config(layerDecay=0.5), NAMES)]
    assert found == [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]


def test_with_a_frozen_stem_the_rates_of_the_others_stay() -> None:
    whole, frozen = (named(config(layerDecay=0.5), names) for names in (NAMES, NAMES[2:]))
    assert frozen == whole[2:]


def test_both_multiply() -> None:
    found = named(config(layerDecay=0.5, parameterGroups=[{"parameters": "layer2.*", "learningRateFactor": 10}]), NAMES)
    assert [group.rate for group in found[-2:]] == [5, 1]


def test_a_pattern_without_a_parameter_is_refused() -> None:
    given = config(parameterGroups=[{"parameters": "*"}, {"parameters": "layer9.*"}])
    with pytest.raises(ConfigError) as caught:
        named(given, NAMES)
    assert str(caught.value) == (
        "parameterGroups[1].parameters: 'layer9.*' matches none of the trained parameters; "
        "names are those of model.safetensors, such as conv1.weight and fc.weight"
    )
