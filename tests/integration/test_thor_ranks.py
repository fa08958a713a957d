"""THOR on real ranks: same result as one rank with all batches, and each rank inverts its part."""

import collections
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import rankgang

pytestmark = pytest.mark.slow

Result = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Result:
    (result,) = rankgang.run("thorrank.py", 1, tmp_path_factory.mktemp("alone"))
    return result


@pytest.fixture(
    scope="module",
    params=[2, *(pytest.param(count, marks=pytest.mark.long) for count in (3, 4))],
    ids="{} ranks".format,
)
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return rankgang.run("thorrank.py", request.param, tmp_path_factory.mktemp("together"))


BLOCKS = {"own_blocks", "all_blocks"}


def test_ranks_are_as_one_with_all_of_their_batches(alone: Result, together: list[Result]) -> None:
    first = together[0]
    assert np.array_equal(first["decisions"], alone["decisions"])
    updated, kept, stopped, failed = alone["decisions"][::2].T
    assert kept.any() and stopped.any() and not failed.any(), "the trace rule never mattered"
    assert updated[2] == 5, "the damping never mattered"
    assert updated[3] < 5, "the ranks never differed"
    for name in alone.keys() - BLOCKS:
        assert np.abs(first[name] - alone[name]).max() <= 1e-5 * np.abs(alone[name]).max(), name


def test_all_ranks_have_the_same_bits(together: list[Result]) -> None:
    for other in together[1:]:
        for name in other.keys() - {"own_blocks"}:
            assert np.array_equal(other[name], together[0][name]), name


def test_each_block_is_inverted_by_exactly_one_rank(together: list[Result]) -> None:
    for step, every in enumerate(together[0]["all_blocks"]):
        shares = [collections.Counter(rank["own_blocks"][step].split()) for rank in together]
        assert sum(shares, collections.Counter()) == collections.Counter(every.split()), step
    assert all(rank["own_blocks"][0] for rank in together), "somebody has nothing to do"
