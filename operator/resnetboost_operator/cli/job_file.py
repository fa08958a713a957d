"""A job file and `--set` into a checked, defaulted object, or sentences about mistakes; it runs nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from resnetboost_operator import names, readable
from resnetboost_operator.cli import overrides
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import jobfile, schema

Manifest = dict[str, Any]

MOST_TOLD = 20
LONGEST = 1000  # characters of a sentence; it repeats what is in the file


class JobError(UserError):
    """A job that cannot be run; `problems` are sentences, one for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(readable.printable(readable.cut(problem, LONGEST)) for problem in problems)
        super().__init__("\n".join(self.problems))


def load(path: Path, assignments: Sequence[str] = ()) -> Manifest:
    """The defaulted job."""
    try:
        written = jobfile.load(path)
    except jobfile.JobFileError as error:
        raise JobError([str(error)]) from None
    job = overrides.apply(written, [_decoded(assignment) for assignment in assignments])
    problems = schema.check(job)
    if problems:
        raise JobError(_told(path, problems))
    return schema.defaulted(job)


def load_all(path: Path) -> Iterator[tuple[str, Manifest | JobError]]:
    """Each job of a file with how to name it, defaulted, or what is wrong with it; other objects are none of ours.

    Raises `JobError` if the file cannot be read or has no job.
    """
    try:
        documents = jobfile.load_all(path)
    except jobfile.JobFileError as error:
        raise JobError([str(error)]) from None
    jobs = [(place, found) for place, found in documents if len(documents) == 1 or found.get("kind") == names.KIND]
    if not jobs:
        raise JobError([f"{path}: none of its {len(documents)} documents is a {names.KIND}; add one"])
    for place, written in jobs:
        problems = schema.check(written)
        yield place, JobError(_told(place, problems)) if problems else schema.defaulted(written)


def _decoded(assignment: str) -> str:
    """An argument in UTF-8, also where the locale is another: Python keeps what it cannot decode as half characters."""
    try:
        return assignment.encode(errors="surrogateescape").decode()
    except UnicodeError:
        return assignment


def _told(path: Path | str, problems: Sequence[schema.Problem]) -> list[str]:
    """The first problems in a line each, and how many more there are."""
    rest = len(problems) - MOST_TOLD
    more = [f"{path}: and {rest} more"] if rest > 0 else []
    return [f"{path}: {problem}" for problem in problems[:MOST_TOLD]] + more
