"""Adasum's exchange schedule at every number of nodes; the sum over all nodes equals the definition's."""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from resnetboost_trainer.distributed.adasum import adaptive_sum, topology
from resnetboost_trainer.distributed.adasum.adaptive_sum import AdaptiveSum, SumStatistics
from resnetboost_trainer.distributed.adasum.topology import Pair, Topology
from support import adasumreference
from support.examples import examples

pytestmark = pytest.mark.slow

Floats = NDArray[np.float32]

PER_NODE = [1, 2, 3, 8]
MOST_NODES = 40
SMALL_SHAPES = [(nodes, per_node) for nodes in range(1, 13) for per_node in PER_NODE if nodes * per_node <= 12]
LARGE_SHAPES = [(nodes, 1) for nodes in range(1, MOST_NODES + 1)] + [
    (1, 4),
    (2, 8),
    (3, 8),
    (5, 2),
    (6, 3),
    (7, 3),
    (8, 2),
]
BARRIER_SECONDS = 60

shapes = pytest.mark.parametrize(("nodes", "per_node"), LARGE_SHAPES)


def ways(nodes: int, per_node: int) -> list[Topology]:
    return [topology.of(rank, nodes * per_node, per_node) for rank in range(nodes * per_node)]


def ranks_of(nodes: range | Sequence[int], per_node: int) -> tuple[int, ...]:
    return tuple(node * per_node + local for node in nodes for local in range(per_node))


def pair_of(way: Topology, name: str) -> Pair | None:
    return next((pair for pair in (way.fold, *way.levels) if pair is not None and pair.name == name), None)


def names(every: Sequence[Topology]) -> list[str]:
    return list(dict.fromkeys(pair.name for way in every for pair in (way.fold, *way.levels) if pair is not None))


@shapes
def test_partners_agree_on_their_pair(nodes: int, per_node: int) -> None:
    every = ways(nodes, per_node)
    for name in names(every):
        for rank, way in enumerate(every):
            pair = pair_of(way, name)
            if pair is None:
                continue
            lower, upper = pair.ranks
            assert lower < upper and (lower if pair.left else upper) == rank
            other = pair_of(every[upper if pair.left else lower], name)
            assert other == Pair(name, pair.ranks, pair.members, not pair.left)
            assert all(pair_of(every[member], name).members == pair.members for member in pair.members)  # type: ignore[union-attr]


@shapes
def test_the_pairs_are_those_of_the_definition(nodes: int, per_node: int) -> None:
    every = ways(nodes, per_node)
    power = 2 ** int(math.log2(nodes))
    assert names(every) == ["fold"] * (nodes > power) + [str(level + 1) for level in range(int(math.log2(power)))]
    for extra in range(power, nodes):
        members = ranks_of((extra - power, extra), per_node)
        assert all(every[rank].fold.members == members for rank in members)  # type: ignore[union-attr]
    folded = {rank for rank, way in enumerate(every) if way.fold is not None}
    assert folded == {*ranks_of(range(power, nodes), per_node), *ranks_of(range(nodes - power), per_node)}
    assert [way.extra for way in every] == [rank >= power * per_node for rank in range(nodes * per_node)]

    def recursion(first: int, last: int) -> None:
        if last - first == 1:
            return
        middle = (first + last) // 2
        recursion(first, middle)
        recursion(middle, last)
        name = str(int(math.log2(last - first)))
        for rank in ranks_of(range(first, last), per_node):
            pair = pair_of(every[rank], name)
            assert pair is not None and pair.members == ranks_of(range(first, last), per_node)
            assert pair.left == (rank < middle * per_node)
            assert pair.ranks[0] < middle * per_node <= pair.ranks[1]
            assert pair.ranks[0] % per_node == pair.ranks[1] % per_node == rank % per_node

    recursion(0, power)
    assert [len(way.levels) for way in every] == [0 if way.extra else int(math.log2(power)) for way in every]


