"""Draws a sweep's curve with characters, and says what follows from it."""

import math
from collections.abc import Iterator

from resnetboost_operator.cli.lrfind.sweep import Suggestion, Sweep

WIDTH, HEIGHT = 64, 12
CLIP = 1.2  # losses are shown up to this multiple of the first: a diverged one would flatten the rest


def curve(sweep: Sweep) -> Iterator[str]:
    """The smoothed loss by the learning rate, which grows by the same factor from column to column."""
    losses = sweep.smoothed
    highest, lowest = min(max(losses), CLIP * losses[0]), min(losses)
    columns = [losses[place * (len(losses) - 1) // (WIDTH - 1)] for place in range(WIDTH)]
    span = highest - lowest or 1.0
    rows = [round((HEIGHT - 1) * (highest - min(loss, highest)) / span) for loss in columns]
    for height in range(HEIGHT):
        value = highest - span * height / (HEIGHT - 1)
        label = f"{value:8.3g}" if height % 3 == 0 or height == HEIGHT - 1 else " " * 8
        yield f"{label} │" + "".join("*" if row == height else " " for row in rows).rstrip()
    yield " " * 9 + "└" + "─" * WIDTH
    first, middle, last = sweep.rates[0], math.sqrt(sweep.rates[0] * sweep.rates[-1]), sweep.rates[-1]
    yield f"{'loss':>8}  {first:<26.2g}{middle:^12.2g}{last:>26.2g}  learning rate"


def words(suggestion: Suggestion | None) -> Iterator[str]:
    """The suggestion and its rule, or why there is none."""
    if suggestion is None:
        yield "no suggestion: the loss never fell by more than noise; sweep to a higher rate with --to, or more --steps"
        return
    yield f"the loss falls most steeply at {suggestion.steepest:.2g}"
    if suggestion.diverged is None:
        yield "it has not diverged; sweep to a higher rate with --to"
    else:
        yield f"it has come back by half of its fall at {suggestion.diverged:.2g}"
    yield f"suggestion: learningRate.peak = {suggestion.rate:.2g}"
    yield "(a tenth of the rate where the loss diverges; that of the steepest fall if it does not)"
