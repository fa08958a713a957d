"""`resnetboost validate`: checks job files without a cluster."""

from pathlib import Path

import click

from resnetboost_api import failures
from resnetboost_operator import readable
from resnetboost_operator.cli import job_file
from resnetboost_operator.validation import data_notes
from resnetboost_operator.validation.notes import notes, of_cluster


def _defaults() -> str:
    """What follows from each failure without a rule, for the help text."""
    lines = [f"{action}: {', '.join(names)}" for action, names in failures.default_rules().items()]
    return "\n\n".join(["Without a match in failurePolicy.rules, what follows from a failure is:", *lines])


@click.command(epilog=_defaults())
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
def validate(files: tuple[Path, ...]) -> None:
    """Check job files against the API, without a cluster.

    Checks types, unknown fields, ranges and the rules between fields, like kubectl apply. In a file with
    several documents every job is checked; other objects are ignored. The exit code is 10 if a file has a
    problem; notes do not change it.

    \b
    Example:
      resnetboost validate examples/*.yaml
    """
    problems: list[str] = []
    for file in files:
        try:
            for place, job in job_file.load_all(file):
                if isinstance(job, job_file.JobError):
                    problems += job.problems
                    continue
                spec = job["spec"]
                found = (*notes(spec), *of_cluster(spec), *data_notes.of(spec))
                suffix = "".join(f"; note: {note}" for note in found)
                click.echo(readable.printable(f"{place}: ok ({job['metadata']['name']}){suffix}"))
        except job_file.JobError as error:
            problems += error.problems
    if problems:
        raise job_file.JobError(problems)
