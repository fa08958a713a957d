"""A whole training step of resnet20 (gradient, reduction, update) at batch 64 against one with stock nn.Conv2d."""

import os
import subprocess
import sys
from collections.abc import Sequence

from bench.entries import Entry, speedup


def measure() -> list[Entry]:
    """8x8 grey images like digits, and 32x32 colour images like CIFAR. A stock step takes several times as long."""
    return [
        _compare("cpu_step_speedup_vs_stock", channels=1, size=8, pairs=11, count=20),
        _compare("cpu_step_speedup_vs_stock_32", channels=3, size=32, pairs=3, count=5),
    ]


def _compare(name: str, channels: int, size: int, pairs: int, count: int) -> Entry:
    numbers = str(channels), str(size)
    with (
        Worker.of("bench.contenders.worker", "ours", *numbers) as ours,
        Worker.of("bench.contenders.worker", "stock", *numbers) as stock,
    ):
        measured = [(ours.step(count), stock.step()) for _ in range(pairs)]
    return speedup(name, [a for a, _ in measured], [b for _, b in measured], "the same step with nn.Conv2d")


class Worker:
    """A process that makes the requested number of steps; it idles while another one works. Entered, it is ready.

    Steps of a training follow each other: only the first of a turn begins with sleeping threads. `about`: the worker's
    description of itself when it was ready.
    """

    about = ""

    def __init__(self, command: Sequence[str], folder: str | None = None) -> None:
        """`folder` is the working directory, for an interpreter that must not find our packages."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_clean(folder is None), cwd=folder
        )

    @classmethod
    def of(cls, module: str, *arguments: str) -> "Worker":
        """A worker that runs one of our modules."""
        return cls([sys.executable, "-m", module, *arguments])

    def __enter__(self) -> "Worker":
        self.about = self._answer("ready").removeprefix("ready").strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def step(self, count: int = 1) -> float:
        """Seconds of one step, the mean of `count` in a row."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self, wanted: str = "") -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (wanted and line.startswith(wanted)) or (not wanted and line[:1].isdigit()):
                return line
        raise RuntimeError("the worker ended without an answer")


def _clean(ours: bool) -> dict[str, str]:
    """The environment without a chosen instruction set, which would make both contenders the same."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("DNN_MAX_CPU_ISA")}
    return kept if ours else {name: value for name, value in kept.items() if name != "PYTHONPATH"}
