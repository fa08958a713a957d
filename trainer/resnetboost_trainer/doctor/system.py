"""System: the versions that a bug report needs first."""

import platform
from collections.abc import Iterator

import resnetboost_trainer
from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject


def check(subject: Subject) -> Iterator[Finding]:
    """Name kernel, processor, Python and our own version."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    versions = f"resnetboost-trainer {resnetboost_trainer.__version__}, Python {platform.python_version()}"
    yield findings.ok("system", f"{system}, {_processor(subject)}; {versions}")


def _processor(subject: Subject) -> str:
    lines = subject.host.read("/proc/cpuinfo").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "unknown processor")
