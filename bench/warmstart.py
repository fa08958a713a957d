"""Restart with kept compiled graphs against the first start: a resnet18 rank from process start to its first step.

Each pair is two processes, one after the other, with a folder of their own. The first compiles and writes its graphs;
the second loads them. Both have the same input and must have the same loss.
"""

import statistics
import subprocess
import sys
import tempfile

import msgspec

from bench.contenders.warm_start_worker import Started
from bench.entries import Entry, speedup

PAIRS = 5
COMPILING, STEP = "compiling", "first step"


def measure() -> list[Entry]:
    """Compilation with the first step, and the whole start; prints all phases."""
    pairs = [_pair() for _ in range(PAIRS)]
    first, second = [list(started) for started in zip(*pairs, strict=True)]
    assert all(cold.loss == warm.loss for cold, warm in pairs), "a kept graph computes something else"
    _show("first start", first)
    _show("second start", second)
    title = "resnet18, 3x64x64, batch 32, on a first start"
    return [
        speedup("warm_start_speedup", _seconds(second), _seconds(first), f"compiling and first step of {title}"),
        speedup(
            "warm_start_whole_speedup",
            _whole(second),
            _whole(first),
            f"everything until the first step is done, {title}",
        ),
    ]


def _pair() -> tuple[Started, Started]:
    with tempfile.TemporaryDirectory() as folder:
        return _start(folder), _start(folder)


def _start(folder: str) -> Started:
    command = [sys.executable, "-m", "bench.contenders.warm_start_worker", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Started)


def _seconds(starts: list[Started]) -> list[float]:
    return [started.parts[COMPILING] + started.parts[STEP] for started in starts]


def _whole(starts: list[Started]) -> list[float]:
    return [sum(started.parts.values()) for started in starts]


def _show(name: str, starts: list[Started]) -> None:
    parts = {part: statistics.median(started.parts[part] for started in starts) for part in starts[0].parts}
    text = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
    print(f"{name}, seconds: {text}; graphs compiled {starts[0].compiled}, kept ones used {starts[0].reused}")
