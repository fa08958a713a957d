"""The samples of a training on any number of ranks: each micro batch's are those of its virtual rank."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.data.sampler import DistributedSampler

Micro = list[tuple[list[int], object]]


def step(count: int, ranks: int, local: int, accumulated: int, n: int, number: int) -> Micro:
    """The samples and the generators' positions of all micro batches of a step, in the order of the virtual ranks."""
    whole, parts = count * local * accumulated, count // ranks * accumulated
    found: Micro = []
    for rank in range(ranks):
        sampler = DistributedSampler(3, whole, rank, ranks, n, parts)
        for request in sampler.steps(number, number + 1):
            assert request.mixing is not None
            chosen = request.whole[request.first : request.first + request.size]
            found.append((chosen.tolist(), request.mixing[1]))
    return found


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 60),
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_a_gang_that_changes_at_any_step_uses_the_samples_of_one_that_does_not(
    count: int, local: int, accumulated: int, remainder: int, sizes: list[int]
) -> None:
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    per_epoch, whole = 4, count * local * accumulated
    n = per_epoch * whole + remainder % whole
    used: Counter[int] = Counter()
    for number, size in enumerate(sizes):
        if number % per_epoch == 0:
            used.clear()
        ours = step(count, divisors[size % len(divisors)], local, accumulated, n, number)
        assert ours == step(count, count, local, accumulated, n, number)
        used.update(np.concatenate([samples for samples, _ in ours]).tolist())
        assert max(used.values()) == 1, "a sample came twice in an epoch"
    if len(sizes) % per_epoch == 0:
        assert len(used) == per_epoch * whole
