"""Distributed inversion: each block is inverted on one rank, and the inverses are gathered on all ranks."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.optim.thor import assignment, inverse

Floats = NDArray[np.float32]


class Damped(NamedTuple):
    """A factor's diagonal blocks (n, size, size), the same on every rank, and the damping of their diagonals."""

    blocks: Floats
    damping: float


class _Share(NamedTuple):
    """A run of neighbouring blocks of one factor, and the rank that inverts them."""

    owner: int
    factor: int
    start: int
    stop: int


def inverted(factors: Sequence[Damped], communicator: Communicator) -> list[Floats]:
    """Return the inverses of all factors' blocks, the same bits on every rank; NaN if singular. One collective.

    Blocks, not factors, are assigned to ranks by cost: this balances up to 16 ranks for ResNet-50, where the largest
    factor alone is a fifth of the work (architecture: KAISA, Pauloski et al. 2021, which assigns whole factors).
    """
    if communicator.size == 1:
        return inverse.invert_all(factors)
    shares = list(_shares(factors, communicator.size))
    given = [_given(factors, share) for share in shares if share.owner == communicator.rank]
    results = [inverses.reshape(-1) for inverses in inverse.invert_all(given)]
    amounts = [0] * communicator.size
    for share in shares:
        amounts[share.owner] += _numbers(factors, share)
    own = np.zeros(max(amounts), np.float32)
    own[: amounts[communicator.rank]] = np.concatenate(results) if results else []
    return _assembled(factors, shares, communicator.gather(own))


def _shares(factors: Sequence[Damped], ranks: int) -> Iterator[_Share]:
    """Assign every block to one rank; yield neighbouring blocks with the same owner as one share."""
    places = [place for factor, damped in enumerate(factors) for place in _places(factor, damped)]
    costs = [float((stop - start) * factors[factor].blocks.shape[1] ** 3) for factor, start, stop in places]
    current: _Share | None = None
    for (factor, start, stop), owner in zip(places, assignment.assign(costs, ranks), strict=True):
        if current is not None and (current.owner, current.factor) == (owner, factor):
            current = current._replace(stop=stop)
            continue
        if current is not None:
            yield current
        current = _Share(owner, factor, start, stop)
    if current is not None:
        yield current


def _places(factor: int, damped: Damped) -> Iterator[tuple[int, int, int]]:
    """Yield the units of a factor to assign: a diagonal as a whole, other factors by block."""
    count, size, _ = damped.blocks.shape
    step = count if size == 1 else 1
    for start in range(0, count, step):
        yield factor, start, start + step


def _given(factors: Sequence[Damped], share: _Share) -> Damped:
    blocks, damping = factors[share.factor]
    return Damped(blocks[share.start : share.stop], damping)


def _assembled(factors: Sequence[Damped], shares: Sequence[_Share], gathered: Floats) -> list[Floats]:
    """Assemble the inverses from the gathered results of all ranks, (ranks, largest amount)."""
    inverses = [np.empty_like(damped.blocks) for damped in factors]
    taken = [0] * len(gathered)
    for share in shares:
        begin, numbers = taken[share.owner], _numbers(factors, share)
        target = inverses[share.factor][share.start : share.stop]
        target[:] = gathered[share.owner, begin : begin + numbers].reshape(target.shape)
        taken[share.owner] += numbers
    return inverses


def _numbers(factors: Sequence[Damped], share: _Share) -> int:
    return (share.stop - share.start) * factors[share.factor].blocks.shape[1] ** 2
