"""Disk: whether the folders of runs and of temporary files can be written, and their free space."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.doctor.check import GIB, MIB, Subject, size

LITTLE = 2 * GIB  # a few checkpoints of ResNet-50 with THOR's factors
NOTHING = 100 * MIB


def check(subject: Subject) -> Iterator[Finding]:
    """Examine the folder of runs, or where it will be made, and that of temporary files."""
    yield _examined("runs", subject, _existing(subject), "choose another folder with --runs")
    temporary = Path(subject.host.variables.get("TMPDIR") or "/tmp")
    yield _examined("temporary", subject, temporary, "MindSpore compiles there: set TMPDIR to another folder")


def _existing(subject: Subject) -> Path:
    """The folder of runs, or the nearest one above it that exists."""
    folder = subject.runs.absolute()
    return next((path for path in (folder, *folder.parents) if subject.host.path(str(path)).exists()), Path("/"))


def _examined(what: str, subject: Subject, folder: Path, remedy: str) -> Finding:
    check, space = "disk", subject.host.space(str(folder))
    try:
        with tempfile.TemporaryFile(dir=subject.host.path(str(folder))) as file:
            file.write(b"0")
    except OSError as error:
        return findings.problem(check, f"{what}: {folder} cannot be written: {error.strerror}", remedy)
    if space is None:
        return findings.ok(check, f"{what}: {folder} can be written")
    found = f"{what}: {size(space.free)} free of {size(space.total)} at {folder}"
    if space.free < NOTHING:
        return findings.problem(check, found, f"make room, or {remedy}")
    if space.free < LITTLE:
        return findings.warning(check, found, f"a few checkpoints of ResNet-50 need {size(LITTLE)}: make room")
    return findings.ok(check, found)
