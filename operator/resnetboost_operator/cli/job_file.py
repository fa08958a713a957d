"""Loads a job file, applies `--set`, checks and defaults the job; mistakes become sentences."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from resnetboost_api import names
from resnetboost_operator import readable
from resnetboost_operator.cli import overrides
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import jobfile, schema

Manifest = dict[str, Any]

MOST_SHOWN = 20
LONGEST = 1000  # characters of a sentence, which may repeat text of the file


class JobError(UserError):
    """An invalid job; `problems` has one sentence for each mistake."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(readable.printable(readable.cut(problem, LONGEST)) for problem in problems)
        super().__init__("\n".join(self.problems))


def load(path: Path, assignments: Sequence[str] = ()) -> Manifest:
    """Load the job of a file: checked and defaulted, with the assignments of `--set`."""
    return checked(written(path, assignments), path)


def written(path: Path, assignments: Sequence[str] = ()) -> Manifest:
    """The job as its file has it, with the assignments of `--set`; not checked yet."""
    try:
        found = jobfile.load(path)
    except jobfile.JobFileError as error:
        raise JobError([str(error)]) from None
    return overrides.apply(found, [_decoded(assignment) for assignment in assignments])


def checked(job: Manifest, place: Path | str) -> Manifest:
    """The defaulted job. Raises `JobError` for an invalid one; `place` names it in messages."""
    problems = schema.check(job)
    if problems:
        raise JobError(_sentences(place, problems))
    return schema.defaulted(job)


def load_all(path: Path) -> Iterator[tuple[str, Manifest | JobError]]:
    """Yield each job of a file with a name for messages, defaulted, or its problems; other objects are ignored.

    Raises `JobError` if the file cannot be read or has no job.
    """
    try:
        documents = jobfile.load_all(path)
    except jobfile.JobFileError as error:
        raise JobError([str(error)]) from None
    jobs = [(place, found) for place, found in documents if len(documents) == 1 or found.get("kind") == names.KIND]
    if not jobs:
        raise JobError([f"{path}: none of its {len(documents)} documents is a {names.KIND}; add one"])
    for place, found in jobs:
        try:
            yield place, checked(found, place)
        except JobError as error:
            yield place, error


def _decoded(assignment: str) -> str:
    """Decode an argument as UTF-8 in any locale: Python keeps undecodable bytes as surrogates."""
    try:
        return assignment.encode(errors="surrogateescape").decode()
    except UnicodeError:
        return assignment


def _sentences(path: Path | str, problems: Sequence[schema.Problem]) -> list[str]:
    """The first problems, one per line, and how many more there are."""
    rest = len(problems) - MOST_SHOWN
    more = [f"{path}: and {rest} more"] if rest > 0 else []
    return [f"{path}: {problem}" for problem in problems[:MOST_SHOWN]] + more


def with_absolute_paths(job: Manifest) -> Manifest:
    """The job with absolute paths of data, weights and teachers: ranks run in folders of their own."""
    spec = {**job["spec"], "dataset": _absolute(job["spec"]["dataset"])}
    if "weights" in spec["model"]:
        spec["model"] = {**spec["model"], "weights": _absolute(spec["model"]["weights"])}
    spec["stages"] = [
        {**stage, "distillation": _absolute(stage["distillation"], "teacher")} if "distillation" in stage else stage
        for stage in spec["stages"]
    ]
    return {**job, "spec": spec}


def _absolute(block: Manifest, field: str = "path") -> Manifest:
    """The block with an absolute path in that field, if it has one; an address in object storage stays as it is."""
    place = block.get(field)
    if place is None or "://" in place:
        return block
    return {**block, field: str(Path(place).expanduser().absolute())}
