"""Shared memory: /dev/shm, in which a device's collectives exchange data between the ranks of a node."""

from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor import ascend, nvidia
from resnetboost_trainer.doctor.check import GIB, Subject, size

PLACE = "/dev/shm"
OF_DEVICES = GIB  # NCCL's own advice


def check(subject: Subject) -> Iterator[Finding]:
    """Warn of a small one where devices are; ranks on CPUs need none."""
    found = subject.host.space(PLACE)
    has_devices = bool(nvidia.devices(subject.host) or ascend.devices(subject.host))
    if found is None:
        remedy = "mount a tmpfs there (docker run --shm-size 1g; the operator does so for pods)"
        make = findings.warning if has_devices else None
        yield make("shm", f"there is no {PLACE}", remedy) if make else findings.ok("shm", f"no {PLACE}; CPUs need none")
    elif has_devices and found.total < OF_DEVICES:
        remedy = f"give the container {size(OF_DEVICES)}: --shm-size, or device.sharedMemorySize of the job"
        yield findings.warning("shm", f"{PLACE} has {size(found.total)}", remedy)
    else:
        yield findings.ok("shm", f"{PLACE} has {size(found.total)}, {size(found.free)} free")
