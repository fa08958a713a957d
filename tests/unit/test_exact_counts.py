"""Integers sent through a float32 collective arrive exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

from resnetboost_trainer import config
from resnetboost_trainer.data import registry
from resnetboost_trainer.distributed.communicator import Communicator, as_bytes, from_bytes
from resnetboost_trainer.engine.evaluator import Evaluation

counts = st.integers(0, 2**63 - 1)


@given(st.lists(counts, max_size=5))
def test_integers_come_back(values: list[int]) -> None:
    assert from_bytes(as_bytes(values)) == values
    assert Communicator(0, 1).broadcast_integers(values) == values


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=9))
def test_sums_over_ranks_are_exact(ranks: list[tuple[int, int]]) -> None:
    summed = np.sum([as_bytes(values) for values in ranks], axis=0, dtype=np.float32)
    assert from_bytes(summed) == [sum(column) for column in zip(*ranks, strict=True)]


def test_most_ranks_there_can_be_are_summed_exactly() -> None:
    assert from_bytes(as_bytes([2**53 - 1]) * np.float32(65_793)) == [65_793 * (2**53 - 1)]


def test_every_sample_of_a_large_test_set_counts() -> None:
    digits = registry.load(config.Dataset(name="digits"), 10)
    evaluation = Evaluation(nn.Dense(2, 10), digits, Communicator(0, 1), 90)
    sums = np.array([0.5, 2**24 + 1, 2**53 - 1, 2**53], np.float64)
    assert evaluation._over_the_gang(sums) == (0.5, 2**24 + 1, 2**53 - 1, 2**53)