@shapes
def test_halves_match_and_every_row_ends_on_one_rank(nodes: int, per_node: int) -> None:
    every, power = ways(nodes, per_node), 2 ** int(math.log2(nodes))
    assert {way.rows for way in every} == {power * per_node}
    for node in range(nodes):
        neighbours = ranks_of([node], per_node)
        assert covers([(every[rank].start, every[rank].stop) for rank in neighbours], power * per_node)
        assert all(every[rank].node == neighbours for rank in neighbours)
    holds = {rank: (way.start, way.stop) for rank, way in enumerate(every) if not way.extra}
    for name in names(every):
        if name == "fold":
            assert all(
                (every[pair.ranks[0]].start, every[pair.ranks[0]].stop) == (way.start, way.stop)
                for way in every
                if (pair := way.fold) is not None
            )
            continue
        keeps = {}
        for rank, (start, stop) in holds.items():
            pair = pair_of(every[rank], name)
            assert pair is not None and holds[pair.ranks[0]] == holds[pair.ranks[1]] and (stop - start) % 2 == 0
            middle = (start + stop) // 2
            keeps[rank] = (start, middle) if pair.left else (middle, stop)
        holds = keeps
    assert holds == {rank: (way.owned, way.owned + 1) for rank, way in enumerate(every) if not way.extra}
    assert list(holds) == list(range(power * per_node)), "the extra ranks are the last ones"
    assert covers(sorted(holds.values()), power * per_node)


def covers(intervals: Sequence[tuple[int, int]], length: int) -> bool:
    starts, stops = zip(*intervals, strict=True)
    return starts[0] == 0 and stops[-1] == length and starts[1:] == stops[:-1]


@pytest.mark.parametrize(("size", "per_node"), [(3, 2), (8, 3), (2, 4)])
def test_nodes_of_different_sizes_are_refused(size: int, per_node: int) -> None:
    with pytest.raises(ValueError, match=f"^{size} ranks are not a whole number of nodes of {per_node}$"):
        topology.of(0, size, per_node)


