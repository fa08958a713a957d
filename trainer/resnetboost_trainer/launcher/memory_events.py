"""How often the kernel has killed a process of this container because its memory was used up.

Kubelet notices it of process 1 alone, which is the launcher: that a rank was killed for memory, only that can say.
"""

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def oom_kills(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The counter of this process' memory cgroup, of version 2 or 1; 0 if there is none to read."""
    return next((found for found in map(_counter, _files(cgroups, membership)) if found is not None), 0)


def _files(cgroups: Path, membership: Path) -> list[Path]:
    """Where the counter may be. A container sees its own cgroup as the root, with or without a cgroup namespace."""
    own = _read(membership)
    unified = re.search(r"^0::/(.*)$", own, re.MULTILINE)
    memory = re.search(r"^\d+:(?:\w+,)*memory(?:,\w+)*:/(.*)$", own, re.MULTILINE)
    places = [cgroups / unified[1] / "memory.events"] if unified else []
    places += [cgroups / "memory" / memory[1] / "memory.oom_control"] if memory else []
    return [*places, cgroups / "memory.events", cgroups / "memory" / "memory.oom_control"]


def _counter(file: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", _read(file), re.MULTILINE)
    return int(found[1]) if found else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
