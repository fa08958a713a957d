"""Scratch folders: those of killed processes go with the next process, those in use stay."""

import fcntl
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


def test_a_folder_that_another_process_removes_before_it_is_locked_is_made_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes it for a killed process's: it begins between the creation of the lock file and its lock."""
    lock, others = fcntl.flock, list[Scratch]()

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not others:
            monkeypatch.setattr(fcntl, "flock", lock)
            others.append(Scratch("graphs-"))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    mine = Scratch("graphs-")
    assert set(place.iterdir()) == {mine.path, others[0].path}
    following = Scratch("graphs-")
    assert set(place.iterdir()) == {mine.path, others[0].path, following.path}
    mine.remove()
    assert not mine.path.exists()


def test_removing_twice_is_removing_once(place: Path) -> None:
    found = Scratch("graphs-")
    found.remove()
    other = Scratch("graphs-")
    found.remove()
    assert list(place.iterdir()) == [other.path]
