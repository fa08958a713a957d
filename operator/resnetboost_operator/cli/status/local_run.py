"""`resnetboost status` for one local run: reads its folder, once or until the run ends."""

import asyncio
import time

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.cli import interruptible
from resnetboost_operator.cli.output import Output, console, standard_output
from resnetboost_operator.cli.view import display, summary
from resnetboost_operator.job import parse_job
from resnetboost_operator.observed import pods
from resnetboost_operator.runs.runfolder import RunFolder

LOOK_SECONDS = 1.0  # the runner writes progress once a second
FAILED = 1
FOLLOWING = "Ctrl-C ends this view, and leaves the run alone"


def run(folder: RunFolder, *, follow: bool) -> int:
    """Print the run's summary, after its end if `follow`; return the exit code. Raises `UserError`."""
    output = standard_output()
    code = asyncio.run(interruptible.until_interrupted(_over(folder, output))) if follow else 0
    if code > FAILED:
        return code
    screen = console(output)
    for line in summary.description(folder, time.time()):
        screen.print(line, soft_wrap=True)
    return code


async def _over(folder: RunFolder, output: Output) -> int:
    """Show each change until the run ends; return 0 if it is complete."""
    status = folder.read_status()
    if not _goes_on(folder, status):
        return _code(status)
    began = pods.seconds(status.start_time) or time.time()
    shown = display.choose(parse_job(folder.read_job()), console(output), began)
    shown.notice(FOLLOWING)
    try:
        while _goes_on(folder, status):
            shown.show(status)
            await asyncio.sleep(LOOK_SECONDS)
            status = folder.read_status()
        shown.show(status)
    finally:
        shown.close()
    return _code(status)


def _goes_on(folder: RunFolder, status: Status) -> bool:
    return not summary.is_at_rest(status) and folder.in_use() is not False


def _code(status: Status) -> int:
    return 0 if statuses.is_true(status, "Complete") else FAILED
