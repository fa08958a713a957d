"""Gradient buckets on real ranks: same bits as one AllReduce after the backward pass."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resnetboost_trainer.models import arch
from support import rankgang

pytestmark = pytest.mark.slow

Left = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Left]:
    """Two ranks, because a + b is b + a; with more, each collective begins its sums at another rank."""
    return rankgang.run("bucketrank.py", 2, tmp_path_factory.mktemp("buckets"))


@pytest.mark.parametrize("case", ["scaled", "dynamic", "pca", "frozen"])
def test_buckets_train_to_the_same_bits_as_one_sum_after_the_backward_pass(gang: list[Left], case: str) -> None:
    for left in gang:
        assert left[f"{case}.whole.collectives"] == 1 < left[f"{case}.buckets.collectives"]
        np.testing.assert_array_equal(left[f"{case}.buckets.told"], gang[0][f"{case}.whole.told"])
        np.testing.assert_array_equal(left[f"{case}.buckets.weights"], gang[0][f"{case}.whole.weights"])


def test_buckets_of_any_network_of_the_family_are_one_sum_in_graphs_and_without(gang: list[Left]) -> None:
    for left in gang:
        counts = {
            key: int(value) for key, value in left.items() if key.endswith((".GRAPH.buckets", ".PyNative.buckets"))
        }
        assert len(counts) == 2 * len(arch.SMALL | arch.LARGE)
        assert counts["resnet20.GRAPH.buckets"] == 1 < counts["resnet152.PyNative.buckets"]
        assert left["differ"].tolist() == []


def test_losing_a_rank_during_the_gradient_is_a_communication_error(gang: list[Left]) -> None:
    assert "another rank has probably died: Launch kernel failed: Default/buckets-Buckets/AllReduce" in str(
        gang[0]["lost"]
    )
