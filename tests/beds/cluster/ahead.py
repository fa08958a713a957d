"""Builds the test bed's programs in the background, while tests run that do not need them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from beds.cluster import build

_TESTS = Path(__file__).parents[2]
_BUILD = "import sys; from beds.cluster import build; build.programs(sys.argv[1:])"


class Ahead:
    """The missing programs, in the order in which they are built, and the process that builds them."""

    def __init__(self, names: Iterable[str]) -> None:
        """Start to build what is missing and can be built. A failure shows when a fixture builds the program itself."""
        self._names = build.missing(names)
        self._process: subprocess.Popen[bytes] | None = None
        if self._names and not build.unavailable(self._names):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BUILD, *self._names],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def building(self) -> list[str]:
        """Programs that are being built, or will be."""
        if self._process is None or self._process.poll() is not None:
            return []
        self._names = build.missing(self._names)
        return self._names

    def close(self) -> None:
        """Kill the build and its compilers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()
