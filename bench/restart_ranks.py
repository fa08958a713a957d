"""Real ranks of `resnetboost run`: from `kill -9` of one until the next finished step, in place against new pods."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.entries import Entry, ratio
from resnetboost_api import names

SIZES = tuple(int(size) for size in os.environ.get("RESTART_RANKS", "2,8").split(",") if size)
ROUNDS = int(os.environ.get("RESTART_ROUNDS", "2"))
JOB = Path("examples/digits.yaml")
STEPS, PATIENCE_SECONDS = 5, 300.0
_SETTINGS = ("stages[0].epochs=500", "stages[0].localBatchSize=16", "checkpoint.everySteps=20")
_POLICY = ("failurePolicy.backoffSeconds=0",)


def measure() -> list[Entry]:
    """One entry for each number of ranks; both ways in turn, `ROUNDS` times."""
    return [_entry(size) for size in SIZES]


def _entry(size: int) -> Entry:
    pairs = [(next_step_seconds(size, "Pod"), next_step_seconds(size, "NewPod")) for _ in range(ROUNDS)]
    in_place, new = [list(found) for found in zip(*pairs, strict=True)]
    return ratio(f"next_step_in_place_{size}", in_place, new, "s", f"restartIn: NewPod, resnet20, {size} ranks")


def next_step_seconds(size: int, restart_in: str) -> float:
    """Seconds from the kill of the last rank until the next attempt has finished a step."""
    with tempfile.TemporaryDirectory() as folder, _run(Path(folder), size, restart_in) as run:
        until_steps(run, Path(folder), attempt=0)
        began = time.monotonic()
        os.kill(_rank_process(Path(folder), size - 1), signal.SIGKILL)
        return until_steps(run, Path(folder), attempt=1, steps=1) - began


@contextlib.contextmanager
def _run(folder: Path, size: int, restart_in: str) -> Iterator[subprocess.Popen[bytes]]:
    chosen = (*_SETTINGS, *_POLICY, f"device.count={size}", f"failurePolicy.restartIn={restart_in}")
    settings = [part for setting in chosen for part in ("--set", setting)]
    program = str(Path(sys.executable).with_name("resnetboost"))
    command = [program, "run", str(JOB), "--out", str(folder), *settings]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield run
    finally:
        run.kill()
        run.wait()
        (folder.parent / f"{folder.name}.log").unlink()


def until_steps(run: subprocess.Popen[bytes], folder: Path, attempt: int, steps: int = STEPS) -> float:
    """Time (monotonic) when the attempt is first seen to have finished so many steps."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        rows = [len(path.read_text().splitlines()) - 1 for path in folder.glob(f"**/attempt-{attempt}/metrics.csv")]
        if max(rows, default=0) >= steps:
            return time.monotonic()
        if run.poll() is not None or time.monotonic() > deadline:
            log = (folder.parent / f"{folder.name}.log").read_text(errors="replace")
            raise TimeoutError(f"no step of attempt {attempt}:\n{log[-2000:]}")
        time.sleep(0.01)


def _rank_process(folder: Path, rank: int) -> int:
    """The process of a rank: under a launcher its newest descendant, else process 1 of the pod."""
    found = [pid for pid in _pids() if _is_rank(pid, folder, rank)]
    parents = {_parent(pid) for pid in found}
    return max(pid for pid in found if pid not in parents)


def _pids() -> Sequence[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_rank(pid: int, folder: Path, rank: int) -> bool:
    try:
        variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = any(one.startswith(f"{names.ENV_CONFIG}=".encode()) and str(folder).encode() in one for one in variables)
    return ours and f"{names.ENV_RANK}={rank}".encode() in variables


def _parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
