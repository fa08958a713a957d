"""Creates Linux namespaces and is the first process in them; all others end with it; run as a program.

Its arguments are the folder whose `lib`, `log` and `run` replace /var/lib, /var/log and /run inside, and the addresses
of the bridge and of the loopback device. It writes its process id into the folder when all is ready.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

_NEW_MOUNTS, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_STANDINS = {"lib": "/var/lib", "log": "/var/log", "run": "/run"}
# Kernel settings that kubelet requires; it would change them for the whole machine, so they are faked.
_TUNABLES = {
    "kernel/keys/root_maxbytes": 25000000,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Become the parent of the namespaces' first process, and exit as it does."""
    folder, bridge, service = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if _libc.unshare(_NEW_MOUNTS | _NEW_PROCESSES | _NEW_NETWORK):
        sys.exit(f"no namespaces to be had here: {os.strerror(ctypes.get_errno())}")
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        make_mounts(folder)
        make_network(bridge, service)
        os.write(tell, b"ready")
        os.close(tell)
        rest()
    os.close(tell)
    if os.read(told, 5):
        (folder / "pid.part").write_text(str(first))
        (folder / "pid.part").rename(folder / "pid")
    _, status = os.waitpid(first, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def make_mounts(folder: Path) -> None:
    """Mount private /proc, /run, /var/lib and /var/log."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    for name, place in _STANDINS.items():
        run("mount", "--bind", str(folder / name), place)
    for name, value in _TUNABLES.items():
        shown = folder / "tunables" / name.replace("/", "-")
        shown.parent.mkdir(exist_ok=True)
        shown.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def make_network(bridge: str, service: str) -> None:
    """Create the bridge for pods, and an address for the API server's service, which needs no forwarding here."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{service}/32", "dev", "lo")
    # With a fixed MAC address: otherwise the bridge takes the lowest of its ports', and each new pod may interrupt the
    # others.
    run("ip", "link", "add", "cni0", "address", "0a:58:0a:58:00:01", "type", "bridge")
    run("ip", "address", "add", bridge, "dev", "cni0")
    run("ip", "link", "set", "cni0", "up")


def run(*command: str) -> None:
    """Run a program; raise if it fails."""
    subprocess.run(command, check=True)


def rest() -> NoReturn:
    """Reap orphaned processes for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])


if __name__ == "__main__":
    main()
