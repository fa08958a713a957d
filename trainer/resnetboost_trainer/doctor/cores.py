"""Cores: how many this process may use, by its affinity and its container's quota."""

import math
import os
from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject
from resnetboost_trainer.doctor.host import Host

LOADED = 1.5  # processes that want to run, per core


def check(subject: Subject) -> Iterator[Finding]:
    """Say how many cores there are, and warn of a single one, of too many threads and of a busy machine."""
    allowed, quota = len(os.sched_getaffinity(0)), _quota(subject.host)
    cores = allowed if quota is None else min(allowed, max(1, math.ceil(quota)))
    limit = "" if quota is None else f", the container's quota is {quota:g}"
    found = f"{cores} usable of {os.cpu_count()}{limit}"
    threads = subject.host.variables.get("OMP_NUM_THREADS", "")
    load = _load(subject.host)
    if threads.isdecimal() and int(threads) > cores:
        yield findings.warning("cores", f"{found}, but OMP_NUM_THREADS is {threads}", f"set it to {cores} or unset it")
    elif load > LOADED * (os.cpu_count() or 1):
        remedy = "end other programs, or expect steps that take longer"
        yield findings.warning("cores", f"{found}, and {load:g} processes want to run", remedy)
    elif cores == 1:
        remedy = "data is prepared beside training: give the job 2 cores per rank"
        yield findings.warning("cores", found, remedy)
    else:
        yield findings.ok("cores", found)


def _quota(host: Host) -> float | None:
    """Cores by the quota of cgroup v2 or v1; None without one."""
    words = host.read("/sys/fs/cgroup/cpu.max").split()
    if len(words) != 2:
        names = ("quota", "period")
        words = [host.read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us").strip() for name in names]
    if not all(word.isdecimal() and int(word) for word in words):  # "max", -1, no cgroup
        return None
    return int(words[0]) / int(words[1])


def _load(host: Host) -> float:
    """The load of the last minute."""
    try:
        return float(host.read("/proc/loadavg").split()[0])
    except (IndexError, ValueError):
        return 0.0
