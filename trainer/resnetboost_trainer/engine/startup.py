"""Where the time of a start goes, from the process' first moment to its first step; it measures and decides nothing."""

import os
import time
from pathlib import Path


class Start:
    """Seconds by part, in order."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {"python": _age_seconds()}
        self._last = time.perf_counter()

    def done(self, part: str, of_it: float = 0.0, other: str = "") -> None:
        """What was since the last call is that part; `of_it` seconds of it are another one."""
        now = time.perf_counter()
        if other:
            self.parts[other] = self.parts.get(other, 0.0) + of_it
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last - of_it
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"{sum(self.parts.values()):.1f} s: {parts}"


def _age_seconds() -> float:
    """Of this process. The fields of /proc/self/stat count from the name's end: proc(5); the 22nd is its start."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
