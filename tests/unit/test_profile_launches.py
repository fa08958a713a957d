"""`resnetboost profile` shows launches and what they cost apart from the operators themselves."""

import io

import pytest
from rich.console import Console

from resnetboost_api.profile import Operator, Part, Profile, Spread, Times
from resnetboost_operator.cli.profile import launches, text


def part(name: str, milliseconds: float, in_operators: float | None) -> Part:
    seconds = milliseconds / 1000
    return Part(name, Spread(seconds, seconds, seconds), in_operators)


def times(*operators: Operator) -> Times:
    step = Spread(0.010, 0.010, 0.010)
    parts = [part("data", 0.5, None), part("forward", 4, 0.5), part("backward", 5, 0.8)]
    return Times(step, step, parts, operators)


RECORDED = times(
    Operator("forward", "Conv2d", "64x16x8x8", 40, 0.0015),
    Operator("forward", "ReLU", "64x16x8x8", 10, 0.0005),
    Operator("backward", "Conv2d", "64x16x8x8", 20, 0.004),
)


def test_a_launch_costs_its_share_of_the_time_without_an_operator() -> None:
    forward, backward = launches.by_part(RECORDED)
    assert (forward.part, forward.count, backward.part, backward.count) == ("forward", 50, "backward", 20)
    assert (forward.seconds, forward.each) == pytest.approx((0.002, 40e-6))
    assert (backward.seconds, backward.each) == pytest.approx((0.001, 50e-6))


def test_the_launches_of_a_step_are_those_of_its_parts() -> None:
    whole = launches.together(RECORDED)
    assert whole is not None
    assert (whole.count, whole.seconds) == pytest.approx((70, 0.003))


def test_without_recorded_operators_no_launches_are_shown() -> None:
    assert launches.together(times()) is None


def test_the_table_shows_them() -> None:
    profile = Profile(
        "digits", "base", "resnet20", "Momentum", "digits", "CPU", 1, 2, 64, 20, "2.10", "onednn", RECORDED
    )
    screen = Console(file=io.StringIO(), width=120)
    text.show(screen, profile)
    assert isinstance(screen.file, io.StringIO)
    rows = {tuple(line.split()) for line in screen.file.getvalue().splitlines()}
    assert ("forward", "50", "2", "20.0", "%", "40.0") in rows
    assert any(row[:3] == ("all", "parts", "70") for row in rows)
