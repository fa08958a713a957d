"""Runs a job on this machine for a caller in Python: ranks in processes of their own, as the command line does."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from resnetboost.background import Background
from resnetboost.result import Run
from resnetboost_api.status import Status
from resnetboost_operator import errors
from resnetboost_operator.cli.view.display import KILLING, STOPPING, PlainDisplay
from resnetboost_operator.job import Job
from resnetboost_operator.local import entry
from resnetboost_operator.local.runloop import RunLoop
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.runs import runfolder
from resnetboost_operator.runs.runfolder import RunFolder

Manifest = dict[str, Any]
Report = Callable[[str], None]


def run(
    manifest: Manifest, path: Path, *, fresh: bool, progress: bool, on_status: Callable[[Status], object] | None
) -> Run:
    """Run or resume a checked job in its folder."""
    entry.check(manifest["spec"])
    say: Report = print if progress else lambda _: None
    try:
        folder = runfolder.open_for_run(path)
        with folder.locked():
            job = entry.enter(folder, manifest, fresh, lambda sentence: say(f"{path}: {sentence}"))
            if job is None:
                say(f"{path} holds the complete run already; fresh=True starts over")
            else:
                _train(job, folder, _Listener(job, progress, on_status))
    except OSError as error:
        raise _in_python(errors.storage_error(error)) from None
    except errors.UserError as error:
        raise _in_python(error) from None
    return Run(path)


def _in_python(error: errors.UserError) -> errors.UserError:
    """The error with this interface's arguments in place of the command line's options."""
    return type(error)(str(error).replace("--out", "out=...").replace("--fresh", "fresh=True"))


class _Listener:
    """Shows what happens and calls back, both in the caller's thread: a notebook prints into the cell that runs."""

    def __init__(self, job: Job, progress: bool, on_status: Callable[[Status], object] | None) -> None:
        console = Console(file=sys.stdout, highlight=False, markup=False, force_terminal=False, force_jupyter=False)
        self._display = PlainDisplay(job, console) if progress else None
        self._on_status = on_status
        self._last: Status | None = None

    def take(self, news: Status | Event) -> None:
        """Show a status or an event."""
        if isinstance(news, Event):
            if self._display is not None:
                self._display.event(news)
            return
        if self._display is not None:
            self._display.show(news)
        if self._on_status is not None and news != self._last:
            self._last = news
            self._on_status(news)

    def notice(self, text: str) -> None:
        """Show a message."""
        if self._display is not None:
            self._display.notice(text)

    def stop_calling(self) -> None:
        """Call back no more."""
        self._on_status = None


class _Audience:
    """Passes what happens on to the caller's thread."""

    def __init__(self, emit: Callable[[Status | Event], None]) -> None:
        self.show: Callable[[Status], None] = emit
        self.event: Callable[[Event], None] = emit


def _train(job: Job, folder: RunFolder, listener: _Listener) -> None:
    """Train until the job ends. Raises KeyboardInterrupt after it was stopped, and what `on_status` raised."""
    background: Background[Status | Event] = Background()
    loop = RunLoop(job, folder, _Audience(background.emit))
    stopped: BaseException | None = None

    def stop(error: BaseException) -> None:
        nonlocal stopped
        listener.notice(STOPPING if stopped is None else KILLING)
        background.call(loop.suspend if stopped is None else loop.kill)
        stopped = stopped or error

    with background.running(loop.run):
        while True:
            try:
                news = background.next()
            except KeyboardInterrupt as interrupt:
                stop(interrupt)
                continue
            if news is None:
                break
            try:
                listener.take(news)
            except KeyboardInterrupt as interrupt:
                stop(interrupt)
            except Exception as error:
                listener.stop_calling()
                stop(error)
    _write_report(folder, listener)
    if stopped is not None:
        raise stopped


def _write_report(folder: RunFolder, listener: _Listener) -> None:
    """Write the report; a failure must not spoil the result of the run."""
    from resnetboost_operator.runs import report

    try:
        report.write_report(folder)
    except (errors.UserError, OSError) as error:
        listener.notice(f"no report: {error}")
