"""Data-loading speed in images per second: ours against torchvision's and a plain Pillow pipeline.

The data are 256 JPEGs of 500 x 375 and 375 x 420 pixels cut from two photographs, from the page cache; two workers
each.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.entries import Entry, ratio
from support import photographs

SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's torchvision
CONTENDERS = {
    "torchvision": (SYSTEM_PYTHON, "torchvision's ImageFolder and DataLoader"),
    "torchvisionio": (SYSTEM_PYTHON, "the same with torchvision.io's decoder and transforms of tensors"),
    "pillow": (sys.executable, "Pillow and NumPy in threads"),
}
_PACKAGES = {"torchvision": "torchvision", "torchvisionio": "torchvision", "pillow": "PIL"}
PAIRS = 7
IMAGES = 256


def measure() -> list[Entry]:
    """Images per second, interleaved, and images per CPU second, which other load on the machine does not affect."""
    with tempfile.TemporaryDirectory() as folder:
        _photographs(Path(folder))
        return [entry for name in CONTENDERS for entry in _compare(name, folder)]


def _photographs(folder: Path) -> None:
    for number, size in enumerate([(500, 375)] * 3 + [(375, 420)]):
        path = folder / f"class{number}"
        path.mkdir()
        for index, (image, _) in enumerate(photographs.pieces(IMAGES // 4, *size, seed=number)):
            image.save(path / f"{index:04}.jpg", quality=92)


def _compare(name: str, folder: str) -> list[Entry]:
    python, text = CONTENDERS[name]
    if subprocess.run([python, "-c", f"import {_PACKAGES[name]}"], capture_output=True, check=False).returncode:
        print(f"{name}: not installed, left out; scripts/install-system-packages brings it")
        return []
    with _Contender(sys.executable, "ours", folder) as own, _Contender(python, name, folder) as other:
        measured = [(own.epoch(), other.epoch()) for _ in range(PAIRS)]
    ours, theirs = ([pair[side] for pair in measured] for side in (0, 1))
    wall = ratio(f"data_vs_{name}", [w for w, _ in ours], [w for w, _ in theirs], "images/s", text)
    cpu = ratio(f"data_vs_{name}_cpu", [c for _, c in ours], [c for _, c in theirs], "images/CPU s", text)
    return [wall, cpu]


class _Contender:
    """A loader in its own process, which idles while the other one works."""

    def __init__(self, python: str, name: str, folder: str) -> None:
        script = Path(__file__).with_name("contenders") / "data.py"
        variables = {**os.environ, "GLOG_v": "3"}
        if python == SYSTEM_PYTHON:
            variables.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(script), name, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self._line()

    def __enter__(self) -> "_Contender":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def epoch(self) -> tuple[float, float]:
        """Images per second, and images per CPU second."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, cpu_seconds, images = (float(word) for word in self._line().split())
        return images / seconds, images / cpu_seconds

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a contender ended without an answer")
        return line
