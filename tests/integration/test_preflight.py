"""The preflight on real ranks: it names the one that is slow or wrong, ends all ranks together, and changes no bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import onerank, rankgang

pytestmark = pytest.mark.slow

# Shares that a busy machine does not come near by chance; what is slowed takes four times as long.
CALM = {"computeBelow": 0.5, "collectiveBelow": 0.05}
CASES = {
    "plain": CALM,
    "slow": CALM,
    "slow and out": CALM | {"action": "Exclude"},
    "flipped": CALM,
    "unsteady": CALM,
    "stopped": CALM,
}

Left = dict[str, Any]


def gang(ranks: int, folder: Path, cases: dict[str, Any]) -> list[Left]:
    """What each rank found in each case; the last rank has the trouble."""
    (folder / "rule.json").write_text(json.dumps(cases))
    return [json.loads(str(left["left"])) for left in rankgang.run("preflightrank.py", ranks, folder)]


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Left]:
    return gang(request.param, tmp_path_factory.mktemp("preflight"), CASES)


def named(left: Left, case: str) -> list[tuple[int, int, str]]:
    suspects = left[case].get("suspects", [])
    return [(one["rank"], one["index"], one["reason"]) for one in suspects]


def test_healthy_ranks_compute_the_same_bits_and_nobody_is_named(found: list[Left]) -> None:
    assert [named(left, "plain") for left in found] == [[]] * len(found)
    assert len({str(left["plain"]["own"]["digests"]) for left in found}) == 1
    assert all(left["plain"]["collectiveRate"] > 0 for left in found)


def test_every_rank_names_the_one_that_computes_four_times_as_long(found: list[Left]) -> None:
    last = len(found) - 1
    for left in found:
        assert named(left, "slow") == [(last, 100 + last, "SlowCompute")]
        assert left["slow"]["suspects"][0]["percent"] < 60


def test_every_rank_names_the_one_with_a_flipped_bit(found: list[Left]) -> None:
    last = len(found) - 1
    assert [named(left, "flipped") for left in found] == [[(last, 100 + last, "WrongResult")]] * len(found)
    assert [named(left, "unsteady") for left in found] == [[(last, 100 + last, "UnsteadyResult")]] * len(found)


def test_to_exclude_a_rank_all_ranks_end_with_the_same_words(found: list[Left]) -> None:
    errors = {left["slow and out"]["error"].partition(" at ")[0] for left in found}
    last = len(found) - 1
    assert errors == {f"PreflightFailed: the preflight named index {100 + last}, rank {last} (SlowCompute"}


def test_all_ranks_stop_when_one_is_asked_to(found: list[Left]) -> None:
    assert {left["stopped"]["error"].partition(":")[0] for left in found} == {"Interrupted"}


def test_random_state_is_untouched(found: list[Left]) -> None:
    assert all(left["same random state"] for left in found)


def test_ranks_of_one_node_are_measured_together(tmp_path: Path) -> None:
    for left in gang(4, tmp_path, {"plain": CALM | {"ranksPerNode": 2}}):
        assert left["plain"]["own"]["node"] > 0 < left["plain"]["own"]["link"]


def test_a_run_with_a_preflight_comes_to_the_bits_of_one_without(tmp_path: Path) -> None:
    def train(uid: str, config: dict[str, Any]) -> dict[str, bytes]:
        settings = {"everySteps": onerank.STEPS, "keepCompiledGraphs": False}
        onerank.train(tmp_path, 0, uid, config=config, changes=["dataset.workers=1"], **settings)
        return onerank.final_weights(tmp_path / "checkpoints" / uid / "base" / "attempt-0")

    assert train("with", {"preflight": {}}) == train("without", {})
    ended = json.loads((tmp_path / "with-0.json").read_text())
    assert ended["class"] == "Succeeded"
