"""Which ranks reduce together, so that a slow connection can be told from its neighbours'. Pure.

All ranks wait for the slowest in an all-reduce of the gang: its time names nobody. In a ring of pairs each rank has two
connections; one that is slow in both is slow itself, and its neighbours have one good one.
"""

Ranks = tuple[int, ...]


def node_of(rank: int, size: int, per_node: int) -> Ranks:
    """The ranks of a rank's node; only itself if nothing is known of nodes."""
    first = rank - rank % per_node
    return tuple(range(first, min(first + per_node, size)))


def rounds(size: int, per_node: int) -> tuple[tuple[Ranks, ...], ...]:
    """The pairs of each round; no rank is in two pairs of a round. Two ranks have one pair, which nothing compares to.

    Ranks pair with those of the same place on the next node, or with their neighbours if there is only one node: a
    connection inside a node is not compared with one between nodes.
    """
    step = per_node if per_node < size and size % per_node == 0 else 1
    nodes = size // step
    if size == 2:
        return ()
    return tuple(
        tuple(tuple(sorted((step * low + place, step * high + place))) for low, high in ring for place in range(step))
        for ring in _ring(nodes)
    )


def _ring(count: int) -> list[list[tuple[int, int]]]:
    """The edges of a ring in rounds: two of an even one, three of an odd one, one of two, none of one."""
    edges = [(node, (node + 1) % count) for node in range(count if count > 2 else count - 1)]
    odd = [edges.pop()] if count > 2 and count % 2 else []
    return [part for part in (edges[::2], edges[1::2], odd) if part]
