"""Stops processes at an exact open or rename, so that tests can kill them at a known point."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "integration" / "stubs" / "halting"
TIMEOUT_SECONDS = 240


class Halts:
    """Named places that stop the first process to reach them, just before "open PATH" or "os.rename PATH".

    They apply to every Python process that is started with the test's environment from now on.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **places: str) -> None:
        self.folder = folder / "halts"
        self.folder.mkdir()
        for name, pattern in places.items():
            (self.folder / f"{name}.place").write_text(pattern)
        monkeypatch.setenv("HALTS", str(self.folder))
        monkeypatch.setenv("PYTHONPATH", str(STUB), prepend=os.pathsep)

    def __enter__(self) -> "Halts":
        return self

    def __exit__(self, *failure: object) -> None:
        """Kill every stopped process."""
        for place in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                if _stands(pid := int(place.read_text())):
                    os.kill(pid, signal.SIGKILL)

    def reached(self, name: str) -> int:
        """Wait until a process has stopped there; returns its id."""
        place = self.folder / f"{name}.pid"
        _wait(lambda: place.exists() and place.read_text() != "" and _stands(int(place.read_text())), name)
        return int(place.read_text())

    def kill(self, name: str) -> None:
        """Kill the process that stops there."""
        os.kill(self.reached(name), signal.SIGKILL)

    def release(self, name: str, after: signal.Signals | None = None) -> None:
        """Let it continue; with `after`, wait until that signal, sent by other code, is pending."""
        pid = self.reached(name)
        if after is not None:
            _wait(lambda: bool(int(_told(pid, "ShdPnd"), 16) >> (after - 1) & 1), f"{name}: {after}")
        os.kill(pid, signal.SIGCONT)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came to {what}"
        time.sleep(0.02)


def _stands(pid: int) -> bool:
    return _told(pid, "State") == "T"


def _told(pid: int, field: str) -> str:
    """The first word of the kernel's status field; 0 for a process that is gone."""
    try:
        found = re.search(rf"^{field}:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found is not None else "0"
