"""Memory: of the machine and of its container, and how much is free."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import MIB, Subject, size
from resnetboost_trainer.doctor.host import Host

# A rank of a small network on CPUs, with its share of the coordinator; MindSpore alone takes 400 MiB.
RANK_BYTES = 600 * MIB
UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def check(subject: Subject) -> Iterator[Finding]:
    """Say how much memory there is, and for how many ranks."""
    total, free = _of_machine(subject.host)
    limit, used = _number(subject.host, _LIMITS), _number(subject.host, _USED)
    if not total:
        yield findings.warning("memory", "/proc/meminfo does not say how much there is", "mount /proc")
        return
    limited = limit is not None and limit < min(total, UNLIMITED)
    if limited and limit is not None:
        free = min(free, max(0, limit - (used or 0)))
    bound = f", the container's limit is {size(limit)}" if limited and limit is not None else ""
    found = f"{size(free)} free of {size(total)}{bound}"
    if free < RANK_BYTES:
        yield findings.problem("memory", found, f"a rank needs {size(RANK_BYTES)}: free some, or raise the limit")
    elif free < 2 * RANK_BYTES:
        yield findings.warning("memory", found, f"enough for one rank: a local gang of 2 needs {size(2 * RANK_BYTES)}")
    else:
        yield findings.ok("memory", found)


def _of_machine(host: Host) -> tuple[int, int]:
    """Total and available bytes, 0 where /proc does not say."""
    rows = (line.partition(":") for line in host.read("/proc/meminfo").splitlines())
    kib = {name: text.split()[0] for name, _, text in rows if text.split()}
    total, free = (kib.get(name, "0") for name in ("MemTotal", "MemAvailable"))
    return tuple(1024 * int(text) if text.isdecimal() else 0 for text in (total, free))  # type: ignore[return-value]


def _number(host: Host, names: tuple[str, ...]) -> int | None:
    """The number in the first of these files that has one."""
    return next((int(text) for name in names if (text := host.read(name).strip()).isdecimal()), None)
