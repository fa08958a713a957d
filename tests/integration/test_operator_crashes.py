"""The operator is killed around every write of every scenario; the outcome equals that of an undisturbed run.

A seeded sample always runs, all of them in `make test-chaos`. $CHAOS_SEED chooses another sample.
"""

import os
import pprint
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from beds.cluster import ControlPlane
from beds.operator import Account, chaos, scenarios
from beds.operator.chaos import Outcome, Point
from beds.operator.proxy import When

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kueue_installed")]

SAMPLE = 2
SEED = int(os.environ.get("CHAOS_SEED", "0"))
AT_ONCE = 10  # each takes ten seconds, one of them on a core: it waits for polls and for writes that are put off
# A crash may add some writes; a run that ends before its crash tests nothing and is cheap.
MORE_WRITES = 2
EVERY_WRITE = Point(0, "after")


class Undisturbed(dict[str, Outcome]):
    """How each scenario ends without a crash; each is played when it is first looked up."""

    def __init__(self, plane: ControlPlane, account: Account) -> None:
        super().__init__()
        self._plane, self._account = plane, account

    def __missing__(self, name: str) -> Outcome:
        return self.setdefault(name, chaos.play(self._plane, self._account, name))


@pytest.fixture(scope="module")
def undisturbed(control_plane: ControlPlane, account: Account) -> Undisturbed:
    return Undisturbed(control_plane, account)


@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_without_a_crash_nothing_is_created_twice(undisturbed: Undisturbed, scenario: str) -> None:
    end = undisturbed[scenario].end
    assert set(end.created.values()) == {1}
    assert {f"pods/{name}" for name in end.objects["pods"]} <= set(end.created)


@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_a_crash_around_some_writes_changes_nothing(
    control_plane: ControlPlane, account: Account, undisturbed: Undisturbed, scenario: str
) -> None:
    points = points_of(undisturbed[scenario])
    sample = random.Random(f"{SEED} {scenario}").sample(points, SAMPLE)
    check(control_plane, account, scenario, [EVERY_WRITE, *sample], undisturbed[scenario])


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.parametrize("scenario", scenarios.ALL)
def test_a_crash_around_any_write_changes_nothing(
    control_plane: ControlPlane, account: Account, undisturbed: Undisturbed, scenario: str
) -> None:
    points = points_of(undisturbed[scenario])
    check(control_plane, account, scenario, [EVERY_WRITE, *points], undisturbed[scenario])


def points_of(outcome: Outcome) -> list[Point]:
    return [Point(write, when) for write in range(1, outcome.writes + MORE_WRITES + 1) for when in get_args(When)]


def check(plane: ControlPlane, account: Account, scenario: str, points: Sequence[Point], expected: Outcome) -> None:
    def difference(point: Point) -> str:
        try:
            found = chaos.play(plane, account, scenario, point)
        except AssertionError as error:
            return "\n".join([f"{point}: {error}", *error.__notes__])
        enough = len(expected.end.created) if point == EVERY_WRITE else point.write <= expected.writes - MORE_WRITES
        assert found.deaths >= enough, f"{point}: died only {found.deaths} times"
        return "" if found.end.agrees(expected.end) else f"{point}: {pprint.pformat(found.end)}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        differences = [found for found in pool.map(difference, points) if found]
    assert not differences, "\n\n".join([f"expected: {pprint.pformat(expected.end)}", *differences])
