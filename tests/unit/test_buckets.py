"""Gradient buckets: which gradients share one AllReduce."""

import itertools
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer import config
from resnetboost_trainer.distributed.buckets import BYTES, plan
from resnetboost_trainer.engine import graph_key
from support import trainerconfig


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([5], [(0, 1)]),
        ([1, 1, 1], [(0, 3)]),
        ([1, 1, 1, 4], [(3, 4), (0, 3)]),
        ([2, 2, 2, 2, 2], [(3, 5), (1, 3), (0, 1)]),
        ([1, 9, 1], [(2, 3), (1, 2), (0, 1)]),
        ([9, 9], [(1, 2), (0, 1)]),
    ],
    ids=["one tensor", "all fit", "a full one", "the first layers have what is left", "too large", "all too large"],
)
def test_tensors_fill_buckets_of_four_numbers_from_the_last_on(
    sizes: Sequence[int], buckets: Sequence[tuple[int, int]]
) -> None:
    assert list(plan(sizes, 4 * BYTES)) == buckets


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_each_tensor_is_in_one_bucket_and_no_two_neighbours_fit_into_one(sizes: list[int], numbers: int) -> None:
    buckets = plan(sizes, numbers * BYTES)
    assert [place for first, end in reversed(buckets) for place in range(first, end)] == list(range(len(sizes)))
    for first, end in buckets:
        assert sum(sizes[first:end]) <= numbers or end - first == 1
    for (first, end), (_, before) in itertools.pairwise(buckets):
        assert before == first
        assert sum(sizes[first:end]) + sizes[first - 1] > numbers


def test_kept_graphs_are_keyed_by_buckets() -> None:
    forms = [{}, {"allReduceFusion": {"bucketBytes": 65536}}, {"allReduceFusion": {"bucketBytes": 65537}}]
    settings = [msgspec.convert(trainerconfig.GOOD | form, config.Config) for form in forms]
    assert len({graph_key.environment(one, 2) for one in settings}) == 3
