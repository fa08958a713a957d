"""Synchronized batch normalization on real ranks: what one rank computes with the whole batch."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import familygradients, rankgang
from support.familygradients import Found

pytestmark = pytest.mark.slow

Left = dict[str, NDArray[Any]]
# A block with and without a shortcut of its own, squeeze and excitation between the two normalizations that wait for
# each other, and a normalization in a sequence.
KINDS = ("bottleneck", "squeezing", "deep")


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Left]:
    return rankgang.run("syncnormrank.py", 2, tmp_path_factory.mktemp("norms"), KINDS=" ".join(KINDS))


def found(left: Left, case: str) -> Found:
    def part(kind: str) -> Left:
        prefix = f"{case}.{kind}."
        return {key.removeprefix(prefix): value for key, value in left.items() if key.startswith(prefix)}

    return Found(float(left[f"{case}.loss"][0]), part("gradient"), part("statistic"))


@pytest.mark.parametrize("kind", KINDS)
def test_loss_gradients_and_statistics_are_those_of_one_rank_with_the_whole_batch(gang: list[Left], kind: str) -> None:
    expected = familygradients.slow(kind)
    for mode in familygradients.MODES:
        for left in gang:
            assert not familygradients.wrong(found(left, f"{kind}.{mode}"), expected, familygradients.BOUND)


def test_so_they_are_with_mindspores_operators(gang: list[Left]) -> None:
    assert not familygradients.wrong(found(gang[0], "plain.GRAPH"), familygradients.slow("deep"), familygradients.BOUND)


def test_all_ranks_have_the_same_bits(gang: list[Left]) -> None:
    first, second = gang
    assert all(np.array_equal(first[key], second[key]) for key in first if ".statistic." in key)
