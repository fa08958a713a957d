"""Communication pattern of an adaptive sum: which ranks exchange which pieces, for any number of nodes.

A node's vector is split into pieces on its ranks. Recursive halving (vector halving, distance doubling, like Horovod):
two nodes swap the halves of their pieces that the other keeps, so each level halves the data. Nodes beyond the largest
power of two are first folded into the lowest ones, one pair each.
"""

import msgspec


class Pair(msgspec.Struct, frozen=True):
    """One pairwise combination of a rank's piece with that of a rank of another node.

    `ranks` are the two ranks, the left one first; `left` is true if this rank's vector is the left one, which keeps the
    first half. `members` are all ranks with a part of either vector, ascending: the pair's scalars are sums over them.
    """

    name: str
    ranks: tuple[int, int]
    members: tuple[int, ...]
    left: bool


class Topology(msgspec.Struct, frozen=True):
    """A rank's steps through an adaptive sum.

    The vector is split into `rows` rows; this rank starts with [start, stop) of its node's. An `extra` rank is done
    after its fold; each of the others, which come first, holds row `owned` of the sum after the last level.
    """

    node: tuple[int, ...]
    rows: int
    start: int
    stop: int
    fold: Pair | None
    levels: tuple[Pair, ...]
    extra: bool
    owned: int


def of(rank: int, size: int, ranks_per_node: int) -> Topology:
    """Return the topology of `rank` among `size` ranks, in nodes of `ranks_per_node` neighbouring ranks.

    Raises ValueError if the ranks are not a whole number of nodes.
    """
    if size % ranks_per_node:
        raise ValueError(f"{size} ranks are not a whole number of nodes of {ranks_per_node}")
    nodes = size // ranks_per_node
    power = 1 << (nodes.bit_length() - 1)
    node, local = divmod(rank, ranks_per_node)
    extra = node >= power
    levels = () if extra else tuple(_level(node, local, level, ranks_per_node) for level in range(_log2(power)))
    return Topology(
        node=_ranks((node,), ranks_per_node),
        rows=power * ranks_per_node,
        start=local * power,
        stop=(local + 1) * power,
        fold=_fold(node, local, nodes, power, ranks_per_node),
        levels=levels,
        extra=extra,
        owned=local * power + _offset(levels, power),
    )


def _fold(node: int, local: int, nodes: int, power: int, ranks_per_node: int) -> Pair | None:
    lower = node % power
    if lower + power >= nodes:
        return None
    both = (lower, lower + power)
    pair = tuple(partner * ranks_per_node + local for partner in both)
    return Pair("fold", (pair[0], pair[1]), _ranks(both, ranks_per_node), left=node < power)


def _level(node: int, local: int, level: int, ranks_per_node: int) -> Pair:
    distance = 1 << level
    left = node & distance == 0
    lower = node if left else node - distance
    block = node // (2 * distance) * 2 * distance
    members = _ranks(tuple(range(block, block + 2 * distance)), ranks_per_node)
    pair = (lower * ranks_per_node + local, (lower + distance) * ranks_per_node + local)
    return Pair(str(level + 1), pair, members, left)


def _offset(levels: tuple[Pair, ...], rows: int) -> int:
    """Return the offset of the row that a rank keeps after all halvings."""
    offset = 0
    for pair in levels:
        rows //= 2
        offset += 0 if pair.left else rows
    return offset


def _ranks(nodes: tuple[int, ...], ranks_per_node: int) -> tuple[int, ...]:
    return tuple(node * ranks_per_node + local for node in nodes for local in range(ranks_per_node))


def _log2(power: int) -> int:
    return power.bit_length() - 1
