"""The trace rule of THOR: whether a layer's curvature is updated, kept, or no longer watched; it computes no factor.

Chen et al., "THOR, Trace-based Hardware-driven layer-ORiented Natural Gradient Descent Computation" (AAAI 2021), with
a moving average: traces of small batches jump by more than any useful threshold.

A layer's inverses also have the damping of their update in them. The paper's rule sees a change of the damping, being
about tr(F + damping I), and little else (`kronecker_trace`); so here the two are asked apart. Inverses whose damping is
too far from the schedule's are made anew, whatever the trace says, of stopped layers too, from the factors of that
batch. To keep all factors and invert those again would cost as much memory and room in checkpoints as the inverses,
and the inversion of every layer at every candidate, for a damping that is exact instead of near.
"""

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST, AVERAGE, STOPPED = range(3)

# What a layer's STOPPED is: live, stopped for ever by the rule, or never part of it.
LIVE, BY_RULE, LEFT_OUT = range(3)


# A damping in inverses is near enough while it and the schedule's are at least such a share of each other. A direction
# is then at most 1 / 0.7 of what it would be: as much as the default rule lets a trace change, and a halving of the
# damping costs a layer two updates.
DAMPING_WITHIN = 0.7


class Decision(IntEnum):
    """What becomes of a layer's factors and inverses at a candidate update."""

    UPDATE = 0
    KEEP = 1
    STOP = 2


class Rule(Protocol):
    """The thresholds w1 >= w2 >= 0 of the paper, and the share of the old trace in the moving average, 0 to below 1."""

    @property
    def update_above(self) -> float: ...

    @property
    def stop_below(self) -> float: ...

    @property
    def smoothing(self) -> float: ...


def kronecker_trace(positions: Array, trace_a: Array, trace_g: Array) -> Array:
    """tr F of F = positions * (A kron G), by layer (layers,): tr(A kron G) = tr(A) tr(G).

    The paper has tr(F + damping I). With 36864 weights and damping 0.03 that is 1106 and a curvature of 1: after 50
    steps of resnet20 the damping was 99.9 % of it, and the rule followed the schedule of the damping, not the layer.
    For the groups of a convolution, with positions / groups, it is exact where the groups are alike.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinite times zero: `decide` leaves such a layer alone
        return positions * trace_a * trace_g


def first_state(layers: int) -> NDArray[np.float32]:
    """The state before the first candidate, (layers, 3).

    Columns: the average trace at the last update (0: never), the average now (0: none yet), and whether the layer is
    live, stopped or left out. That is all the rule remembers; float32, so that a checkpoint restores it to the same
    decisions.
    """
    return np.zeros((layers, 3), np.float32)


def outdated(dampings: NDArray[np.float32], damping: float) -> NDArray[np.bool_]:
    """Which layers have inverses with a damping (layers,) too far above or below that of now.

    0 stands for one that is not known, in a checkpoint from before it was kept, and is too far from any.
    """
    last = dampings.astype(np.float64)
    return (damping < DAMPING_WITHIN * last) | (last < DAMPING_WITHIN * damping)


def decide(
    state: NDArray[np.float32], traces: Array, rule: Rule, outdated: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], list[Decision]]:
    """The next state and what to do with each layer, from traces (layers,) that are the same on every rank.

    With D the relative change of the average trace since the last update: D > w1 updates, D < w2 stops for ever,
    anything between keeps. A layer never updated is updated; with both thresholds 0 every layer is. One that is
    `outdated` (layers,) is updated also where the rule would keep it or has stopped it, and stays stopped. A trace that
    is not finite keeps its layer and leaves the average alone. The trace of the last update stays what it is until
    `updated` says that the update succeeded.
    """
    last, average, stopped = state.astype(np.float64).T
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = traces.astype(np.float32).astype(np.float64)
        mixed = np.where(average > 0, rule.smoothing * average + (1 - rule.smoothing) * rounded, rounded)
    live = np.isfinite(rounded) & (stopped == 0)
    after = state.copy()
    after[live, AVERAGE] = mixed[live]
    change = _change(after[:, AVERAGE].astype(np.float64), last, always=rule.update_above == 0)
    after[live & (change < rule.stop_below), STOPPED] = BY_RULE
    decisions = np.where(live & (change > rule.update_above), Decision.UPDATE, Decision.KEEP)
    decisions[after[:, STOPPED] > 0] = Decision.STOP
    decisions[outdated & np.isfinite(rounded) & (after[:, STOPPED] != LEFT_OUT)] = Decision.UPDATE
    return after, [Decision(decision) for decision in decisions]


def _change(average: Array, last: Array, always: bool) -> Array:
    """Relative change since the last update; infinite for a layer never updated, and for all without thresholds."""
    known = (last > 0) & (not always)
    return np.where(known, np.abs(average - last) / np.where(known, last, 1), np.inf)


def updated(state: NDArray[np.float32], layers: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The state after the layers of a mask (layers,) have new inverses: changes count from their present trace."""
    after = state.copy()
    after[layers, LAST] = state[layers, AVERAGE]
    return after
