"""Runs a command at a pseudo terminal: its screen, typed keys, and closing the terminal."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

# Makes the terminal the controlling one, as a login does, so that keys become signals; tests may run under nohup.
LOGIN = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A terminal of that size with a command in it; `screen` is all output so far."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], rows: int, columns: int) -> None:
        self.screen = ""
        self._keyboard, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, *command],
            env={**environment, "TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def until(self, pattern: str, seconds: float = 60) -> None:
        """Read until the pattern appears on the screen."""
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
