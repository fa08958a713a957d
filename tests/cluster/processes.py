"""Processes that end together and never outlive their owner, however that ends; what they are is not known here."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.errors import ClusterError

_GUARD = Path(__file__).with_name("guard.py")
_POLL_SECONDS = 0.05
_LOG_LINES = 15


class Processes:
    """A group of processes, each with a log NAME.log in one folder, which goes with them unless it is to be kept."""

    def __init__(self, folder: Path, keep: bool = False) -> None:
        self.folder = folder
        self._keep = keep
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # A death signal (PR_SET_PDEATHSIG) would come when the thread ends that started a process, and remove nothing.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", _GUARD, *([] if keep else [folder])], stdin=subprocess.PIPE, process_group=0
        )

    def start(self, name: str, *command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process, out of reach of a terminal's Ctrl-C."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._guard.pid,
            )
        return self._running[name]

    def runs(self, name: str) -> bool:
        """Whether a process of this name has been started and not ended here."""
        return name in self._running

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End one process and wait until it is gone."""
        process = self._running.pop(name)
        process.send_signal(how)
        process.wait()

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait for a condition; raises `ClusterError` if it does not come or a process ends meanwhile."""
        deadline = time.monotonic() + seconds
        while not condition():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise ClusterError(
                        f"{name} ended with code {process.returncode}; its log ends so:\n{self._tail(name)}"
                    )
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} did not come within {seconds:g} s; see the logs: keep them with `folder`")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End all at once, without grace, as nothing they have is needed; then remove the folder."""
        os.killpg(self._guard.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._guard.wait()
        if self._guard.stdin:
            self._guard.stdin.close()
        if not self._keep:
            shutil.rmtree(self.folder)

    def _tail(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-_LOG_LINES:])
