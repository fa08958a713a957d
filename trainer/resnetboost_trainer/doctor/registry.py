"""All checks of this machine, in the order of the report. A new one is one file and one line here."""

from collections.abc import Iterator, Mapping

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor import (
    ascend,
    compiler,
    cores,
    disk,
    memory,
    mindspore,
    nvidia,
    ports,
    shared_memory,
    system,
)
from resnetboost_trainer.doctor.check import Check, Subject

CHECKS: Mapping[str, Check] = {
    "system": system.check,
    "cores": cores.check,
    "memory": memory.check,
    "shm": shared_memory.check,
    "disk": disk.check,
    "ports": ports.check,
    "ascend": ascend.check,
    "nvidia": nvidia.check,
    "operators": compiler.check,
    "mindspore": mindspore.check,
}


def examine(subject: Subject, checks: Mapping[str, Check] = CHECKS) -> Iterator[Finding]:
    """Run the checks one after another; one that breaks is a finding, and the others run."""
    for name, check in checks.items():
        try:
            yield from check(subject)
        except Exception as error:
            message = f"this check broke: {type(error).__name__}: {error}"
            yield findings.warning(name, message, "report it with this line")
