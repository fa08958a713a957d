"""Writes the file to attach to a bug report: findings, self-checks, and what the vendors' programs print.

It has no environment variables and no files of the user; names of user and host, addresses and what looks like a secret
are taken out of every text.
"""

import contextlib
import getpass
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import resnetboost_trainer
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor import redact
from resnetboost_trainer.doctor.host import Host
from resnetboost_trainer.selfcheck.gang import Ended

# Programs and files whose text helps whoever has no such machine. None of them prints what is computed by whom.
PROGRAMS: tuple[tuple[str, ...], ...] = (
    ("npu-smi", "info"),
    ("npu-smi", "info", "-t", "topo"),
    ("nvidia-smi", "--query-gpu=name,driver_version,vbios_version,memory.total,compute_cap,pstate", "--format=csv"),
    ("nvidia-smi", "topo", "-m"),
    ("lscpu",),
)
FILES = (
    "/proc/meminfo",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/ascend-toolkit/latest/compiler/version.info",
    "/proc/driver/nvidia/version",
)


def write(path: Path, found: Sequence[Finding], checks: Mapping[str, Ended], host: Host) -> None:
    """Write the report, whole or not at all. Raises OSError."""
    report = {
        "version": resnetboost_trainer.__version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "findings": msgspec.to_builtins(found),
        "selfChecks": msgspec.to_builtins(checks),
        "programs": {" ".join(words): _printed(host, words) for words in PROGRAMS},
        "files": {name: host.read(name) for name in FILES},
    }
    cleaned = _cleaned(report, _names())
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(cleaned)) + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _printed(host: Host, words: Sequence[str]) -> str:
    program = host.which(words[0])
    if program is None:
        return ""
    answer = host.run([program, *words[1:]])
    return answer.text if answer.code is not None else f"(no end in time) {answer.text}"


def _names() -> dict[str, str]:
    """Names that say whose machine this is, and what stands for them."""
    names = {platform.node(): "<host>", str(Path.cwd()): "<folder>", os.path.expanduser("~"): "~"}
    with contextlib.suppress(KeyError, OSError):  # a container's user may have no name
        names[getpass.getuser()] = "<user>"
    return {name: shown for name, shown in names.items() if name not in ("", "/", "root", "localhost")}


def _cleaned(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return redact.text(value, names)
    if isinstance(value, Mapping):
        return {key: _cleaned(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner, names) for inner in value]
    return value
