"""Assignment of THOR's inverses to ranks."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.optim.thor.assignment import assign

costs = st.lists(st.floats(0, 1e12), max_size=40)
ranks = st.integers(1, 9)


def loads(costs: list[float], owners: tuple[int, ...], ranks: int) -> list[float]:
    return [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("costs", "ranks", "expected"),
    [
        ([], 3, ()),
        ([5.0], 3, (0,)),
        ([1.0, 1.0, 1.0, 1.0], 2, (0, 1, 0, 1)),
        ([3.0, 3.0, 2.0, 2.0, 2.0], 2, (0, 1, 0, 1, 0)),
        ([1.0, 9.0, 4.0, 4.0], 2, (1, 0, 1, 1)),
        ([0.0, 0.0, 0.0], 2, (0, 0, 0)),
        ([2.0, 1.0], 1, (0, 0)),
    ],
    ids=[
        "nothing to do",
        "more ranks than items",
        "equal items in turn",
        "Graham's example: 7 and 5, not the best 6 and 6",
        "the largest alone",
        "nothing costs anything",
        "one rank has all",
    ],
)
def test_assignment(costs: list[float], ranks: int, expected: tuple[int, ...]) -> None:
    assert assign(costs, ranks) == expected


@given(costs, ranks)
def test_every_item_has_one_owner_and_no_load_is_above_grahams_bound(costs: list[float], ranks: int) -> None:
    owners = assign(costs, ranks)
    assert len(owners) == len(costs)
    assert all(0 <= owner < ranks for owner in owners)
    bound = sum(costs) / ranks + (1 - 1 / ranks) * max(costs, default=0)
    assert max(loads(costs, owners, ranks)) <= bound * (1 + 1e-9)


@given(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=7), st.integers(1, 3))
def test_the_longest_load_is_within_a_third_of_the_best_possible(costs: list[float], ranks: int) -> None:
    best = min(max(loads(costs, owners, ranks)) for owners in itertools.product(range(ranks), repeat=len(costs)))
    assert max(loads(costs, assign(costs, ranks), ranks)) <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
