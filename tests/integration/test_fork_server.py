"""The tests' fork server: a forked Python behaves like a started one, and neither outlives the other."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import forkserver
from support.forkserver.process import Forked

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120
SAY = """
import json, os, sys
print(json.dumps({
    "imported": "mindspore" in sys.modules, "arguments": sys.argv, "folder": os.getcwd(), "name": __name__,
    "said": os.environ.get("SAID"), "threads": os.environ.get("OMP_NUM_THREADS"), "input": sys.stdin.read(),
    "parent": os.getppid(), "cores": sorted(os.sched_getaffinity(0)), "path": sys.path[0],
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3],
    "trainer": "resnetboost_trainer" in sys.modules,
}))
os.umask(umask := os.umask(0))
print("umask", oct(umask), file=sys.stderr)
sys.exit(7)
"""
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
LISTEN = """
import os, signal, time
def leave(number, frame):
    print("told", flush=True)
    os._exit(16)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(100)
"""
WHOLE = """
import json, os, sys
print(json.dumps({
    "imported": [name in sys.modules for name in ("kopf", "mindspore", "resnetboost_operator")],
    "arguments": sys.argv, "command": sys.orig_argv, "environment": dict(os.environ), "process": os.getpid(),
}))
sys.exit(7)
"""
OWNER = """
import os, subprocess, sys
from support import forkserver
rank = subprocess.Popen(forkserver.command(sys.argv[1]), env=forkserver.environment(os.environ), stdout=sys.stdout)
rank.wait()
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    ambient = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # CI may set it
    environment = forkserver.environment(ambient | more.pop("variables", {}))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        forkserver.command(*arguments), env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **more
    )


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("threads", [None, "1"])
def test_it_has_the_callers_arguments_environment_folder_and_streams(threads: str | None, tmp_path: Path) -> None:
    variables = {"SAID": "so"} | ({"OMP_NUM_THREADS": threads} if threads else {})
    process = start(script(tmp_path, SAY), "one", "two words", variables=variables, cwd=tmp_path, umask=0o027)
    told, complaint = process.communicate("what it reads", timeout=TIMEOUT_SECONDS)
    assert (process.returncode, complaint) == (7, "umask 0o27\n")
    assert json.loads(told) == {
        "imported": True,
        "trainer": False,
        "name": "__main__",
        "arguments": [str(tmp_path / "script.py"), "one", "two words"],
        "folder": str(tmp_path),
        "path": str(tmp_path),
        "said": "so",
        "threads": threads,
        "input": "what it reads",
        "parent": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "files": [0, 1, 2],
    }


def test_an_error_has_pythons_traceback(tmp_path: Path) -> None:
    process = start(script(tmp_path, "raise ValueError('no good')"))
    _, complaint = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert complaint.endswith("ValueError: no good\n")


def test_a_signal_is_passed_on_and_its_exit_reported(tmp_path: Path) -> None:
    process = start(script(tmp_path, LISTEN))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=TIMEOUT_SECONDS)[0] == "told\n"
    assert process.returncode == 16


def test_a_kill_of_the_forked_process_is_reported(tmp_path: Path) -> None:
    process = start(script(tmp_path, WAIT))
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == -signal.SIGKILL


def test_it_does_not_outlive_its_stand_in(tmp_path: Path) -> None:
    process = start(script(tmp_path, WAIT))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=TIMEOUT_SECONDS)
    eventually(lambda: gone(pid))


def test_nothing_outlives_an_owner_that_was_killed(tmp_path: Path) -> None:
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", OWNER, script(tmp_path, WAIT)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        servers = [int(path.name) for path in Path("/proc").glob("[0-9]*") if b"support.forkserver" in line(path)]
        own = [server for server in servers if str(tmp_path).encode() in line(Path(f"/proc/{server}"))]
        assert own
        owner.kill()
    eventually(lambda: all(map(gone, [pid, *own])))


def line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def forked(tmp_path: Path) -> Callable[..., Forked]:
    """Forks a script with the operator's imports; its output goes to the file `log`."""

    def forked(text: str, *arguments: str, **variables: str) -> Forked:
        with (tmp_path / "log").open("wb") as log:
            return Forked("operator", [script(tmp_path, text), *arguments], variables, tmp_path, log)

    return forked


def test_an_operator_is_forked_without_a_stand_in(forked: Callable[..., Forked], tmp_path: Path) -> None:
    process = forked(WHOLE, "one", SAID="so")
    assert process.wait(TIMEOUT_SECONDS) == process.poll() == 7
    assert json.loads((tmp_path / "log").read_text()) == {
        "imported": [True, False, False],
        "arguments": [str(tmp_path / "script.py"), "one"],
        "command": [sys.executable, str(tmp_path / "script.py"), "one"],
        "environment": {"SAID": "so"},
        "process": process.pid,
    }


def test_a_killed_operator_is_gone_once_it_was_waited_for(forked: Callable[..., Forked], tmp_path: Path) -> None:
    process = forked(LISTEN)
    eventually(lambda: (tmp_path / "log").read_text() == "up\n")
    assert (process.poll(), gone(process.pid)) == (None, False)
    process.send_signal(signal.SIGSTOP)
    process.kill()
    assert process.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()
    process.kill()  # does nothing, also if another process has its number


def test_a_module_started_by_a_fork_is_forked_too() -> None:
    """Rank 0 starts the coordinator this way."""
    code = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', 'resnetboost_trainer', '--version']))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], env=forkserver.environment(os.environ), capture_output=True, text=True, check=True
    )
    spawned = subprocess.run(
        [sys.executable, "-m", "resnetboost_trainer", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout == spawned.stdout != ""
