"""What a launcher does next: at most one rank at a time, attempts that only grow, and an end that kubelet can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_api.launcher import StartAttempt
from resnetboost_trainer.launcher.state import (
    STOPPED_EXIT_CODE,
    UNANSWERED_SECONDS,
    Exit,
    Kill,
    LauncherState,
    Start,
    Terminate,
    Wait,
)

CONFIG = {"attempt": 1}


def command(attempt: int, delay_seconds: float = 0.0) -> StartAttempt:
    return StartAttempt(attempt, {"attempt": attempt}, 8118 + attempt, delay_seconds)


def running(attempt: int = 0) -> LauncherState:
    state = LauncherState(3, attempt)
    assert state.next(0.0) == Start(attempt)
    state.started(attempt)
    assert not state.report().running, "its process may need a while"
    state.runs()
    assert state.report().running
    return state


def failed(exit_code: int = 137) -> LauncherState:
    """A launcher whose rank failed at 100 s."""
    state = running()
    state.ended(exit_code, "words", 5.0, 100.0)
    return state


def test_the_first_attempt_starts_with_the_containers_own_configuration() -> None:
    assert LauncherState(0, 7).next(0.0) == Start(7, None, None)


def test_a_failed_rank_is_reported_and_its_container_lives_until_the_deadline() -> None:
    state = failed()
    report = state.report()
    assert (report.running, report.end and (report.end.exit_code, report.end.message)) == (False, (137, "words"))
    assert state.next(100.0) == Wait(100.0 + UNANSWERED_SECONDS)
    assert state.next(100.0 + UNANSWERED_SECONDS) == Exit(137, "words")


def test_a_successful_rank_ends_its_container_at_once_whatever_is_commanded() -> None:
    state = failed(0)
    assert not state.command(command(1), 100.0)
    assert state.next(100.0) == Exit(0, "words")


def test_a_command_in_time_starts_the_rank_again_after_the_back_off() -> None:
    state = failed()
    assert state.command(command(1, delay_seconds=30.0), 105.0)
    assert state.next(100.0 + UNANSWERED_SECONDS) == Wait(135.0)
    assert state.next(135.0) == Start(1, {"attempt": 1}, 8119)


def test_a_running_rank_is_killed_and_reaped_before_the_next_starts() -> None:
    state = running()
    state.command(command(1), 10.0)
    assert state.next(10.0) == Kill()
    assert not state.report().running, "a rank of an earlier attempt does not count"
    state.ended(137, "", 0.0, 11.0)
    assert state.report().end is None, "the end of a killed rank is no failure of the new attempt"
    assert state.next(11.0) == Start(1, {"attempt": 1}, 8119)


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_a_number_that_does_not_grow_changes_nothing(attempt: int) -> None:
    state = running(2)
    assert not state.command(command(attempt), 10.0)
    assert (state.attempt, state.next(10.0)) == (2, Wait())


def test_a_container_that_is_asked_to_end_waits_for_its_rank_and_takes_its_exit_code() -> None:
    state = running()
    state.stop()
    assert state.next(0.0) == Terminate()
    state.ended(16, "saved", 0.0, 40.0)
    assert state.next(40.0) == Exit(16, "saved")


@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_a_container_that_is_asked_to_end_starts_no_rank(delay: float) -> None:
    state = failed()
    state.command(command(1, delay), 101.0)
    state.stop()
    assert state.next(101.0) == Exit(STOPPED_EXIT_CODE)
    assert not state.command(command(2), 102.0)


@given(st.lists(st.tuples(st.sampled_from(["command", "end", "stop", "wait"]), st.integers(0, 6), st.integers(0, 30))))
def test_whatever_happens_there_is_one_rank_and_attempts_grow(steps: list[tuple[str, int, int]]) -> None:
    state, now, rank, started = LauncherState(0, 0), 0.0, None, [-1]
    for word, number, seconds in steps:
        now += seconds
        if word == "command":
            state.command(command(number, float(seconds)), now)
        elif word == "end" and rank is not None:
            state.ended(number, "", now, now)
            rank = None
        elif word == "stop":
            state.stop()
        action = state.next(now)
        assert action == state.next(now), "asking twice changes nothing"
        if isinstance(action, Start):
            assert rank is None
            assert action.attempt > started[-1]
            rank = action.attempt
            started.append(rank)
            state.started(rank)
        assert not (isinstance(action, Exit) and rank is not None)
        assert not isinstance(action, Kill) or rank != state.attempt
        assert state.report().attempt == state.attempt >= started[-1]
        if isinstance(action, Exit):
            return
