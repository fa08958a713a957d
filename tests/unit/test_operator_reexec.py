"""The operator restarts itself by exec, so that kubelet's back-off does not leave a cluster without one."""

import signal
import subprocess
import sys
from pathlib import Path

from beds.operator.wait import eventually
from resnetboost_operator.controller.reexec import STABLE_SECONDS, failures_in_a_row

# Fails twice, then succeeds; prints its process id each time.
TWICE = """
import os
from resnetboost_operator.controller import reexec
from resnetboost_operator.kubeclient.retry import Backoff
reexec.BACKOFF = Backoff(0.0, 0.0)
print(os.getpid(), flush=True)
if os.environ.get("_RESNETBOOST_OPERATOR_FAILURES") != "2":
    reexec.leave(start_over=True)
"""


def test_it_restarts_in_the_same_process() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60, check=True)
    first, *others = ended.stdout.split()
    assert others == [first, first]


def test_sigterm_ends_the_back_off() -> None:
    code = TWICE.replace("Backoff(0.0, 0.0)", "Backoff(60.0, 60.0)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid}\n"
        eventually(lambda: listens(process.pid), bool, "it listens for signals")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1


def listens(pid: int) -> bool:
    """Whether the process catches SIGTERM."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def test_without_the_option_it_exits() -> None:
    code = "from resnetboost_operator.controller import reexec; reexec.leave(start_over=False)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 1


def test_a_long_run_resets_the_back_off() -> None:
    assert [failures_in_a_row(before, 1.0) for before in ("", "1", "7", "x")] == [1, 2, 8, 1]
    assert failures_in_a_row("7", STABLE_SECONDS) == 1
