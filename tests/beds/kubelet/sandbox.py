"""Namespaces, control groups and a folder for one node; every process started in them ends with them."""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from beds.cluster import identities
from beds.cluster.build import home
from beds.cluster.processes import Processes
from beds.kubelet import texts

_PROGRAMS = Path(__file__).parent
_GROUPS = Path("/sys/fs/cgroup")
_SERVICE_PORT = 443
_PREFIX = "resnetboost-"
_SHARES = {"cpu.shares": "8192", "cpu.weight": "800"}  # eight processes'; the kernel's two versions of it


class Sandbox:
    """A `Place` for a control plane. It makes its folder at once, which goes with the control plane or by `close`."""

    def __init__(self) -> None:
        beds = home() / "beds"
        beds.mkdir(parents=True, exist_ok=True)
        sweep(beds)
        self.name = _PREFIX + uuid.uuid4().hex[:8]
        self.folder = beds / self.name
        self.folder.mkdir()
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for name in ("lib", "log", "run"):
            (self.folder / name).mkdir()
        for group in cgroups(self.name):
            group.mkdir(exist_ok=True)
            _favour(group)

    @property
    def folders(self) -> Sequence[Path]:
        """The folder last: while it is there, somebody knows that there is something to remove."""
        return [*cgroups(self.name), self.folder]

    def open(self, processes: Processes, port: int) -> None:
        """Start the first process, and the way in for tests and pods to an API server on the port."""
        (self.folder / "plane").symlink_to(processes.folder)  # for `sweep`
        bridge = f"{texts.GATEWAY}/{texts.SUBNET.rpartition('/')[2]}"
        self._start(processes, "sandbox", "init.py", str(self.folder), bridge, identities.SERVICE)
        processes.wait_until((self.folder / "pid").exists, "a process in namespaces of its own")
        self.let_in(processes, port, f"{identities.SERVICE}:{_SERVICE_PORT}")

    def let_in(self, processes: Processes, port: int, inside: str) -> None:
        """Make a loopback port of the inside this machine's too, and known to pods by an address and a port."""
        self._start(processes, "relay", "relay.py", self._first, str(port), inside)

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """What runs a command inside."""
        return [sys.executable, "-I", "-S", _PROGRAMS / "enter.py", self._first, *command]

    def close(self) -> None:
        """Let others know that nobody is here any more, and remove what there is if no guard did."""
        self._lock.close()
        sweep(self.folder.parent)

    @property
    def _first(self) -> str:
        return (self.folder / "pid").read_text()

    def _start(self, processes: Processes, name: str, program: str, *arguments: str) -> None:
        processes.start(name, sys.executable, "-I", "-S", _PROGRAMS / program, *arguments, vital=True)


def cgroups(name: str) -> list[Path]:
    """A group of this name in each hierarchy of this machine."""
    return [path / name for path in sorted(_hierarchies())]


def _favour(group: Path) -> None:
    """Else all pods together got as much of busy cores as one process beside them."""
    for name, value in _SHARES.items():
        if (group / name).exists():
            (group / name).write_text(value)


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and Path(place).is_relative_to(_GROUPS):
            yield Path(place)


def sweep(beds: Path) -> None:
    """Remove what runs left behind that were killed together with their guards."""
    for folder in beds.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end(folder)
            for left in [*cgroups(folder.name), (folder / "plane").resolve(), folder]:
                shutil.rmtree(left, ignore_errors=True)


def _end(folder: Path) -> None:
    """End the first process if it still is ours: with it end all that it started, or that entered."""
    with contextlib.suppress(OSError):
        process = int((folder / "pid").read_text())
        if str(folder) in Path(f"/proc/{process}/cmdline").read_text():
            pidfd = os.pidfd_open(process)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def unavailable() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "a node of its own needs root"
    if not any(_hierarchies()):
        return f"there are no control groups in {_GROUPS}"
    return ""
