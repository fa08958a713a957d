"""Fork server: forks ranks and operators that have their imports behind them, as these take longer than the start.

Every pytest worker has a server of its own, which starts with the first process and ends with the worker. A rank is
still started by `subprocess`: the command starts a small process that stands for the rank (see stand_in.py). Operators
are forked without one (see process.py). Tests of how a container starts a rank or an operator, and of what happens
while it imports MindSpore, do without the server.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent
SOCKET = "FORK_SERVER"


def command(*arguments: str) -> list[str]:
    """Command line that runs Python with these arguments, "-m MODULE ..." or "SCRIPT ...", through the server."""
    return [sys.executable, "-I", "-S", str(_FOLDER / "stand_in.py"), *arguments]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that let `command` find the server, and make `python -m resnetboost_trainer` use it too."""
    path = [str(_FOLDER / "package"), *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, SOCKET: str(socket_path()), "PYTHONPATH": os.pathsep.join(path)}


@functools.cache
def socket_path() -> Path:
    """The server's socket; starts the server."""
    folder = Path(tempfile.mkdtemp(prefix="forkserver-"))  # short: it holds a socket
    path = folder / "socket"
    with (folder / "log").open("wb") as log:
        hub = subprocess.Popen(
            [sys.executable, "-m", "support.forkserver.hub", str(path)],
            env={**os.environ, "PYTHONPATH": str(_FOLDER.parents[1])},
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends; the hub then ends too
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert hub.stdin and hub.stdout
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(hub.stdin.close)
    if hub.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the fork server did not start:\n{(folder / 'log').read_text()}")
    return path
