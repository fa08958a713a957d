"""Computes the adaptive sum (Adasum) of a flat vector over the nodes of a gang.

    Adasum(a, b) = (1 - <a, b> / (2 |a|^2)) a + (1 - <a, b> / (2 |b|^2)) b          for each tensor by itself
    Adasum(g_[0,n)) = Adasum(Adasum(g_[0,n/2)), Adasum(g_[n/2,n)))                  for n = 2^k nodes

(Maleki et al. 2021, §3). Orthogonal vectors are added, parallel ones averaged. For any other number of nodes, the
surplus is folded first: node j >= 2^k, with 2^k the largest power of two below, is combined with node j - 2^k.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.distributed.adasum import host, passes, topology
from resnetboost_trainer.distributed.adasum.host import LEFT, PRODUCT, RIGHT, Doubles
from resnetboost_trainer.distributed.adasum.layout import Layout
from resnetboost_trainer.distributed.adasum.topology import Pair
from resnetboost_trainer.distributed.communicator import Communicator, Floats

# Statistics of a pair, reported by its first rank: [sum of the cosines, their count, the least, gain]. NO_PAIR is
# reported by all other ranks.
COSINES, COUNT, LEAST, GAIN = range(4)
PairStatistics = tuple[float, float, float, float]
NO_PAIR: PairStatistics = (0.0, 0.0, 1.0, 0.0)
UNFOLDED: PairStatistics = (0.0, 0.0, 1.0, 1.0)


class SumStatistics(msgspec.Struct, frozen=True):
    """Statistics of an adaptive sum, the same on every rank except `seconds`, which are this rank's by level.

    Cosines are between the two vectors of a pair, by tensor: their mean and minimum over tensors, pairs and levels
    (nan if everything is zero). `gain` is the norm of a pair's adaptive sum over that of its mean, averaged over a
    level and multiplied over the levels: 1 for parallel vectors, the number of nodes for orthogonal ones, and more for
    opposed ones, since Adasum lengthens their remainder.
    """

    cosine: float
    cosine_min: float
    gain: float
    seconds: dict[str, float]

    @property
    def across_seconds(self) -> float:
        """Time of everything except the mean within the node."""
        return sum(seconds for level, seconds in self.seconds.items() if level != "node")


class AdaptiveSum:
    """Adaptive sum of flat vectors of tensors of `sizes` over nodes of `ranks_per_node` neighbouring ranks each."""

    def __init__(self, sizes: Sequence[int], ranks_per_node: int, communicator: Communicator) -> None:
        """Create the groups. A collective. Raises ValueError if the gang is not a whole number of nodes,
        CommunicationError."""
        self.communicator = communicator
        ways = [topology.of(rank, communicator.size, ranks_per_node) for rank in range(communicator.size)]
        self.way, self.levels = ways[communicator.rank], len(ways[0].levels)
        self.folds = any(way.fold for way in ways)
        self.layout = Layout(sizes, [way.owned for way in ways if not way.extra])
        self.node = communicator.group(self.way.node)
        for pair in filter(None, (self.way.fold, *self.way.levels)):
            communicator.group(pair.ranks)
            communicator.group(pair.members)
        # Buffers are reused: the first touch of new memory is a good part of a sum's cost.
        share = self.layout.share
        self._rows, self._whole = np.zeros((self.way.rows, share), np.float32), np.empty(self.layout.length, np.float32)
        self._swap = np.empty(-(-(self.way.stop - self.way.start) // 2) * share + 2 * len(sizes), np.float32)
        self._row = np.zeros(share + (1 + self.levels) * len(NO_PAIR), np.float32)
        self._seconds: dict[str, float] = {}

    def node_mean(self, values: Floats) -> Floats:
        """Return the mean over this rank's node, the input of `across`. A collective of the node."""
        self._seconds = {}
        if self.node.size == 1:
            return values
        started = time.perf_counter()
        mean = self.node.mean(values)
        self._seconds["node"] = time.perf_counter() - started
        return mean

    def across(self, values: NDArray[np.floating[Any]]) -> tuple[Floats, SumStatistics]:
        """Return the adaptive sum over the nodes, (length,), the same bits on every rank. A collective of the gang.

        `values` must be finite and the same on all ranks of a node; half precision is summed in float32. The next call
        overwrites the result.
        """
        self.layout.spread(values, self._rows)
        piece = self._rows[self.way.start : self.way.stop]
        # If nodes are folded, a node without a partner counts as a pair of gain 1.
        statistics = [UNFOLDED if self.folds and self.communicator.rank == self.way.node[0] else NO_PAIR]
        if self.way.fold is not None:
            piece, found = self._folded(piece, self.way.fold)
            statistics = [found]
        for pair in self.way.levels:
            piece, found = self._halved(piece, pair)
            statistics.append(found)
        return self._gathered(piece, statistics)

    def _folded(self, piece: Floats, pair: Pair) -> tuple[Floats, PairStatistics]:
        """Combine the pieces of a pair, half on each rank, and gather the halves; the extra rank is then done."""
        began = time.perf_counter()
        half, found = self._combined(piece, pair)
        whole = self.communicator.group(pair.ranks).gather(half.reshape(-1)).reshape(piece.shape)
        self._seconds[pair.name] = time.perf_counter() - began
        return whole.copy(), found

    def _halved(self, piece: Floats, pair: Pair) -> tuple[Floats, PairStatistics]:
        began = time.perf_counter()
        result = self._combined(piece, pair)
        self._seconds[pair.name] = time.perf_counter() - began
        return result

    def _combined(self, piece: Floats, pair: Pair) -> tuple[Floats, PairStatistics]:
        """Compute this rank's half of the pair's adaptive sum, in place, and the pair's statistics."""
        half = len(piece) // 2
        first, second = piece[:half], piece[half:]
        kept, given = (first, second) if pair.left else (second, first)
        bounds = self.layout.bounds
        squares = passes.products(given, given, bounds)[1]
        received = self._swapped(given, squares, pair)
        product, others = passes.products(kept, received, bounds)
        own = np.zeros((len(squares), 3))
        own[:, LEFT if pair.left else RIGHT] = squares + others
        own[:, PRODUCT] = product
        scalars = self._total(own, pair)
        left, right = (kept, received) if pair.left else (received, kept)
        passes.combine(left, right, bounds, host.coefficients(scalars), result=kept)
        return kept, self._statistics(scalars, pair)

    def _swapped(self, given: Floats, squares: Doubles, pair: Pair) -> Floats:
        """Exchange halves with the other rank of the pair; return the received one.

        On CPUs the only collective of two ranks is a sum. With each rank's part of a tensor scaled to a norm from 1/2
        to 1, the sum minus one's own part is the other's, to float32's rounding at any scale of both; a sum with zeros
        would be exact, but twice the traffic. Both ranks' exponents follow the numbers, in separate places.
        """
        group = self.communicator.group(pair.ranks)
        if group.gathers:
            received: Floats = group.gather(given.reshape(-1))[1 - group.place].reshape(given.shape)
            return received
        tensors, exponents = len(squares), host.exponents(squares)
        sent = self._swap[: given.size + 2 * tensors]
        numbers, of_both = sent[: given.size].reshape(given.shape), sent[given.size :].reshape(2, tensors)
        passes.scale(given, self.layout.bounds, -exponents, numbers)
        of_both[:] = 0
        of_both[group.place] = exponents
        total = group.sum(sent)
        theirs = total[given.size :].reshape(2, tensors)[1 - group.place].astype(np.int32)
        passes.unscale(total[: given.size].reshape(given.shape), numbers, self.layout.bounds, theirs)
        return numbers

    def _statistics(self, scalars: Doubles, pair: Pair) -> PairStatistics:
        if self.communicator.rank != pair.members[0]:
            return NO_PAIR
        cosines = host.cosines(scalars)
        return float(cosines.sum()), float(len(cosines)), float(cosines.min(initial=1.0)), host.gain(scalars)

    def _total(self, own: Doubles, pair: Pair) -> Doubles:
        """Return the pair's complete scalars by tensor, (tensors, 3), summed in the same order on every rank."""
        every = self.communicator.group(pair.members).gather(_packed(own))
        total: Doubles = _unpacked(every).sum(0).reshape(own.shape)
        return total

    def _gathered(self, piece: Floats, statistics: Sequence[PairStatistics]) -> tuple[Floats, SumStatistics]:
        """Gather the sum and its statistics from the parts of all ranks, in one collective."""
        began = time.perf_counter()
        share, lines = self.layout.share, 1 + self.levels
        row, whole = self._row, self._whole
        if not self.way.extra:
            row[:share] = piece[0]
        row[share:] = np.array([*statistics, *[NO_PAIR] * (lines - len(statistics))], np.float32).reshape(-1)
        rows = self.communicator.gather(row)
        self.layout.collect(rows[:, :share], whole)
        self._seconds["gather"] = time.perf_counter() - began
        seconds, self._seconds = self._seconds, {}
        lines_of_ranks = rows[:, share:].reshape(len(rows), lines, -1).astype(np.float64)
        return whole, _summary(lines_of_ranks, seconds)


