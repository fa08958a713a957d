"""Scratch folders: those of killed processes go with the next process, those in use stay."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from resnetboost_trainer.scratch import Scratch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _made_and_killed(place: str) -> None:
    tempfile.tempdir = place
    (Scratch("graphs-").path / "graph").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(place: Path) -> None:
    (place / "graphs-strange").mkdir()
    mine = Scratch("graphs-")
    killed = multiprocessing.get_context("fork").Process(target=_made_and_killed, args=(str(place),))
    killed.start()
    killed.join()
    assert len(list(place.iterdir())) == 3
    following = Scratch("graphs-")
    assert set(place.iterdir()) == {mine.path, following.path, place / "graphs-strange"}


def test_removing_twice_is_removing_once(place: Path) -> None:
    found = Scratch("graphs-")
    found.remove()
    other = Scratch("graphs-")
    found.remove()
    assert list(place.iterdir()) == [other.path]
