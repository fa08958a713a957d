"""Batches of which batch normalisation has a single number per channel: refused in one sentence, and no others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.config import parse
from resnetboost_trainer.engine import batch_statistics
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch
from support.trainerconfig import GOOD, MODEL


def check(side: int = 32, ranks: int = 1, name: str = "resnet18", freeze: Any = (), **changes: Any) -> None:
    model = MODEL | {"name": name, "freeze": list(freeze)}
    settings = parse(GOOD | {"model": model, "localBatchSize": 1} | changes)
    batch_statistics.check(settings, side, side, ranks)


@pytest.mark.parametrize("side", [1, 8, 32])
def test_one_image_that_becomes_one_number_is_refused(side: int) -> None:
    with pytest.raises(ConfigError, match=rf"^localBatchSize: 1 image of {side} x {side} pixels is 1 x 1 in \w+ of re"):
        check(side)
    with pytest.raises(ConfigError, match=r"use at least 2, or larger images$"):
        check(side, ranks=4)


def test_whatever_has_two_numbers_is_not_refused() -> None:
    check(33)
    check(8, name="resnet20")
    check(localBatchSize=2)
    check(ranks=2, syncBatchNorm=True)
    check(freeze=["stem", "layer1", "layer2", "layer3", "layer4"])


def test_a_layer_in_front_of_frozen_ones_is_named() -> None:
    with pytest.raises(ConfigError, match="in layer3 of resnet18, too little"):
        check(16, freeze=["stem", "layer1", "layer2", "layer4"])


def test_maps_are_those_of_the_published_networks() -> None:
    sides = {"stem": 112, "layer1": 56, "layer2": 28, "layer3": 14, "layer4": 7}
    assert arch.maps("resnet50", 224, 224) == {part: (side, side) for part, side in sides.items()}
    assert arch.maps("resnet20", 32, 28) == {"stem": (32, 28), "layer1": (32, 28), "layer2": (16, 14), "layer3": (8, 7)}


@given(st.sampled_from(["resnet20", "resnet18", "resnet50d"]), st.integers(1, 300))
def test_maps_are_those_of_padded_convolutions(name: str, side: int) -> None:
    network = arch.topology(name, 3)

    def after(size: int, kernel: int, stride: int) -> int:
        return (size + 2 * (kernel // 2) - kernel) // stride + 1

    size = side
    for convolution in network.stem:
        size = after(size, convolution.kernel, convolution.stride)
    size = after(size, 3, 2) if network.pooled else size
    for block in network.blocks:
        for convolution in block.convolutions:
            size = after(size, convolution.kernel, convolution.stride)
    assert arch.maps(name, side, side)[arch.parts(name)[-2]] == (size, size)
