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
GROUPS = Path("/sys/fs/cgroup")
_SERVICE_PORT = 443
_PREFIX = "resnetboost-"
_SHARES = {"cpu.shares": "8192", "cpu.weight": "800"}  # the share of eight processes, in cgroup v1 and v2


class Sandbox:
    """A `Place` for a control plane. Creates its folder at once; the control plane or `close` removes it."""

    address = texts.GATEWAY  # where pods reach what listens inside

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
        """The sandbox's own folder comes last: while it exists, `sweep` finds what else must be removed."""
        return [*cgroups(self.name), self.folder]

    def open(self, processes: Processes, port: int) -> None:
        """Start the first process, and forward the API server's port for tests and pods."""
        (self.folder / "plane").symlink_to(processes.folder)  # for `sweep`
        bridge = f"{texts.GATEWAY}/{texts.SUBNET.rpartition('/')[2]}"
        self._start(processes, "sandbox", "init.py", str(self.folder), bridge, identities.SERVICE)
        processes.wait_until((self.folder / "pid").exists, "a process in namespaces of its own")
        self.let_in(processes, port, f"{identities.SERVICE}:{_SERVICE_PORT}")

    def let_in(self, processes: Processes, port: int, inside: str) -> None:
        """Make a loopback port of the inside reachable from this machine, and from pods by an address and a port."""
        self._start(processes, f"relay-{port}", "relay.py", self._first, str(port), inside)

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """The command line that runs a command inside."""
        return [sys.executable, "-I", "-S", _PROGRAMS / "enter.py", self._first, *command]

    def close(self) -> None:
        """Stop the processes, and clean up if no guard did."""
        self._lock.close()
        sweep(self.folder.parent)

    @property
    def _first(self) -> str:
        return (self.folder / "pid").read_text()

    def _start(self, processes: Processes, name: str, program: str, *arguments: str) -> None:
        processes.start(name, sys.executable, "-I", "-S", _PROGRAMS / program, *arguments, vital=True)


def cgroups(name: str) -> list[Path]:
    """This sandbox's control group in each hierarchy of this machine."""
    return [path / name for path in sorted(_hierarchies())]


def _favour(group: Path) -> None:
    """Raise the CPU share: otherwise all pods together would get as much of busy cores as one process beside them."""
    for name, value in _SHARES.items():
        if (group / name).exists():
            (group / name).write_text(value)


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and Path(place).is_relative_to(GROUPS):
            yield Path(place)


def sweep(beds: Path) -> None:
    """Remove the leftovers of runs that were killed together with their guards."""
    for folder in beds.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end(folder)
            for left in [*cgroups(folder.name), (folder / "plane").resolve(), folder]:
                shutil.rmtree(left, ignore_errors=True)


def _end(folder: Path) -> None:
    """End the first process if it is still ours; every process started in or entering its namespaces ends with it."""
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
        return f"there are no control groups in {GROUPS}"
    return ""
