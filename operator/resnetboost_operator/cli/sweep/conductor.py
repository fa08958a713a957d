"""Runs trials until a sweep has all it should have: draws values, runs jobs, records what they gave."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from resnetboost_operator.cli.job_file import JobError
from resnetboost_operator.cli.sweep.place import Ended, Place, Report
from resnetboost_operator.cli.sweep.space import Value
from resnetboost_operator.cli.sweep.study import Study, Trial

Manifest = dict[str, Any]
# Trials that fail one after another, before one has given a value: the next ones would fail too.
MOST_FAILURES = 3


class Audience(Protocol):
    """Shows what happens to trials."""

    def begins(self, trial: Trial, resumes: bool) -> None:
        """A trial begins, or goes on."""

    def reports(self, trial: Trial, epoch: int, value: float) -> None:
        """A trial was evaluated."""

    def ends(self, trial: Trial, ended: Ended) -> None:
        """A trial has ended, and is recorded."""


class Conductor:
    """One sweep. After a kill at any moment another one goes on: no result is lost, and no trial begins twice."""

    def __init__(
        self,
        study: Study,
        place: Place,
        job_of: Callable[[int, Mapping[str, Value]], Manifest],
        audience: Audience,
        *,
        trials: int,
        parallel: int,
    ) -> None:
        """`job_of` makes a trial's job and raises `JobError` for values that exclude each other."""
        self._study, self._place, self._job_of, self._audience = study, place, job_of, audience
        self._trials, self._parallel = trials, parallel
        self._unfinished = deque(study.unfinished())
        self._failures = 0
        self.stopping = False

    async def run(self) -> bool:
        """Run all trials; False if it was stopped before, or because the first ones failed one after another."""
        running: dict[asyncio.Task[Ended], Trial] = {}
        try:
            while True:
                while len(running) < self._parallel and (found := self._next()) is not None:
                    trial, job = found
                    work = self._place.run(trial.number, job, trial.pruning, self._report_of(trial))
                    running[asyncio.create_task(work)] = trial
                if not running:
                    return not self.stopping
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._record(running.pop(task), task.result())
        finally:
            self._place.stop()
            await asyncio.gather(*running, return_exceptions=True)

    def stop(self) -> None:
        """Begin no more trials, and let those that run stop; they go on when the sweep does."""
        self.stopping = True
        self._place.stop()

    def kill(self) -> None:
        """Stop at once."""
        self.stopping = True
        self._place.kill()

    @property
    def failed(self) -> bool:
        """True if it ended because the first trials failed one after another."""
        return self._failures >= MOST_FAILURES

    def _next(self) -> tuple[Trial, Manifest] | None:
        """The next trial whose values make a valid job; None if there is none to begin."""
        while not self.stopping and not self.failed:
            resumes = bool(self._unfinished)
            if not resumes and self._study.count >= self._trials:
                return None
            trial = self._unfinished.popleft() if resumes else self._study.next()
            try:
                job = self._job_of(trial.number, trial.values)
            except JobError as error:
                self._end(trial, Ended("failed", why=error.problems[0]))
                continue  # says nothing about the next ones
            self._audience.begins(trial, resumes)
            return trial, job
        return None

    def _report_of(self, trial: Trial) -> Report:
        def report(epoch: int, value: float) -> bool:
            ends = self._study.report(trial, epoch, value)
            self._audience.reports(trial, epoch, value)
            if ends:
                self._study.begin_to_prune(trial, f"below the median at epoch {epoch}")
            return ends

        return report

    def _record(self, trial: Trial, ended: Ended) -> None:
        if ended.how == "stopped":
            return
        self._end(trial, ended)
        self._failures = 0 if self._study.is_sound else self._failures + 1

    def _end(self, trial: Trial, ended: Ended) -> None:
        """Record how the trial ended. One that diverged counts as worse than all others, one that failed not at all."""
        match ended.how:
            case "complete":
                assert ended.value is not None
                self._study.complete(trial, ended.value)
            case "pruned":
                self._study.prune(trial, ended.why or self._study.pruning(trial))
            case "diverged":
                self._study.prune(trial, f"diverged: {ended.why}")
            case _:
                self._study.fail(trial, ended.why)
        self._audience.ends(trial, ended)
