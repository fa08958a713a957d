"""The files of a run folder: everything needed to show a run and to resume it."""

import contextlib
import csv
import math
import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator import yamltext
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import extension, folderlock, resumption
from resnetboost_operator.runs.extension import Made
from resnetboost_operator.runs.place import JOB, RUNS
from resnetboost_operator.validation import schema

Manifest = dict[str, Any]

# In the order in which `clear` removes them: without its status a run that lacks some checkpoints can be resumed.
_MADE = ("status.yaml", "checkpoints", "pods", "environment.yaml", "metrics.csv", "report.html", "report.png")
_KEPT_WITHOUT_A_STEP = ("logs", "volumes")


class _Metadata(msgspec.Struct):
    name: str
    uid: str


class _Named(msgspec.Struct):
    name: str


class _Device(msgspec.Struct):
    type: str
    count: int


class _Spec(msgspec.Struct):
    device: _Device
    model: _Named
    dataset: _Named
    stages: list[_Named]


class _Shape(msgspec.Struct):
    """The fields that the job.yaml of every version has."""

    metadata: _Metadata
    spec: _Spec


_OTHER_FOLDER = "choose another folder with --out, or delete this one"


class RunFolderError(UserError):
    """The folder cannot be used for this run; the message names the problem and the remedy."""


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_file = path / JOB
        self.status_file = path / "status.yaml"
        self.environment_file = path / "environment.yaml"
        self.metrics_file = path / "metrics.csv"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.report_html = path / "report.html"
        self.report_png = path / "report.png"

    def read_job(self) -> Manifest:
        """The job of this run, defaulted, with its uid."""
        if problem := self._problem_of_job():
            raise RunFolderError(f"{self.job_file} is damaged ({problem}); {_OTHER_FOLDER}")
        return schema.defaulted(_read(self.job_file))  # the job of an earlier version lacks later fields

    def _problem_of_job(self) -> str:
        """Why job.yaml is no job that a run wrote, or ''."""
        job = yamltext.read_mapping(self.job_file)
        if job is None:
            return "it is not a YAML mapping"
        try:
            msgspec.convert(job, _Shape)
        except msgspec.ValidationError as error:
            return str(error)
        return ""

    def foreign_file(self) -> str:
        """What shows that no run made this folder, or '' if a run did or it is empty.

        A run's job.yaml has a uid, as has a job that kubectl printed; only with that one there is no lock.
        """
        names = sorted(found.name for found in self.path.iterdir() if not found.name.startswith("."))
        if not names:
            return ""
        if not self.job_file.exists():
            return f"it holds {names[0]}"
        if problem := self._problem_of_job():
            return f"no run wrote its {JOB} ({problem})"
        if "resourceVersion" in _read(self.job_file)["metadata"] and not folderlock.exists(self.path):
            return f"its {JOB} is a job of a cluster (it has metadata.resourceVersion)"
        return ""

    def read_status(self) -> Status:
        """The last status written; empty before the first."""
        if not self.status_file.exists():
            return Status()
        try:
            return statuses.from_dict(_read(self.status_file))
        except ValueError as error:
            raise RunFolderError(f"{self.status_file} is damaged ({error}); start over with --fresh") from None

    def write_status(self, status: Status) -> None:
        """Replace the status atomically."""
        write(self.status_file, yamltext.dump(statuses.to_dict(status)))

    def read_environment(self) -> Manifest:
        """Machine and versions of the last run; empty if it never started."""
        return _read(self.environment_file) if self.environment_file.exists() else {}

    def write_environment(self, environment: Mapping[str, str]) -> None:
        """Write the machine and versions on which the results depend."""
        write(self.environment_file, yamltext.dump(dict(environment)))

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder against other runs. Raises `UserError` if one uses it."""
        return folderlock.held(self.path, "run")

    def in_use(self) -> bool | None:
        """True while a run holds the folder's lock, None if that cannot be read; needs no right to write there."""
        return folderlock.is_held(self.path)

    def is_barren(self) -> bool:
        """True if an earlier run left no step, so that any job may start here."""
        if not self.job_file.exists() or any(self.checkpoints.glob("*/*/attempt-*/step-*")):
            return False
        status = self.read_status()
        return status.phase != "Complete" and (status.progress is None or status.progress.step == 0)

    def attempts_on_disk(self) -> int:
        """One more than the highest attempt with files here."""
        found = [path.name.removeprefix("attempt-") for path in self.checkpoints.glob("*/*/attempt-*")]
        return max((int(number) + 1 for number in found if number.isdigit()), default=0)

    def clear(self, *, all_files: bool) -> None:
        """Remove the files of earlier runs and nothing else; logs and volumes only with `all_files`.

        job.yaml stays until `begin` replaces it: a folder in which this was interrupted is still a run folder.
        """
        for name in (*_MADE, *(_KEPT_WITHOUT_A_STEP if all_files else ())):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def begin(self, job: Manifest) -> Manifest:
        """Write the job of a new run; return it with its uid."""
        job = {**job, "metadata": {**job["metadata"], "uid": str(uuid.uuid4()), "generation": 1}}
        write(self.job_file, yamltext.dump(job))
        return job

    def enter(self, job: Manifest, report: Callable[[str], object] = lambda _: None) -> Manifest:
        """Write the job of a new run, or find the one to resume; return it with its uid.

        A run may get more epochs and further stages: `report` is called with a sentence about each.
        """
        if not self.job_file.exists():
            return self.begin(job)
        kept = self.read_job()
        longer = extension.extended(kept, job, self.made(kept))
        refusal = resumption.refusal(longer.kept, longer.job)
        if refusal:
            raise RunFolderError(
                f"{self.path} holds a run of another job: {refusal}; "
                "choose another folder with --out, or start over with --fresh"
            )
        if longer.goes_on:  # before the job: a crash in between leaves a stage with nothing to do
            self.write_status(resumption.with_stages_that_go_on(self.read_status(), longer.goes_on))
        for sentence in longer.notes:
            report(sentence)
        return self._with_mutable_fields(kept, longer.job)

    def made(self, job: Manifest) -> Made:
        """The epochs and complete stages of the run, for an extension."""
        root, names = self.checkpoints / job["metadata"]["uid"], [stage["name"] for stage in job["spec"]["stages"]]
        epochs = {name: _epochs(root / name) for name in names if any((root / name).glob("attempt-*/step-*"))}
        return Made(epochs, {stage.name for stage in self.read_status().stages if stage.state == "Complete"})

    def _with_mutable_fields(self, kept: Manifest, job: Manifest) -> Manifest:
        if kept["spec"] == job["spec"]:
            return kept
        generation = kept["metadata"].get("generation", 1) + 1
        job = {**kept, "metadata": {**kept["metadata"], "generation": generation}, "spec": job["spec"]}
        write(self.job_file, yamltext.dump(job))
        return job


