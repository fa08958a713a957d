"""This machine's resources for pods: cores, memory and addresses."""

import math
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from resnetboost_api import names
from resnetboost_operator.errors import AddressError

# Resident memory of a rank that trains a small network, with its share of the coordinator.
RANK_BYTES = 600 << 20
_LAST_ADDRESS = "255.254"
_ATTEMPTS = 100


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> tuple[int, ...]:
    """The cores this process may use: its affinity, limited by the CPU quota of a container."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    try:
        quota, period = quota_file.read_text().split()
        return cores[: max(1, math.ceil(int(quota) / int(period)))]
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return cores


def memory_bytes() -> int:
    """This machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def share(cores: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """Cores of rank `index` of `count`: the same number for each, since the slowest rank sets the pace."""
    each = max(1, len(cores) // count)
    return tuple(cores[(index * each + offset) % len(cores)] for offset in range(each))


class Addresses:
    """Loopback addresses for the pods of one run: a new one for each, so that all may use the same ports.

    The run owns 127.x.0.0/16 while it listens on the last address of that range: no two runs can have the same x, and
    the kernel releases it however the run ends.
    """

    def __init__(self) -> None:
        self._given = 0
        self._prefix, self._claim = _claim_range()

    def next(self) -> str:
        """An address not used before in this run, so that no connection of an earlier pod lingers on it."""
        self._given += 1
        high, low = divmod(self._given, 250)
        return f"{self._prefix}.{high}.{low + 1}"

    def close(self) -> None:
        """Release the address range."""
        self._claim.close()


def _claim_range() -> tuple[str, socket.socket]:
    failure: OSError | None = None
    for second in random.sample(range(1, 255), k=_ATTEMPTS):
        claim = socket.socket()
        try:
            claim.bind((f"127.{second}.{_LAST_ADDRESS}", names.PORT_METRICS))
            claim.listen(1)
            return f"127.{second}", claim
        except OSError as error:
            claim.close()
            failure = error
    reason = failure.strerror if failure is not None else "?"
    raise AddressError(
        f"no local address has port {names.PORT_METRICS} free ({reason}): "
        "another program listens on it for all addresses"
    )