class Gang:
    """Ranks as threads of this process: they move the same data as a real gang, without a network."""

    def __init__(self, size: int) -> None:
        self.size, self.lock = size, threading.Lock()
        self.barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self.slots: dict[tuple[int, ...], dict[int, Any]] = {}

    def each(self, work: Callable[["Member"], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as threads:
            futures = [threads.submit(self._guarded, work, rank) for rank in range(self.size)]
        return [future.result() for future in futures]

    def _guarded(self, work: Callable[["Member"], Any], rank: int) -> Any:
        try:
            return work(Member(self, rank, tuple(range(self.size))))
        except BaseException:
            with self.lock:
                for barrier in self.barriers.values():
                    barrier.abort()
            raise

    def swapped(self, ranks: tuple[int, ...], rank: int, values: Any) -> list[Any]:
        with self.lock:
            barrier = self.barriers.setdefault(ranks, threading.Barrier(len(ranks)))
            self.slots.setdefault(ranks, {})[rank] = np.array(values)
        barrier.wait(BARRIER_SECONDS)
        found = [self.slots[ranks][member] for member in ranks]
        barrier.wait(BARRIER_SECONDS)
        return found


class Member:
    """The interface of `Communicator` and `Group`; as on a CPU, only the whole gang can gather without a sum."""

    def __init__(self, gang: Gang, rank: int, ranks: tuple[int, ...]) -> None:
        self.gang, self.rank, self.ranks, self.size = gang, rank, ranks, len(ranks)
        self.place, self.gathers = ranks.index(rank), len(ranks) == gang.size

    def sum(self, values: Floats) -> Floats:
        total: Floats = np.sum(self.gang.swapped(self.ranks, self.rank, values), axis=0, dtype=np.float32)
        return total

    def gather(self, values: Floats) -> Floats:
        return np.stack(self.gang.swapped(self.ranks, self.rank, values))

    def mean(self, values: Floats) -> Floats:
        return values if self.size == 1 else self.gather(values).sum(0) / np.float32(self.size)

    def group(self, ranks: Sequence[int]) -> "Member":
        assert self.rank in ranks and list(ranks) == sorted(set(ranks))
        return Member(self.gang, self.rank, tuple(ranks))


def summed(values: Floats, sizes: Sequence[int], per_node: int = 1) -> list[tuple[Floats, SumStatistics]]:
    """Each rank's result of the sum of `values` (ranks, length)."""

    def work(member: Member) -> tuple[Floats, SumStatistics]:
        whole = AdaptiveSum(sizes, per_node, member)  # type: ignore[arg-type]
        return whole.across(whole.node_mean(values[member.rank]))

    results: list[tuple[Floats, SumStatistics]] = Gang(len(values)).each(work)
    return results


def random(ranks: int, length: int, seed: int) -> Floats:
    """Vectors of different lengths with a common component."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(length)
    values = common + generator.standard_normal((ranks, length)) * generator.uniform(0.5, 2, (ranks, 1))
    return values.astype(np.float32)


@pytest.mark.parametrize(("nodes", "per_node"), LARGE_SHAPES)
def test_the_sum_is_the_definition_at_every_number_of_nodes(nodes: int, per_node: int) -> None:
    sizes = [1, 7, 1, 40, 3, 64, 19]
    values = random(nodes * per_node, sum(sizes), seed=nodes * 100 + per_node)
    reference = adasumreference.Reference(adasumreference.node_means(values, per_node), sizes)
    results = summed(values, sizes, per_node)
    assert adasumreference.error(results[0][0], reference.sum, sizes) < 1
    for whole, told in results:
        assert np.array_equal(whole, results[0][0])
        found = [told.cosine, told.cosine_min, told.gain]
        np.testing.assert_allclose(found, reference.told(), 1e-5, 1e-6)
    levels = ["node"] * (per_node > 1) + names(ways(nodes, per_node)) + ["gather"]
    assert list(results[0][1].seconds) == levels


@examples(60)
@given(
    st.sampled_from(SMALL_SHAPES),
    st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum),
    st.integers(0, 2**31),
)
def test_the_sum_is_the_definition_for_tensors_of_all_sizes(
    shape: tuple[int, int], sizes: list[int], seed: int
) -> None:
    nodes, per_node = shape
    values = random(nodes * per_node, sum(sizes), seed)
    means = adasumreference.node_means(values, per_node)
    whole, told = summed(values, sizes, per_node)[-1]
    reference = adasumreference.Reference(means, sizes)
    # Opposed vectors nearly cancel: the error is relative to the inputs.
    scale = np.linalg.norm(means)
    assert np.linalg.norm(whole - reference.sum) <= 100 * 2.0**-23 * scale
    assert told.cosine_min == pytest.approx(np.min(reference.cosines), abs=1e-4) if reference.cosines else True


def test_seconds_of_a_sum_do_not_carry_over() -> None:
    def work(member: Member) -> list[list[str]]:
        whole = AdaptiveSum([5], 2, member)  # type: ignore[arg-type]
        values = np.ones(5, np.float32)
        first = whole.across(whole.node_mean(values))[1]
        second = whole.across(values)[1]
        return [list(first.seconds), list(second.seconds)]

    assert Gang(4).each(work) == [[["node", "1", "gather"], ["1", "gather"]]] * 4


def test_seconds_across_nodes_exclude_the_mean_within_a_node() -> None:
    assert SumStatistics(1.0, 1.0, 1.0, {"node": 4.0, "1": 2.0, "gather": 1.0}).across_seconds == 3.0


@given(st.lists(st.floats(1e-90, 1e78) | st.floats(-1e78, -1e-90) | st.just(0.0), min_size=3, max_size=9))
def test_scalars_are_sent_to_48_bits(values: list[float]) -> None:
    """From the square of the smallest float32 to that of the largest, and sums of them."""
    doubles = np.array(values)
    (received,) = adaptive_sum._unpacked(adaptive_sum._packed(doubles)[None])
    assert (np.abs(received - doubles) <= 2.0**-48 * np.abs(doubles)).all()
