"""Compiled graphs kept for a restart: reused where nothing has changed, and never otherwise."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from support import familygradients, onerank, rankgang

pytestmark = pytest.mark.slow

Found = dict[str, NDArray[Any]]

ORDER = ["affine", "squares"]
X = np.arange(4, dtype=np.float32)
FILES = "uid/base/graphs/*/*.graph"


def start(folder: Path, ranks: int = 1, order: list[str] = ORDER, **changes: Any) -> list[Found]:
    """Start ranks and return their results; the folder has the graphs of earlier starts."""
    (folder / "plan.json").write_bytes(msgspec.json.encode({"order": order, **changes}))
    return rankgang.run("kept_graphs.py", ranks, folder)


def counts(found: Found) -> tuple[int, int]:
    return int(found["compiled"]), int(found["reused"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after a first start."""
    folder = tmp_path_factory.mktemp("kept")
    [found] = start(folder)
    assert counts(found) == (2, 0)
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(kept, tmp_path / "copy"))


def test_a_graph_is_found_in_any_order_of_compilation(folder: Path) -> None:
    """MindSpore alone would match graphs by their order of compilation."""
    [found] = start(folder, order=["squares", "affine"], weight=5.0)
    assert counts(found) == (0, 2)
    assert (found["affine"] == 10 * X + 1).all(), "weights are this start's"
    assert (found["squares"] == X * X).all()


def test_a_graph_that_was_not_kept_compiles_beside_those_that_were(folder: Path) -> None:
    [found] = start(folder, order=["affine", "flat", "squares"])
    assert found["reused"] >= 1
    assert (found["flat"] == [0, 1, 1, 2, 3]).all()
    assert (found["squares"] == X * X).all()
    [again] = start(folder, order=["flat", "squares", "affine"])
    assert counts(again) == (0, 3)
    assert (again["flat"] == found["flat"]).all()


@pytest.mark.parametrize(
    ("change", "affine"),
    [
        ({"factor": 4.0}, 12 * X + 1),
        ({"constant": 7.0}, 6 * X + 7),
        ({"size": 3}, 6 * X[:3] + 1),
        ({"seed": 1}, 6 * X + 1),
    ],
    ids=["a-number", "a-tensor", "a-shape", "the-configuration"],
)
def test_a_graph_of_other_code_or_settings_is_not_reused(folder: Path, change: dict[str, Any], affine: Any) -> None:
    [found] = start(folder, order=["affine"], **change)
    assert counts(found) == (1, 0)
    assert (found["affine"] == affine).all()


def test_after_a_crash_in_a_graph_all_compile_again(folder: Path) -> None:
    (folder / "kept/uid/base/graphs/trial").touch()
    [found] = start(folder)
    assert counts(found) == (2, 0)
    [again] = start(folder)
    assert counts(again) == (0, 2)


def test_the_leader_keeps_the_graphs_for_all_ranks(tmp_path: Path) -> None:
    order = ["flat", "affine"]
    first = start(tmp_path, 2, order)
    assert counts(first[0]) == (2, 0)
    second = start(tmp_path, 2, order[::-1])
    for before, after in zip(first, second, strict=True):
        assert counts(after) == (0, 2)
        assert all((before[name] == after[name]).all() for name in order)
    assert (second[0]["flat"] == second[1]["flat"]).all()


def test_a_restart_with_kept_graphs_comes_to_the_same_bits(tmp_path: Path) -> None:
    def train(attempt: int, uid: str, keep: bool) -> Path:
        onerank.train(tmp_path, attempt, uid, everySteps=onerank.STEPS // 4, keepCompiledGraphs=keep)
        return tmp_path / "checkpoints" / uid / "base" / f"attempt-{attempt}"

    plain, cold = train(0, "plain", False), train(0, "kept", True)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").glob("kept/base/graphs/*/*.graph")}
    assert len(files) == 3  # gradient, update, evaluation; a single rank reduces without a graph
    for step in (33, 44):  # the restart evaluates before it ends, so its order of graphs differs
        shutil.rmtree(cold / f"step-{step:08d}")
    warm = train(1, "kept", True)
    assert {path: path.stat().st_mtime_ns for path in files} == files, "a graph was written again"
    assert onerank.final_weights(warm) == onerank.final_weights(plain)
    assert not (plain.parent / "graphs").exists()


@pytest.mark.long
def test_the_graph_of_any_network_of_the_family_gives_the_same_bits_when_it_was_kept(tmp_path: Path) -> None:
    """PyNative mode has no graphs to keep."""
    [cold] = rankgang.run("keptnetworks.py", 1, tmp_path)
    [warm] = rankgang.run("keptnetworks.py", 1, tmp_path)
    assert counts(cold) == (len(familygradients.NAMES), 0)
    assert counts(warm) == (0, len(familygradients.NAMES))
    assert warm["digests"].tolist() == cold["digests"].tolist()
    assert warm["wrong"].tolist() == []
