"""Operators: whether the C++ operators for CPUs are built and load, and whether a compiler is there to build them."""

import platform
from collections.abc import Iterator

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import Subject
from resnetboost_trainer.kernels import build, library

BUILD = "python -m resnetboost_trainer.kernels.build"
_LOAD = "from resnetboost_trainer.kernels import library; print(repr(library.problem()))"
_SECONDS = 60.0


def check(subject: Subject) -> Iterator[Finding]:
    """Load the operators in a process of their own: what is wrong with a library may end it."""
    if platform.machine() not in library.MACHINES:
        yield findings.ok("operators", f"none for {platform.machine()}: MindSpore's own run instead")
        return
    compiler = build.compiler()
    answer = subject.host.python(_LOAD, _SECONDS)
    said = answer.last_line if answer.code == 0 else f"loading them ended with {answer.code}: {answer.last_line}"
    if said == "''":
        by = f"; {compiler} is there to build them again" if compiler else ""
        yield findings.ok("operators", f"the C++ operators are built and load{by}")
    elif said == "None":
        remedy = f"run {BUILD}" if compiler else f"install g++ and run {BUILD}"
        yield findings.warning("operators", "no C++ operators: training on CPUs takes longer", remedy)
    else:
        yield findings.warning("operators", f"the C++ operators cannot be used: {said.strip(chr(39))}", f"run {BUILD}")