def _summary(lines: Doubles, seconds: dict[str, float]) -> SumStatistics:
    """Aggregate all ranks' statistics, (ranks, levels, 4), in which each pair is reported once."""
    count = lines[:, :, COUNT].sum()
    gains, pairs = lines[:, :, GAIN].sum(0), (lines[:, :, GAIN] > 0).sum(0)
    return SumStatistics(
        cosine=float(lines[:, :, COSINES].sum() / count) if count else np.nan,
        cosine_min=float(lines[:, :, LEAST].min()) if count else np.nan,
        gain=float(np.prod(np.divide(gains, pairs, out=np.ones_like(gains), where=pairs > 0))),
        seconds=seconds,
    )


def _packed(values: Doubles) -> Floats:
    """Encode doubles as float32, the only type that can be sent: [upper bits, lower bits, exponent], to 48 bits."""
    mantissa, exponent = np.frexp(values.reshape(-1))
    upper = mantissa.astype(np.float32)
    lower = (mantissa - upper).astype(np.float32)
    return np.concatenate([upper, lower, exponent.astype(np.float32)])


def _unpacked(rows: Floats) -> Doubles:
    upper, lower, exponent = np.split(rows.astype(np.float64), 3, axis=1)
    values: Doubles = np.ldexp(upper + lower, exponent.astype(np.int32))
    return values
