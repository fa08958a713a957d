"""Runs the trials of a sweep on this machine, each in a run folder of its own."""

from collections.abc import Callable
from pathlib import Path

from resnetboost_api.evaluations import Metric
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.cli.sweep import place
from resnetboost_operator.cli.sweep.place import Ended, Manifest, Report, how_it_failed
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.local import entry, machine
from resnetboost_operator.local.runloop import RunLoop
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.runs import comparison, metricsfile, runfolder
from resnetboost_operator.runs.runfolder import RunFolder

_COLUMNS = {"top1": "top1", "top5": "top5", "loss": "test_loss"}


class LocalTrials:
    """Runs of this machine. Each of `parallel` runs at a time has the same share of its cores."""

    def __init__(self, folders: Path, metric: Metric, parallel: int) -> None:
        self._folders, self._metric, self._parallel = folders, metric, parallel
        self._free = list(range(parallel))
        self._loops: set[RunLoop] = set()
        self._stopping = False

    async def run(self, number: int, job: Manifest, pruning: str, report: Report) -> Ended:
        """As `Place` says."""
        folder = runfolder.open_for_run(self._folders / f"{number:03}")
        slot = self._free.pop(0)
        try:
            with folder.locked():
                return await self._run(folder, job, pruning, report, slot)
        finally:
            self._free.append(slot)

    async def _run(self, folder: RunFolder, job: Manifest, pruning: str, report: Report, slot: int) -> Ended:
        if pruning:  # its ranks ended with the process that began to end it
            return Ended("pruned", why=pruning)
        status = folder.read_status() if folder.job_file.exists() else Status()
        if statuses.is_terminal(status):
            return _end(folder, status, self._metric)
        if self._stopping:
            return Ended("stopped")
        entry.check(job["spec"])
        entered = entry.enter(folder, job, False, lambda _: None)
        if entered is None:
            return _end(folder, folder.read_status(), self._metric)
        watch = _Watch(folder, self._metric, report, place.epochs(job))
        loop = RunLoop(entered, folder, watch, machine.share(machine.usable_cores(), slot, self._parallel))
        watch.ends = loop.suspend
        self._loops.add(loop)
        try:
            status = await loop.run()
        finally:
            self._loops.discard(loop)
        if statuses.is_terminal(status):
            return _end(folder, status, self._metric)
        return Ended("pruned") if watch.pruned else Ended("stopped")

    def stop(self) -> None:
        """Stop all ranks after their step, with a checkpoint."""
        self._stopping = True
        for loop in self._loops:
            loop.suspend()

    def kill(self) -> None:
        """Kill all ranks; steps since their last checkpoint are lost."""
        self._stopping = True
        for loop in self._loops:
            loop.kill()


def _end(folder: RunFolder, status: Status, metric: Metric) -> Ended:
    if not statuses.is_true(status, "Complete"):
        return how_it_failed(status)
    value = trial_table.figure(status, metric)
    if value is None:
        return Ended("failed", why=f"it has no {metric}: nothing was evaluated in its last stage")
    return Ended("complete", value)


class _Watch:
    """Reports the run's evaluations, each once, and ends the run early if it is told to."""

    def __init__(self, folder: RunFolder, metric: Metric, report: Report, epochs: int) -> None:
        """`epochs` are those of the whole run: after the last there is nothing to end early."""
        self._folder, self._column, self._report, self._epochs = folder, _COLUMNS[metric], report, epochs
        self._seen: object = None
        self._reported = 0
        self.pruned = False
        self.ends: Callable[[], None] = lambda: None

    def show(self, status: Status) -> None:
        """Look for evaluations whenever the progress may have one more."""
        progress = status.progress
        if progress is None or self.pruned or statuses.is_terminal(status):
            return
        now = (progress.stage, progress.attempt, int(progress.epoch), progress.top1, progress.top5, progress.test_loss)
        if now == self._seen:
            return
        self._seen = now
        for epoch, value in evaluations(self._folder, self._column)[self._reported :]:
            self._reported += 1
            if epoch < self._epochs and self._report(epoch, value):
                self.pruned = True
                self.ends()
                return

    def event(self, event: Event) -> None:
        """Show no events: the run's folder has them."""


def evaluations(folder: RunFolder, column: str) -> list[tuple[int, float]]:
    """Each evaluation of a run: epochs over all stages, rounded, and the value."""
    measured = metricsfile.measured(metricsfile.rows(folder))
    epochs = comparison.over_stages(measured)
    values = zip(epochs, measured.column(column), strict=True)
    return [(round(epoch), value) for epoch, value in values if value == value]
