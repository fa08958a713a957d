"""Every algorithm on 4, then 2, then 1, then 4 real ranks, each time from a checkpoint in the middle of an epoch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from support import rankgang
from support.elasticcases import LOCAL_BATCH, RANKS, SAMPLES, STAGES

pytestmark = pytest.mark.slow

Results = list[dict[str, NDArray[Any]]]

# (ranks, first step, end): no end is that of an epoch, which has six steps, or three with accumulation.
GANGS = ((4, 0, 4), (2, 4, 8), (1, 8, 10), (4, 10, 14))
END = GANGS[-1][-1]
LOSS, _, LEFT_OUT, SCALE = range(4)

# Of a step's loss from the undisturbed run's, relative to it: float32 sums in another order. docs/elastic.md states it.
LOSS_WITHIN = 2e-6
# Of the numbers of a checkpoint's array, relative to the largest of them.
STATE_WITHIN = 2e-5


class Trained:
    """What came of the gangs, and of the one that was left undisturbed."""

    def __init__(self, folder: Path, cases: Sequence[str]) -> None:
        self.folder = folder
        chosen = {"CASES": "|".join(cases)}
        self.gangs: list[Results] = []
        for ranks, first, end in GANGS:
            through = {"THROUGH": str(END)} if first == 0 else {}
            self.gangs.append(
                rankgang.run("elasticrank.py", ranks, folder, FIRST=str(first), END=str(end), **chosen, **through)
            )

    def told(self, case: str) -> NDArray[np.float64]:
        """(steps, [loss, norm, left out, scale]) of the gangs."""
        gangs = zip(GANGS, self.gangs, strict=True)
        return np.stack([gang[0][f"{case}.{step}.told"] for (_, a, b), gang in gangs for step in range(a, b)])

    def undisturbed(self, case: str) -> NDArray[np.float64]:
        whole = self.gangs[0][0]
        first = GANGS[0][-1]
        return np.stack([whole[f"{_prefix(step >= first)}{case}.{step}.told"] for step in range(END)])

    def samples(self, case: str, step: int) -> NDArray[np.int64]:
        """The samples of each micro batch of a step, in the order of the virtual ranks."""
        place = next(place for place, (_, first, end) in enumerate(GANGS) if first <= step < end)
        return np.concatenate([rank[f"{case}.{step}.samples"] for rank in self.gangs[place]])

    def undisturbed_samples(self, case: str, step: int) -> NDArray[np.int64]:
        key = f"{_prefix(step >= GANGS[0][-1])}{case}.{step}.samples"
        return np.concatenate([rank[key] for rank in self.gangs[0]])


def _prefix(later: bool) -> str:
    return "undisturbed." if later else ""


Find = Callable[[str], Trained]


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Returns what came of the gangs of a case; each gang trains a few cases, because a start takes seconds."""
    groups: dict[tuple[str, ...], Trained] = {}

    def of(case: str) -> Trained:
        group = next(group for group in batched(STAGES) if case in group)
        if group not in groups:
            groups[group] = Trained(tmp_path_factory.mktemp("elastic"), group)
        return groups[group]

    return of


def batched(cases: Iterable[str], size: int = 3) -> Iterator[tuple[str, ...]]:
    left = iter(cases)
    while group := tuple(islice(left, size)):
        yield group


@pytest.mark.parametrize("case", STAGES)
def test_losses_are_those_of_a_gang_that_never_changed(find: Find, case: str) -> None:
    trained = find(case)
    ours, theirs = trained.told(case), trained.undisturbed(case)
    difference = np.abs(ours[:, LOSS] - theirs[:, LOSS]) / theirs[:, LOSS]
    print(f"{case}: {difference.max():.1e}")
    assert difference.max() < LOSS_WITHIN
    assert np.ptp(theirs[:, LOSS]) > 0.1, "it did not train"
    if "dynamicLossScale" in STAGES[case]:
        assert 2 < theirs[:, LEFT_OUT].sum() < END - 4, "the scale was never tested"
    np.testing.assert_array_equal(ours[:, [LEFT_OUT, SCALE]], theirs[:, [LEFT_OUT, SCALE]])


@pytest.mark.parametrize("case", STAGES)
def test_each_micro_batch_has_the_same_samples_and_no_epoch_has_one_twice(find: Find, case: str) -> None:
    trained = find(case)
    steps = [trained.samples(case, step) for step in range(END)]
    for step, found in enumerate(steps):
        np.testing.assert_array_equal(found, trained.undisturbed_samples(case, step))
    per_epoch = SAMPLES // (RANKS * LOCAL_BATCH * len(steps[0]) // RANKS)
    for first, end in pairwise(range(0, END + 1, per_epoch)):
        epoch = np.concatenate(steps[first:end]).reshape(-1)
        assert len(set(epoch.tolist())) == len(epoch) == per_epoch * steps[0].size


@pytest.mark.parametrize("case", STAGES)
def test_the_state_of_a_checkpoint_moves_to_other_ranks_without_a_changed_bit(find: Find, case: str) -> None:
    trained = find(case)
    for gang in trained.gangs[1:]:
        assert gang[0][f"{case}.changed"].tolist() == []
    shards = {f"rank-{rank:04d}.safetensors" for rank in range(RANKS)}
    for _, _, end in GANGS:
        files = {path.name for path in (trained.folder / f"{case}-{end}").iterdir()}
        assert {name for name in files if name.startswith("rank-")} == shards


@pytest.mark.parametrize("case", STAGES)
def test_the_last_state_is_that_of_the_gang_that_never_changed(find: Find, case: str) -> None:
    trained = find(case)
    ours, theirs = trained.folder / f"{case}-{END}", trained.folder / f"undisturbed.{case}-{END}"
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    for path in theirs.iterdir():
        found = safetensors.numpy.load_file(ours / path.name)
        for name, values in safetensors.numpy.load_file(path).items():
            scale = max(float(np.abs(values).max()), 1e-3)
            worst = float(np.abs(found[name] - values).max() / scale)
            assert worst < STATE_WITHIN, f"{path.name}: {name}"


@pytest.mark.parametrize("case", STAGES)
def test_evaluations_use_the_mean_of_all_virtual_ranks(find: Find, case: str) -> None:
    trained = find(case)
    for (_, _, end), gang in zip(GANGS, trained.gangs, strict=True):
        saved = trained.folder / f"{case}-{end}"
        model = safetensors.numpy.load_file(saved / "model.safetensors")
        average = {}
        if (saved / "ema.safetensors").exists():
            average = safetensors.numpy.load_file(saved / "ema.safetensors")
        expected = {name: model[name] for name in model if "moving" in name}
        expected |= {f"average.{name}": value for name, value in average.items()}
        found = {name.removeprefix(f"{case}.evaluated."): value for name, value in gang[0].items()}
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("case", [case for case in STAGES if "THOR" in case])
def test_thor_decides_as_the_gang_that_never_changed(find: Find, case: str) -> None:
    trained = find(case)
    decided, gangs = 0, zip(GANGS[1:], trained.gangs[1:], strict=True)
    for (_, first, end), gang in gangs:
        for step in range(first, end):
            key = f"{case}.{step}.curvature"
            theirs = trained.gangs[0][0].get(f"undisturbed.{key}")
            assert (key in gang[0]) == (theirs is not None), step
            if theirs is not None:
                assert gang[0][key].tolist() == theirs.tolist(), step
                decided += 1
    assert decided > 2
