"""Store of compiled graphs: saved graphs are loaded again, and any other file is rejected."""

import os
from pathlib import Path

import pytest

from resnetboost_trainer.engine import graph_store
from resnetboost_trainer.engine.graph_store import Damaged, Graph, Store

GRAPH: Graph = {"compile_cache#.mindir": b"a graph", "compile_dependency.hash": b"of this code"}
KEY = "0" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The only file of a store in `tmp_path`."""
    Store(tmp_path / "graphs", "ours").write(KEY, GRAPH)
    [file] = tmp_path.glob("graphs/*/*.graph")
    return file


def read(folder: Path, environment: str = "ours") -> dict[str, Graph]:
    return Store(folder / "graphs", environment).read()


def test_a_graph_is_read_back(file: Path, tmp_path: Path) -> None:
    assert read(tmp_path) == {KEY: GRAPH}
    Store(tmp_path / "graphs", "ours").write("1" * 64, GRAPH)
    assert set(read(tmp_path)) == {KEY, "1" * 64}


def test_an_empty_store_finds_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_graphs_of_another_environment_are_not_read_and_stay_until_there_are_too_many(
    file: Path, tmp_path: Path
) -> None:
    os.utime(file.parent, (0, 0))
    for number in range(1, graph_store.ENVIRONMENTS):
        assert read(tmp_path, f"theirs {number}") == {}
        Store(tmp_path / "graphs", f"theirs {number}").write(KEY, GRAPH)
        assert read(tmp_path, f"theirs {number}") == {KEY: GRAPH}
        assert read(tmp_path) == {KEY: GRAPH}
    Store(tmp_path / "graphs", "one too many").write(KEY, GRAPH)
    assert read(tmp_path) == {}
    assert read(tmp_path, "theirs 1") == read(tmp_path, "one too many") == {KEY: GRAPH}


@pytest.mark.parametrize("place", [0, 40, -1], ids=["hash", "middle", "end"])
def test_a_changed_byte_is_noticed(file: Path, tmp_path: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    assert read(tmp_path) == {}


def test_half_a_file_is_noticed(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])
    assert read(tmp_path) == {}


def test_a_graph_under_the_name_of_another_is_not_taken(file: Path, tmp_path: Path) -> None:
    file.rename(file.with_stem("1" * 64))
    assert read(tmp_path) == {}


def test_a_file_writable_by_others_is_rejected(file: Path, tmp_path: Path) -> None:
    file.chmod(0o606)
    assert read(tmp_path) == {}


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    file.rename(target)
    file.symlink_to(target)
    assert read(tmp_path) == {}


@pytest.mark.parametrize("name", ["../compile_cache#.mindir", "/etc/passwd", "compile_cache#.mindir\n", "a/b.c"])
def test_only_mindspores_file_names_are_accepted(name: str) -> None:
    with pytest.raises(Damaged):
        graph_store.decode(graph_store.encode({KEY: {name: b""}}))


def test_after_an_unfinished_trial_nothing_is_loaded(file: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "graphs", "ours")
    store.try_out(True)
    store.try_out(False)
    assert read(tmp_path) == {KEY: GRAPH}
    store.try_out(True)
    assert read(tmp_path) == {}
    assert not file.exists()
    assert read(tmp_path) == {}
    store.write(KEY, GRAPH)
    assert read(tmp_path) == {KEY: GRAPH}


def test_a_full_or_unwritable_disk_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "graphs").write_text("in the way")
    Store(tmp_path / "graphs", "ours").write(KEY, GRAPH)
    assert read(tmp_path) == {}
