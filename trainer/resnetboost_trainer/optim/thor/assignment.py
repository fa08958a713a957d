"""Assigns blocks to the ranks that invert them, by cost: longest processing time first."""

import heapq
from collections.abc import Sequence


def assign(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """Return the owner of every item: items by descending cost, each to the rank with the least load so far.

    Graham 1969, "Bounds on Multiprocessing Timing Anomalies"; KAISA assigns layers the same way. Ties go to the lower
    index and the lower rank, so every rank computes the same answer. The largest load is at most
    the mean + (1 - 1 / ranks) * the largest cost.
    """
    owners = [0] * len(costs)
    loads = [(0.0, rank) for rank in range(ranks)]
    for item in sorted(range(len(costs)), key=lambda k: -costs[k]):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + costs[item], rank))
        owners[item] = rank
    return tuple(owners)
