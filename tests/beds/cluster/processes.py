"""Groups of processes that end together and never outlive their owner, however it ends."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from beds.cluster.errors import ClusterError

_GUARD = Path(__file__).with_name("guard.py")
_POLL_SECONDS = 0.05
_LOG_LINES = 15


class Process(Protocol):
    """A process as `subprocess.Popen` has it, however it was started."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code once it has been waited for."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns its exit code."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """Send it SIGKILL."""


class Processes:
    """A group of processes, each with a log NAME.log in a folder, which is removed with them unless it is to be kept.

    also: more folders to remove at the end.
    """

    def __init__(self, folder: Path, keep: bool = False, also: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._running: dict[str, Process] = {}
        self._vital: set[str] = set()
        self._guard, self._group = _start_guard([*([] if keep else [folder]), *also])

    def start(
        self, name: str, *command: str | Path, env: Mapping[str, str] | None = None, vital: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a process in the folder, in a session that a terminal's Ctrl-C does not reach.

        vital: if it ends unexpectedly, `wait_until` fails at once.
        """
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._group,
            )
        self._running[name] = process
        if vital:
            self._vital.add(name)
        return process

    def adopt(self, name: str, process: Process) -> None:
        """Count a process that was started in another way as one of the group."""
        self._running[name] = process

    def runs(self, name: str) -> bool:
        """Whether a process of this name was started and has not been ended by `end`."""
        return name in self._running

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a process and wait until it is gone."""
        process = self._running.pop(name)
        process.send_signal(how)
        process.wait()

    def check(self) -> None:
        """Raise `ClusterError` if a vital process has ended unexpectedly."""
        for name in sorted(self._vital):
            process = self._running.get(name)
            if process and (code := process.poll()) is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
                raise ClusterError("\n".join([f"{name} ended with code {code}; the end of its log:", *log]))

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait for a condition; raises `ClusterError` on timeout, or if a vital process has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{what} did not come within {seconds:g} s; give a `folder` to keep the logs and look"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Kill all processes at once, since none of their state is needed, and remove the folder."""
        self._guard.communicate()
        for process in self._running.values():
            process.kill()  # an adopted one is not in the guarded group
            process.wait()


def _start_guard(folders: list[Path]) -> tuple[subprocess.Popen[str], int]:
    """Start the guard; returns it and the process group it guards.

    A death signal (PR_SET_PDEATHSIG) would come as soon as the thread ends that started a process, and remove nothing.
    """
    command: list[str | Path] = [sys.executable, "-I", "-S", _GUARD, *folders]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    assert guard.stdout
    return guard, int(guard.stdout.readline())
