"""Judges what the ranks of a gang measured: who is slow, and who computes something else. Pure arithmetic.

Every rank judges the same gathered numbers, so that all come to the same verdict without another collective.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

WRONG, UNSTEADY, DISAGREEING = "WrongResult", "UnsteadyResult", "DisagreeingResult"
SLOW_COMPUTE, SLOW_COLLECTIVE, SLOW_NODE = "SlowCompute", "SlowCollective", "SlowNode"
# Sums of real numbers depend on their order, and devices multiply with 10 bits or more: 2^-11 is a factor's error.
NORM_TOLERANCE = 1e-3


class Measurement(msgspec.Struct, frozen=True):
    """What one rank measured.

    `compute` is in GFLOP/s, `link` (the best all-reduce with a neighbour) and `node` (that of its node) are in MB/s, 0
    where there is none. `digests` are of results that must have the same bits on every rank; `steady`: each had the
    same every time. `norm` is of a product of real numbers, the same up to rounding.
    """

    index: int
    compute: float
    link: float
    node: float
    digests: tuple[int, ...]
    steady: bool
    norm: float


class Suspicion(msgspec.Struct, frozen=True):
    """A rank that stands out. `share` is its rate over the gang's median, None for a wrong result."""

    rank: int
    reason: str
    share: float | None = None


def wrong(measured: Sequence[Measurement], known: Sequence[int | None]) -> tuple[Suspicion, ...]:
    """Ranks with another result than the others, each once. `known` are the digests that exact arithmetic gives.

    The majority is right, whatever is known: a device may have arithmetic of its own. Without a majority the known
    result decides, if any rank has it; else all ranks are named, since nobody can tell who is right.
    """
    found = {rank: UNSTEADY for rank, one in enumerate(measured) if not one.steady}
    for place, right in enumerate(known):
        for rank, reason in _outvoted([one.digests[place] for one in measured], right):
            found.setdefault(rank, reason)
    for rank in _far_off([one.norm for one in measured]):
        found.setdefault(rank, WRONG if len(measured) > 2 else DISAGREEING)
    return tuple(Suspicion(rank, reason) for rank, reason in sorted(found.items()))


def _outvoted(digests: Sequence[int], known: int | None) -> Iterator[tuple[int, str]]:
    votes = Counter(digests)
    if len(votes) == 1:
        return
    digest, count = votes.most_common(1)[0]
    right = digest if 2 * count > len(digests) else known
    reason = WRONG if right in votes else DISAGREEING  # of these no rank has the right one, as far as anybody knows
    yield from ((rank, reason) for rank, digest in enumerate(digests) if digest != right)


def _far_off(norms: Sequence[float]) -> Iterator[int]:
    finite = [norm for norm in norms if math.isfinite(norm)]
    middle = statistics.median(finite) if finite else 0.0
    for rank, norm in enumerate(norms):
        if not math.isfinite(norm) or abs(norm - middle) > NORM_TOLERANCE * abs(middle):
            yield rank


def slow(measured: Sequence[Measurement], compute_below: float, collective_below: float) -> tuple[Suspicion, ...]:
    """Ranks below a share of the gang's median rate, each once, for computing first; the slowest first."""
    found: dict[int, Suspicion] = {}
    for reason, rates, below in (
        (SLOW_COMPUTE, [one.compute for one in measured], compute_below),
        (SLOW_COLLECTIVE, [one.link for one in measured], collective_below),
        (SLOW_NODE, [one.node for one in measured], collective_below),
    ):
        for rank, share in _shares(rates):
            if share < below:
                found.setdefault(rank, Suspicion(rank, reason, share))
    return tuple(sorted(found.values(), key=lambda one: (one.share or 0.0, one.rank)))


def _shares(rates: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Each rank's rate over the median; none where nothing was measured. The median of two is their mean."""
    middle = statistics.median(rates)
    if middle > 0:
        yield from ((rank, rate / middle) for rank, rate in enumerate(rates))


def twice(first: Sequence[Suspicion], second: Sequence[Suspicion]) -> tuple[Suspicion, ...]:
    """Ranks that were slow for the same reason both times: something else on a node passes, a slow device stays."""
    before = {(one.rank, one.reason) for one in first}
    return tuple(one for one in second if (one.rank, one.reason) in before)
