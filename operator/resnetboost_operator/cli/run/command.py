"""`resnetboost run`: runs or resumes a job on this machine."""

import asyncio
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from resnetboost_api.status import Status
from resnetboost_operator import errors, readable
from resnetboost_operator.cli import arguments, interrupts, job_file
from resnetboost_operator.cli.output import Output, console, standard_output
from resnetboost_operator.cli.run import trackers
from resnetboost_operator.cli.view import display, summary
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import Job
from resnetboost_operator.local import entry
from resnetboost_operator.local.runloop import RunLoop
from resnetboost_operator.runs import runfolder
from resnetboost_operator.runs.place import RUNS
from resnetboost_operator.runs.runfolder import RunFolder
from resnetboost_operator.validation import data_notes
from resnetboost_operator.validation.notes import notes

Manifest = dict[str, Any]


@click.command()
@arguments.FILE
@arguments.SET
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run folder. [default: runs/<job name>]")
@click.option("--fresh", is_flag=True, help="Delete the results of an earlier run in the run folder and start over.")
@click.pass_context
def run(ctx: click.Context, file: Path, assignments: tuple[str, ...], out: Path | None, fresh: bool) -> None:
    """Run the job FILE on this machine, one process per rank.

    Progress, metrics, logs, checkpoints and the report go to the run folder. Run the same job with the same
    folder again to resume it from its newest checkpoint.

    Ctrl-C (or SIGTERM) stops all ranks after the same step and saves a checkpoint; a second Ctrl-C kills them.

    \b
    Exit codes:
      0  complete              12 numerics (NaN)                16 interrupted, resumable
      1  anything else         13 out of memory                 17 diverged
      2  command line          14 communication between ranks   18 preflight
      10 job file or option    15 storage
      11 data set              130, 143 Ctrl-C or SIGTERM before the training began

    \b
    Examples:
      resnetboost run examples/digits.yaml
      resnetboost run examples/digits.yaml --set stages[0].epochs=3 --set device.count=1
      resnetboost run examples/digits.yaml --out /tmp/try --fresh
    """
    ctx.exit(run_job(file, assignments, out, fresh))


def run_job(file: Path, assignments: Sequence[str], out: Path | None, fresh: bool) -> int:
    """Run or resume the job, print its summary and return the exit code."""
    began = time.monotonic()
    job = job_file.with_absolute_paths(job_file.load(file, assignments))
    entry.check(job["spec"])
    for note in (*notes(job["spec"]), *data_notes.of(job["spec"])):
        print(f"resnetboost: note: {readable.printable(note)}", file=sys.stderr, flush=True)
    output = standard_output()
    try:
        folder = runfolder.open_for_run(out or RUNS / job["metadata"]["name"])
        with folder.locked():
            status, trained = _enter_and_train(folder, job, fresh, output)
    except OSError as error:
        raise errors.storage_error(error) from None
    seconds = time.monotonic() - began if trained else summary.active_seconds(status, time.time())
    screen = console(output)
    screen.print()
    for line in summary.closing_lines(folder, status, _commands(file, assignments, out), seconds):
        screen.print(line, soft_wrap=True)
    return summary.exit_code(status)


def _commands(file: Path, assignments: Sequence[str], out: Path | None) -> summary.Commands:
    """The commands that run this job again; where its fields were wrong, without values to copy."""
    options = [word for assignment in assignments for word in ("--set", assignment)]
    others = ["--set", "..."] if assignments else []
    folder = ["--out", str(out)] if out is not None else []
    program = [_program(), "run", str(file)]
    return summary.Commands(shlex.join([*program, *options, *folder]), shlex.join([*program, *others, *folder]))


def _program() -> str:
    """This program as the user can call it again: its name if that finds it, else its path."""
    name = Path(sys.argv[0]).name
    if name != "resnetboost" or shutil.which(name) == sys.argv[0]:
        return "resnetboost"
    return sys.argv[0]


def _enter_and_train(folder: RunFolder, manifest: Manifest, fresh: bool, output: Output) -> tuple[Status, bool]:
    """Train unless the run is complete; return the last status and whether anything was trained."""
    job = entry.enter(folder, manifest, fresh, lambda sentence: output.write(f"{folder.path}: {sentence}\n"))
    if job is None:
        output.write(f"{folder.path} holds the complete run already; --fresh starts over\n")
        return folder.read_status(), False
    return asyncio.run(_train(job, folder, output)), True


async def _train(job: Job, folder: RunFolder, output: Output) -> Status:
    shown = display.choose(job, console(output))
    try:
        loop = RunLoop(job, folder, shown)

        def stop() -> None:
            shown.notice(display.STOPPING)
            loop.suspend()

        def kill() -> None:
            shown.notice(display.KILLING)
            loop.kill()

        interrupts.listen(output, stop, kill)
        status = await loop.run()
        shown.notice("drawing the report")
        _write_report(folder)
        trackers.send(job, folder, status)
        return status
    finally:
        shown.close()


def _write_report(folder: RunFolder) -> None:
    """Write the report; a failure must not spoil the result of the run."""
    from resnetboost_operator.runs import report

    try:
        report.write_report(folder)
    except (UserError, OSError) as error:
        print(f"resnetboost: no report: {error}", file=sys.stderr)
