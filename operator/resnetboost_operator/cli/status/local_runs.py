"""`resnetboost status` for all local runs, as the table that jobs of a cluster have."""

import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.status import job_table
from resnetboost_operator.cli.status.job_table import JobTable
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.view import summary
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import parse_job
from resnetboost_operator.observed import pods
from resnetboost_operator.planning.conditions import phase, with_condition
from resnetboost_operator.runs.runfolder import RunFolder

STOPPED = "nothing runs it: run it again to resume"
NOT_BEGUN = "not begun: nothing was trained yet"


def show(runs: Sequence[RunFolder]) -> None:
    """Print the runs by their paths; print a sentence for a folder that cannot be read."""
    views = tuple(_views(runs))
    screen = console(standard_output())
    table = JobTable(job_table.in_order(views), time.time(), namespaces=False)
    if views:
        screen.print(table, soft_wrap=not screen.is_terminal)


def _views(runs: Sequence[RunFolder]) -> Iterator[JobView]:
    for folder in runs:
        try:
            yield _view(folder)
        except UserError as error:
            _report(str(error))
        except OSError as error:
            at = f" ({error.filename})" if error.filename else ""
            _report(f"{folder.path} cannot be read: {error.strerror or error}{at}; check who may read it")


def _report(sentence: str) -> None:
    readable.make_plain(sys.stderr)
    print(f"resnetboost: {readable.printable(sentence)}", file=sys.stderr)


def _view(folder: RunFolder) -> JobView:
    manifest, status = folder.read_job(), folder.read_status()
    try:
        job = parse_job(manifest)
    except (msgspec.ValidationError, ValueError, KeyError):  # of another version; the table shows the rest
        job = None
    if not summary.is_at_rest(status) and folder.in_use() is False:
        status = _stopped(status, manifest["spec"]["stages"][0]["name"])
    return JobView(
        uid=manifest["metadata"]["uid"],
        namespace="",
        name=readable.printable(str(folder.path)),
        created=pods.seconds(status.start_time) or folder.job_file.stat().st_mtime,
        deleting=False,
        suspend=False,
        job=job,
        status=status,
        manifest=manifest,
    )


def _stopped(status: Status, first: str) -> Status:
    """The status of a run whose process is gone, which still says Running."""
    reason, message = ("Stopped", STOPPED) if status.stage else ("NotBegun", NOT_BEGUN)
    status = with_condition(status, "Running", False, reason, message, "")
    return replace(status, phase=phase(status), stage=status.stage or first)