def open_for_run(path: Path) -> RunFolder:
    """Open the folder of a run to start or resume: create it if missing, refuse it if it holds other files."""
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    if foreign := folder.foreign_file():
        raise RunFolderError(f"{path} is neither empty nor a run folder: {foreign}; choose another --out")
    return folder


def open_existing(path: Path) -> RunFolder:
    """Open the folder of a run that was started."""
    if path.parts[:1] == ("s3:",):
        raise RunFolderError(
            f"s3://{path.relative_to('s3:')} is an address, and a run of this machine is a folder; "
            f"`resnetboost report s3://...` shows what an address has"
        )
    folder = RunFolder(path)
    if not path.exists():
        place = RUNS if path.parent == Path() else path.parent
        runs = ", ".join(run.path.name for run in below(place)) or "no run"
        raise RunFolderError(f"there is no run {path}; {place} holds {runs}")
    if not folder.job_file.is_file():
        raise RunFolderError(f"{path} is not a run folder: it has no job.yaml; resnetboost run makes one")
    return folder


def below(folder: Path) -> list[RunFolder]:
    """The runs in a folder of runs, by name."""
    return [RunFolder(path.parent) for path in sorted(folder.glob(f"*/{JOB}")) if path.is_file()]


def write(path: Path, text: str | bytes) -> None:
    """Replace a file atomically: the new text is complete and on disk before it takes the name.

    Several processes may write the same file: each has a temporary file of its own.
    """
    data = text.encode() if isinstance(text, str) else text
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _epochs(stage: Path) -> float:
    """Epochs that its attempts reached; infinite if no attempt reported any, since they may have trained."""
    epochs = [epoch for path in stage.glob("attempt-*/metrics.csv") for epoch in _recorded_epochs(path)]
    return max(epochs, default=math.inf)


def _recorded_epochs(metrics: Path) -> Iterator[float]:
    with metrics.open(newline="", errors="replace") as file:
        for row in csv.DictReader(file):
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a killed rank leaves half a line
                yield float(row["epoch"])


def _read(path: Path) -> Manifest:
    found = yamltext.read_mapping(path)
    if found is None:
        raise RunFolderError(f"{path} is damaged: it is not a YAML mapping; start over with --fresh")
    return found
