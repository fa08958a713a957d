"""`resnetboost run`: a job file and a folder into a finished, failed or interrupted run; it plans nothing."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnetboost_operator import api, errors, readable
from resnetboost_operator.cli import job_file
from resnetboost_operator.cli.output import Output, console, standard_output
from resnetboost_operator.cli.run import data_notes, display, summary
from resnetboost_operator.errors import UserError
from resnetboost_operator.local import environment, machine
from resnetboost_operator.local.runloop import RunLoop
from resnetboost_operator.runs import resumption, runfolder
from resnetboost_operator.runs.runfolder import RunFolder
from resnetboost_operator.status import Status
from resnetboost_operator.validation.notes import notes

Manifest = dict[str, Any]

RANK_BYTES = 600 << 20  # resident memory of a rank that trains a small network, and its share of the coordinator


def run(file: Path, assignments: Sequence[str], out: Path | None, fresh: bool, command: str) -> int:
    """Run or resume, report, and return the exit code."""
    began = time.monotonic()
    wanted = with_absolute_paths(job_file.load(file, assignments))
    check_device(wanted["spec"], len(machine.usable_cores()), machine.memory_bytes())
    check_room(wanted["spec"], machine.memory_bytes())
    check_starts(wanted["spec"])
    for note in (*notes(wanted["spec"]), *data_notes.of(wanted["spec"])):
        print(f"resnetboost: note: {readable.printable(note)}", file=sys.stderr, flush=True)
    output = standard_output()
    try:
        folder = runfolder.open_for_run(out or Path("runs") / wanted["metadata"]["name"])
        with folder.locked():
            status, trained = _enter_and_train(folder, wanted, fresh, output)
    except OSError as error:
        raise errors.storage_error(error) from None
    seconds = time.monotonic() - began if trained else summary.active_seconds(status, time.time())
    screen = console(output)
    screen.print()
    for line in summary.closing_lines(folder, status, command, seconds):
        screen.print(line, soft_wrap=True)
    return summary.exit_code(status)


def check_device(spec: Manifest, cores: int, memory_bytes: int) -> None:
    """Refuse what only a cluster with device plugins has, and say what this machine can do instead."""
    kind, most = spec["device"]["type"], max(1, min(cores, memory_bytes // RANK_BYTES))
    if kind != "CPU":
        problem = f"device.type: {kind} needs a cluster, this machine trains on CPUs"
        count = min(spec["device"]["count"], most)
        larger = [index for index, stage in enumerate(spec["stages"]) if stage.get("deviceCount", 0) > most]
        stages = "".join(f" --set stages[{index}].deviceCount={most}" for index in larger)
        raise errors.UserError(f"{problem}; try --set device.type=CPU --set device.count={count}{stages}")


def check_room(spec: Manifest, memory_bytes: int) -> None:
    """Refuse a gang that would bring the machine down: each rank imports MindSpore for itself."""
    most = max(1, memory_bytes // RANK_BYTES)
    ranks, field = _largest_gang(spec)
    if ranks > most:
        need = f"{ranks} ranks need about {ranks * RANK_BYTES >> 30} GiB of memory"
        raise errors.UserError(f"{field}: {need}, this machine has {memory_bytes >> 30} GiB; use at most {most}")


def check_starts(spec: Manifest) -> None:
    """Refuse a start from another job: each run keeps its checkpoints in a folder of its own, where no other job is."""
    for index, stage in enumerate(spec["stages"]):
        job = stage.get("startFrom", {}).get("jobName")
        if job is not None:
            field = f"stages[{index}].startFrom.jobName: {job}"
            reason = "only jobs on a cluster share a claim, a run on this machine has a folder of its own"
            raise errors.UserError(f"{field}: {reason}; make that job's stage an earlier stage of this one")


def _largest_gang(spec: Manifest) -> tuple[int, str]:
    """The ranks of the stage that has most, and the field that says so."""
    given = [
        (stage["deviceCount"], f"stages[{index}].deviceCount") if "deviceCount" in stage else None
        for index, stage in enumerate(spec["stages"])
    ]
    return max(found or (int(spec["device"]["count"]), "device.count") for found in given)


def with_absolute_paths(job: Manifest) -> Manifest:
    """Relative paths of data and weights are meant from here, not from the folders the pods run in."""
    spec = {**job["spec"], "dataset": _absolute(job["spec"]["dataset"])}
    if "weights" in spec["model"]:
        spec["model"] = {**spec["model"], "weights": _absolute(spec["model"]["weights"])}
    return {**job, "spec": spec}


def _absolute(place: Manifest) -> Manifest:
    return {**place, "path": str(Path(place["path"]).expanduser().absolute())} if "path" in place else place


def _enter_and_train(folder: RunFolder, wanted: Manifest, fresh: bool, output: Output) -> tuple[Status, bool]:
    """The run's last status, and whether anything was done for it now."""
    if fresh or folder.is_barren():
        folder.clear()
    job = api.parse(folder.enter(wanted, lambda sentence: output.write(f"{folder.path}: {sentence}\n")))
    status = folder.read_status()
    if resumption.is_over(status, [stage.name for stage in job.spec.stages]):
        output.write(f"{folder.path} holds the complete run already; --fresh starts over\n")
        return status, False
    folder.write_environment(environment.describe())
    return asyncio.run(_train(job, folder, output)), True


async def _train(job: api.Job, folder: RunFolder, output: Output) -> Status:
    shown = display.choose(job, console(output))
    try:
        loop = RunLoop(job, folder, shown)
        Interrupts(loop, shown, output).listen()
        status = await loop.run()
        shown.notice("drawing the report")
        _write_report(folder)
        return status
    finally:
        shown.close()


class Interrupts:
    """Ctrl-C and its relatives: the first one stops with a checkpoint, the second one kills."""

    def __init__(self, loop: RunLoop, shown: display.Display, output: Output) -> None:
        self._loop = loop
        self._display = shown
        self._output = output
        self._count = 0

    def listen(self) -> None:
        """Take the signals over; one that is ignored (nohup) stays so."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    def _stop(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._output.close()
        self._count += 1
        if self._count == 1:
            self._display.notice(display.STOPPING)
            self._loop.suspend()
        else:
            self._display.notice(display.KILLING)
            self._loop.kill()


def _write_report(folder: RunFolder) -> None:
    """A report that cannot be drawn must not spoil the result of the run."""
    from resnetboost_operator.runs import report

    try:
        report.write_report(folder)
    except (UserError, OSError) as error:
        print(f"resnetboost: no report: {error}", file=sys.stderr)
