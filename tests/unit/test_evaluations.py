"""Evaluations of a stage: which is better, when they end the stage, and the same decision after a restart."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api.evaluations import StopWhen
from resnetboost_api.status import EarlyStop
from resnetboost_trainer.checkpoint.evaluations import Evaluated, History, counted, early_stop, evaluated


def found(step: int, top1: float = 0.5, top5: float = 0.9, loss: float = 1.0) -> Evaluated:
    return evaluated(step, top1, top5, loss, averaged=False)


def judged(rule: StopWhen, *evaluations: Evaluated) -> EarlyStop | None:
    """Why the stage ends after the last of them; it must not end before."""
    history: History | None = None
    for place, one in enumerate(evaluations):
        history = counted(history, one, rule)
        if place < len(evaluations) - 1:
            assert early_stop(history, rule) is None, one
    return early_stop(history, rule)


def test_a_target_ends_the_stage_where_it_is_reached_exactly() -> None:
    stopped = judged(StopWhen(top1=0.9), found(10, 0.899999), found(20, 0.9))
    assert stopped == EarlyStop(step=20, reason="TargetReached", message="top1 0.9 reached the target 0.9")


def test_a_loss_reaches_its_target_from_above() -> None:
    assert judged(StopWhen(loss=0.5), found(10, loss=0.6)) is None
    stopped = judged(StopWhen(loss=0.5), found(10, loss=0.6), found(20, loss=0.4))
    assert stopped is not None
    assert stopped.message == "loss 0.4 reached the target 0.5"


def test_several_targets_must_be_met_by_the_same_evaluation() -> None:
    rule = StopWhen(top1=0.9, loss=0.5)
    stopped = judged(rule, found(10, 0.95, loss=0.6), found(20, 0.8, loss=0.4), found(30, 0.9, loss=0.5))
    assert stopped is not None
    assert stopped.message == "top1 0.9 and loss 0.5 reached the targets 0.9 and 0.5"


def test_patience_counts_evaluations_in_a_row_that_are_no_better() -> None:
    rule = StopWhen(patience=2)
    assert judged(rule, *(found(step, top1) for step, top1 in ((1, 0.5), (2, 0.5), (3, 0.6), (4, 0.6)))) is None
    stopped = judged(rule, *(found(step, top1) for step, top1 in ((1, 0.5), (2, 0.6), (3, 0.6), (4, 0.55))))
    message = "top1 has not improved over 0.6 in 2 evaluations"
    assert stopped == EarlyStop(step=4, reason="NoImprovement", message=message)


def test_an_improvement_must_exceed_the_least_one() -> None:
    rule = StopWhen(metric="loss", patience=2, min_delta=0.25)
    stopped = judged(rule, *(found(step, loss=loss) for step, loss in ((1, 2.0), (2, 1.75), (3, 1.8))))
    assert stopped is not None
    assert stopped.message == "loss has not improved over 2 by more than 0.25 in 2 evaluations"
    assert judged(rule, *(found(step, loss=loss) for step, loss in ((1, 2.0), (2, 1.8), (3, 1.5), (4, 1.4)))) is None


def test_a_loss_that_is_not_finite_never_counts_as_better_and_stays_readable() -> None:
    rule = StopWhen(metric="loss", loss=0.5, patience=2)
    history = counted(None, found(1, loss=float("nan")), rule)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
    assert early_stop(history, rule) is None
    history = counted(history, found(2, loss=3.0), rule)
    assert (history.best, history.unimproved) == (3.0, 0)
    assert judged(rule, *(found(step, loss=float("inf")) for step in (1, 2, 3))) is not None


def test_an_evaluation_that_a_resumed_run_repeats_counts_once() -> None:
    rule = StopWhen(patience=2)
    history = counted(counted(None, found(1), rule), found(2), rule)
    assert counted(history, found(2), rule) == history
    assert early_stop(history, rule) is None


def test_another_metric_begins_a_new_history_and_another_patience_does_not() -> None:
    history = counted(counted(None, found(1), StopWhen(patience=2)), found(2), StopWhen(patience=2))
    assert early_stop(history, StopWhen(patience=1)) is not None
    assert counted(history, found(3), StopWhen(patience=3)).unimproved == 2
    assert counted(history, found(3), StopWhen(patience=3, metric="loss")).unimproved == 0


FIGURES = st.floats(0, 1).map(lambda value: round(value, 6))


@given(
    st.lists(st.tuples(FIGURES, FIGURES, st.floats(0, 10, width=32)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.sampled_from(
        [
            {"top1": 0.8},
            {"patience": 2},
            {"patience": 2, "metric": "loss", "min_delta": 0.1},
            {"loss": 1.0, "patience": 3},
        ]
    ),
)
def test_a_restart_at_any_point_decides_the_same(
    figures: list[tuple[float, float, float]], kill: int, fields: dict[str, Any]
) -> None:
    rule = StopWhen(**fields)
    evaluations = [found(step, *figure) for step, figure in enumerate(figures, 1)]
    straight: History | None = None
    restarted: History | None = None
    for one in evaluations:
        straight = counted(straight, one, rule)
        restarted = counted(restarted, one, rule)
        if one.step == kill:
            restarted = msgspec.json.decode(msgspec.json.encode(restarted), type=History)
            restarted = counted(restarted, one, rule)  # evaluated again at its end
        assert early_stop(restarted, rule) == early_stop(straight, rule)
