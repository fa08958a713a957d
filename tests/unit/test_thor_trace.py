"""THOR's trace rule: which layers are updated, kept or stopped."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from resnetboost_trainer.optim.thor.trace_rule import Decision, decide, first_state, kronecker_trace, outdated, updated

UPDATE, KEEP, STOP = Decision
State = NDArray[np.float32]


class Rule(msgspec.Struct, frozen=True):
    update_above: float
    stop_below: float
    smoothing: float


PAPER = Rule(0.01, 0.001, 0)  # THOR_stop
NO_RULE = Rule(0, 0, 0)  # THOR_NT


NEVER, ALWAYS = np.array([False]), np.array([True])


def run(
    traces: list[float],
    rule: Rule,
    failing: tuple[int, ...] = (),
    state: State | None = None,
    outdated: tuple[int, ...] = (),
) -> list[Decision]:
    """Decisions for one layer over candidates; the numbered updates fail."""
    state = first_state(1) if state is None else state
    decisions = []
    for candidate, trace in enumerate(traces):
        state, (decision,) = decide(state, np.array([trace]), rule, ALWAYS if candidate in outdated else NEVER)
        if decision is UPDATE and candidate not in failing:
            state = updated(state, np.array([True]))
        decisions.append(decision)
    return decisions


@pytest.mark.parametrize("last", [1e-20, 3.0, 7e20], ids=["tiny", "ordinary", "huge"])
@pytest.mark.parametrize("sign", [-1, 1], ids=["falling", "rising"])
@pytest.mark.parametrize(
    ("change", "decision"),
    [
        (0.01 + 1e-6, UPDATE),
        (0.01 - 1e-6, KEEP),
        (0.001 + 1e-6, KEEP),
        (0.001 - 1e-6, STOP),
        (0.0, STOP),
        (0.9, UPDATE),
    ],
    ids=["just above w1", "just below w1", "just above w2", "just below w2", "no change", "far above w1"],
)
def test_thresholds(last: float, sign: int, change: float, decision: Decision) -> None:
    assert run([last, last * (1 + sign * change)], PAPER) == [UPDATE, decision]


def test_the_change_is_relative_to_the_last_update() -> None:
    assert run([100, 100.6, 101.2, 101.8], PAPER) == [UPDATE, KEEP, UPDATE, KEEP]


def test_a_stopped_layer_stays_stopped() -> None:
    assert run([100, 100, 500, 0, np.nan], PAPER) == [UPDATE, STOP, STOP, STOP, STOP]


def test_nothing_is_stopped_below_a_threshold_of_zero() -> None:
    assert run([100, 100, 100], Rule(0.01, 0, 0)) == [UPDATE, KEEP, KEEP]


def test_everything_is_updated_without_thresholds() -> None:
    assert run([100, 100, 101], NO_RULE) == [UPDATE, UPDATE, UPDATE]


def test_a_stopped_layer_stays_stopped_when_the_thresholds_are_taken_away() -> None:
    state = np.array([[100, 100, 1]], np.float32)
    assert run([500], NO_RULE, state=state) == [STOP]


def test_an_update_that_failed_leaves_the_trace_of_the_one_that_succeeded() -> None:
    assert run([100, 200, 200, 200.1], PAPER, failing=(1,)) == [UPDATE, UPDATE, UPDATE, STOP]
    assert run([100, 200, 100.5], PAPER, failing=(1,)) == [UPDATE, UPDATE, KEEP]


def test_a_layer_whose_first_update_failed_is_tried_again() -> None:
    assert run([100, 100, 100], PAPER, failing=(0,)) == [UPDATE, UPDATE, STOP]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39], ids=["undefined", "infinite", "infinite as float32"])
def test_a_trace_that_is_not_finite_keeps_the_layer_and_is_forgotten(bad: float) -> None:
    for rule in (PAPER, Rule(0.01, 0.001, 0.5)):
        assert run([bad, 100, bad, 105], rule) == [KEEP, UPDATE, KEEP, UPDATE]
    assert run([100, bad], NO_RULE) == [UPDATE, KEEP]


def test_smoothing_starts_at_the_first_trace_and_halves_jumps() -> None:
    half = Rule(0.01, 0, 0.5)
    state, _ = decide(first_state(1), np.array([100.0]), half, NEVER)
    assert state.tolist() == [[0, 100, 0]]
    state, _ = decide(updated(state, np.array([True])), np.array([101.9]), half, NEVER)
    assert state[0] == pytest.approx([100, 100.95, 0])
    assert run([100, 101.9], half) == [UPDATE, KEEP]
    assert run([100, 102.1], half) == [UPDATE, UPDATE]


def test_smoothing_sees_a_drift_through_noise_that_would_update_every_time() -> None:
    noise = np.random.default_rng(0).normal(1, 0.1, 50)
    assert run(list(100 * noise), Rule(0.2, 0, 0)).count(UPDATE) > 2 * run(list(100 * noise), Rule(0.2, 0, 0.9)).count(
        UPDATE
    )
    assert UPDATE in run(list(noise * np.linspace(100, 200, 50)), Rule(0.2, 0, 0.9))[1:]


@pytest.mark.parametrize(
    ("last", "damping", "expected"),
    [(0.1, 0.1, False), (0.1, 0.0701, False), (0.1, 0.0699, True), (0.1, 0.142, False), (0.1, 0.144, True)],
    ids=["the same", "hardly lower", "lower", "hardly higher", "higher"],
)
def test_inverses_are_outdated_where_the_damping_has_fallen_or_risen_by_three_tenths(
    last: float, damping: float, expected: bool
) -> None:
    assert outdated(np.array([last], np.float32), damping).tolist() == [expected]
    assert outdated(np.array([1e-20 * last], np.float32), 1e-20 * damping).tolist() == [expected]


def test_a_damping_that_is_not_known_is_outdated() -> None:
    assert outdated(np.zeros(2, np.float32), 1e-30).tolist() == [True, True]


def test_an_outdated_layer_is_updated_whatever_its_trace_says_and_a_stopped_one_stays_stopped() -> None:
    assert run([100, 100.5, 100.5], Rule(0.01, 0, 0), outdated=(1,)) == [UPDATE, UPDATE, KEEP]
    assert run([100, 100, 500, 500, 500], PAPER, outdated=(1, 3)) == [UPDATE, UPDATE, STOP, UPDATE, STOP]


def test_a_layer_that_is_left_out_or_has_no_finite_trace_is_not_updated_for_being_outdated() -> None:
    left_out = np.array([[0, 0, 2]], np.float32)
    assert run([100], PAPER, state=left_out, outdated=(0,)) == [STOP]
    assert run([100, np.nan], PAPER, outdated=(1,)) == [UPDATE, KEEP]
    assert run([100, 100, np.inf], PAPER, outdated=(2,)) == [UPDATE, STOP, STOP]


@given(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.99)),
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-6, 10)), min_size=1, max_size=20),
)
def test_inverses_always_have_a_damping_near_that_of_now(
    three: tuple[float, float, float], candidates: list[tuple[float, float]]
) -> None:
    rule = Rule(max(three[:2]), min(three[:2]), three[2])
    state, last = first_state(1), np.zeros(1, np.float32)
    for trace, damping in candidates:
        state, (decision,) = decide(state, np.array([trace]), rule, outdated(last, damping))
        if decision is UPDATE:
            state, last[:] = updated(state, np.array([True])), damping
        assert 0.7 - 1e-6 <= last[0] / damping <= 1 / 0.7 + 1e-6


def test_layers_are_independent() -> None:
    rows = np.array([[100, 100, 0], [100, 100, 0], [100, 100, 0], [100, 100, 1], [0, 0, 0], [100, 100, 0]], np.float32)
    traces = np.array([105, 100.5, 100, 105, 3, np.nan])
    after, decisions = decide(rows, traces, PAPER, np.zeros(6, bool))
    assert decisions == [UPDATE, KEEP, STOP, STOP, UPDATE, KEEP]
    alone = [decide(rows[k : k + 1], traces[k : k + 1], PAPER, NEVER)[0][0] for k in range(6)]
    assert np.array_equal(after, alone)
    assert np.array_equal(updated(after, np.array([1, 0, 0, 0, 1, 0], bool))[:, 0], [105, 100, 100, 100, 3, 100])


def test_a_stopped_layers_state_stays_what_it_was() -> None:
    state = np.array([[100, 100.5, 1]], np.float32)
    assert decide(state, np.array([500.0]), PAPER, NEVER)[0].tolist() == state.tolist()


def test_the_state_given_is_not_changed() -> None:
    state = np.array([[90, 100, 0]], np.float32)
    decide(state, np.array([120.0]), PAPER, NEVER)
    updated(state, np.array([True]))
    assert state.tolist() == [[90, 100, 0]]


rules = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.99)).map(
    lambda three: Rule(max(three[:2]), min(three[:2]), three[2])
)


@given(rules, st.lists(st.floats(0, 1e39) | st.just(np.nan), min_size=1, max_size=12), st.integers(0, 12))
def test_decisions_are_the_same_after_a_checkpoint_and_a_stop_survives_it(
    rule: Rule, traces: list[float], cut: int
) -> None:
    state, kept = first_state(1), []
    for trace in traces[:cut]:
        state, (decision,) = decide(state, np.array([trace]), rule, NEVER)
        state = updated(state, np.array([decision is UPDATE]))
        kept.append(decision)
    restored = np.frombuffer(state.tobytes(), np.float32).reshape(1, 3)
    decisions = run(traces, rule)
    assert kept + run(traces[cut:], rule, state=restored) == decisions
    assert STOP not in decisions or set(decisions[decisions.index(STOP) :]) == {STOP}


def test_kronecker_trace_is_the_trace_of_the_product() -> None:
    generator = np.random.default_rng(0)
    a, g = generator.normal(size=(3, 3)), generator.normal(size=(2, 2))
    fisher = 7 * np.kron(a, g)
    one = np.ones(1)
    got = kronecker_trace(7 * one, np.trace(a) * one, np.trace(g) * one)
    assert got == pytest.approx(np.array([np.trace(fisher)]))
