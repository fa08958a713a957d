"""The interface of a check: one file per subject has a function `check`, `registry` lists them."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.host import Host

GIB, MIB = 1 << 30, 1 << 20


class Subject(msgspec.Struct, frozen=True):
    """What is examined: the machine, and the folder that runs are written to."""

    host: Host
    runs: Path


Check = Callable[[Subject], Iterable[Finding]]


def counted(count: int, what: str) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes as 1.5 GiB or 64 MiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
