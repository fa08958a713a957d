"""`resnetboost run` at a real (pseudo) terminal: the live display, Ctrl-C as a key, and a terminal that goes away."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import stubtrainer

ROOT = Path(__file__).parents[2]
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # then its name is enough
SLOW = "template.env=[{name: STUB_STEP_SECONDS, value: '0.2'}]"
# Makes the terminal its controlling one, as a login does, so that keys become signals; tests may be under nohup.
LOGIN = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A terminal of 80 x 24 with a run in it."""

    def __init__(self, tmp_path: Path) -> None:
        stub = stubtrainer.install(tmp_path)
        self.folder = tmp_path / "run"
        self.screen = ""
        self._keyboard, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        words = ["run", str(ROOT / "examples" / "digits.yaml"), "--out", str(self.folder), "--set", SLOW]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, RESNETBOOST, *words],
            env={**os.environ, "PATH": PATH, "PYTHONPATH": str(stub), "TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def until(self, pattern: str, seconds: float = 30) -> None:
        """Read until the pattern was on the screen."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.screen):
            assert time.monotonic() < deadline, f"{pattern!r} never came:\n{self.screen}"
            if select.select([self._keyboard], [], [], 0.1)[0]:
                self.screen += os.read(self._keyboard, 65536).decode(errors="replace")

    def hang_up(self) -> None:
        os.close(self._keyboard)
        self._keyboard = -1

    def close(self) -> None:
        if self._keyboard >= 0:
            self.hang_up()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = Terminal(tmp_path)
    yield found
    found.close()


def test_ctrl_c_stops_with_a_checkpoint_and_says_how_to_go_on(terminal: Terminal) -> None:
    terminal.until(r"step \d+/\d+")
    assert "━" in terminal.screen
    terminal.type("\x03")
    terminal.until("stopping all ranks after this step")
    terminal.until(r"resume +resnetboost run ")
    assert terminal.process.wait(timeout=10) == 16
    assert "\x1b[?25h" in terminal.screen.rpartition("\x1b[?25l")[2]  # the cursor is back


def test_a_terminal_that_goes_away_stops_the_run_with_a_checkpoint(terminal: Terminal) -> None:
    terminal.until(r"step \d+/\d+")
    terminal.hang_up()
    assert terminal.process.wait(timeout=30) == 16
    status = yaml.safe_load((terminal.folder / "status.yaml").read_text())
    assert status["phase"] == "Suspended"
    assert list(terminal.folder.glob("checkpoints/*/base/attempt-0/step-*/manifest.json"))
