"""The rate that a sweep suggests, the curve in the terminal, and the rates that are tried."""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from resnetboost_operator.cli.lrfind import sweep, text
from resnetboost_operator.cli.lrfind.sweep import Sweep
from resnetboost_operator.errors import UserError
from resnetboost_trainer.cli.lr_find import exponential

RATES = exponential(1e-5, 10, 121)  # twenty to a decade


def falling(last: float, noise: float = 0.0) -> Sweep:
    """A loss of 2 that falls to 1 around a rate of 0.01, and from 1 on has grown by the logarithm of its multiples."""
    losses = [
        1 + 1 / (1 + (rate / 0.01) ** 2) + max(0.0, math.log10(rate)) + noise * (-1) ** place
        for place, rate in enumerate(RATES)
        if rate <= last
    ]
    return Sweep(RATES[: len(losses)], losses)


def test_rates_grow_by_the_same_factor_from_the_first_to_the_last() -> None:
    assert RATES[0] == 1e-5 and RATES[-1] == pytest.approx(10)
    assert [after / before for before, after in pairwise(RATES)] == pytest.approx([10 ** (1 / 20)] * 120)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_tenth_of_where_the_loss_has_come_back_by_half_of_its_fall(noise: float) -> None:
    found = falling(10, noise).suggestion()
    assert found is not None and found.diverged is not None
    assert found.diverged == pytest.approx(10**0.5, rel=0.3)
    assert found.rate == found.diverged / 10


def test_a_loss_that_does_not_diverge_suggests_its_steepest_fall() -> None:
    found = falling(0.9).suggestion()
    assert found is not None and found.diverged is None
    assert found.rate == found.steepest == pytest.approx(0.01, rel=0.2)


def test_a_loss_that_is_suddenly_not_finite_has_diverged_there(tmp_path: Path) -> None:
    sound = falling(0.9)
    rows = [f"{step},{rate},{loss}" for step, (rate, loss) in enumerate(zip(sound.rates, sound.losses, strict=True))]
    file = tmp_path / "sweep.csv"
    file.write_text("\n".join(["step,learning_rate,loss", *rows, "99,0.95,inf", ""]))
    found = sweep.read(file).suggestion()
    assert found is not None
    assert (found.diverged, found.rate) == (0.95, 0.095)


@pytest.mark.parametrize("losses", [[2.0] * 40, [2 + place / 10 for place in range(40)], [2.0, 1.96] * 20])
def test_a_loss_that_never_falls_suggests_nothing(losses: list[float]) -> None:
    found = Sweep(RATES[:40], losses)
    assert found.suggestion() is None
    assert "no suggestion" in next(text.words(None))
    assert len(list(text.curve(found))) == text.HEIGHT + 2


def test_the_curve_begins_above_where_it_falls_and_shows_first_and_last_rate() -> None:
    lines = list(text.curve(falling(10)))
    places = [lines[row].index("*") for row in range(text.HEIGHT) if "*" in lines[row]]
    assert places[0] > places[1] or lines[1].startswith(" ")
    assert "1e-05" in lines[-1] and "10" in lines[-1]
    assert all(len(line) <= 80 for line in lines[:-1])


def test_a_sweep_that_ends_at_once_names_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("step,learning_rate,loss\n1,0.5,2.3\n2,0.6,9.1\n")
    with pytest.raises(UserError, match=r"diverged after 2 steps, .* lower rate with --from"):
        sweep.read(file)
