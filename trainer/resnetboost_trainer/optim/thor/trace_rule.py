"""THOR's trace rule: decides whether a layer's curvature is updated, kept, or no longer updated.

Chen et al., "THOR, Trace-based Hardware-driven layer-ORiented Natural Gradient Descent Computation" (AAAI 2021), with
a moving average: traces of small batches jump by more than any useful threshold.

A layer's inverses also contain the damping of their update. The paper's rule, on tr(F + damping I), reacts to changes
of the damping and little else (`kronecker_trace`), so here trace and damping are separate conditions. Inverses whose
damping is too far from the schedule's are recomputed from the current batch's factors, whatever the trace, for stopped
layers too. Keeping all factors to invert them again would cost as much memory and checkpoint space as the inverses, and
the inversion of every layer at every candidate, for an exact instead of an approximate damping.
"""

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST, AVERAGE, STOPPED = range(3)

# Values of STOPPED: live, stopped for ever by the rule, or excluded from the start.
LIVE, BY_RULE, LEFT_OUT = range(3)


# The inverses' damping is close enough while the smaller of it and the schedule's is at least this share of the larger.
# A direction is then at most 1 / 0.7 of the exact one, which is the change of trace that the default rule allows; a
# halving of the damping costs a layer two updates.
DAMPING_WITHIN = 0.7


class Decision(IntEnum):
    """Decision for a layer's factors and inverses at a candidate update."""

    UPDATE = 0
    KEEP = 1
    STOP = 2


class Rule(Protocol):
    """The paper's thresholds w1 >= w2 >= 0, and the old trace's weight in the moving average, 0 to below 1."""

    @property
    def update_above(self) -> float: ...

    @property
    def stop_below(self) -> float: ...

    @property
    def smoothing(self) -> float: ...


def kronecker_trace(positions: Array, trace_a: Array, trace_g: Array) -> Array:
    """Return tr F for F = positions * (A kron G), by layer (layers,), using tr(A kron G) = tr(A) tr(G).

    The paper uses tr(F + damping I). With 36864 weights and damping 0.03 that is 1106 plus a curvature of 1: after 50
    steps of resnet20 the damping was 99.9 % of it, and the rule followed the damping's schedule, not the layer. For a
    convolution with groups, with positions / groups, it is exact if the groups are alike.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinity times zero is nan: `decide` keeps such a layer
        return positions * trace_a * trace_g


def first_state(layers: int) -> NDArray[np.float32]:
    """Return the state before the first candidate, (layers, 3).

    Columns: the average trace at the last update (0: never), the current average (0: none yet), and whether the layer
    is live, stopped or left out. This is the rule's complete state; it is float32, so that a run resumed from a
    checkpoint makes the same decisions.
    """
    return np.zeros((layers, 3), np.float32)


def outdated(dampings: NDArray[np.float32], damping: float) -> NDArray[np.bool_]:
    """Return a mask of the layers whose inverses' damping (layers,) is too far from the current one.

    0 means unknown, from an old checkpoint, and is always too far.
    """
    last = dampings.astype(np.float64)
    return (damping < DAMPING_WITHIN * last) | (last < DAMPING_WITHIN * damping)


def decide(
    state: NDArray[np.float32], traces: Array, rule: Rule, outdated: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], list[Decision]]:
    """Return the next state and each layer's decision, from traces (layers,) that are the same on every rank.

    With D the relative change of the average trace since the last update: D > w1 updates, D < w2 stops for ever,
    anything between keeps. A layer never updated is updated; with both thresholds 0 every layer is. An `outdated`
    layer (mask (layers,)) is updated even if the rule would keep it or has stopped it, and stays stopped. A trace that
    is not finite keeps its layer and the average unchanged. The trace of the last update changes only when `updated`
    records that the update succeeded.
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
    """Return the relative change since the last update; infinite for a layer never updated or if `always`."""
    known = (last > 0) & (not always)
    return np.where(known, np.abs(average - last) / np.where(known, last, 1), np.inf)


def updated(state: NDArray[np.float32], layers: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Record an update of the layers in a mask (layers,): changes now count from their current trace."""
    after = state.copy()
    after[layers, LAST] = state[layers, AVERAGE]
    return after
