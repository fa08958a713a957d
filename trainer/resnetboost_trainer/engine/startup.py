"""Measures the phases of a start, from the start of the process to its first step."""

import os
import time
from pathlib import Path


class StartupTimes:
    """Seconds of each phase of a start, in order."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {"python": _age_seconds()}
        self._last = time.perf_counter()

    def done(self, phase: str, nested: float = 0.0, nested_phase: str = "") -> None:
        """Record the time since the last call under `phase`; `nested` seconds of it belong to another phase."""
        now = time.perf_counter()
        if nested_phase:
            self.phases[nested_phase] = self.phases.get(nested_phase, 0.0) + nested
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last - nested
        self._last = now

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.phases.items())
        return f"{sum(self.phases.values()):.1f} s: {phases}"


def _age_seconds() -> float:
    """Age of this process. The fields of /proc/self/stat count from the name's end: proc(5); the 22nd is its start."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
