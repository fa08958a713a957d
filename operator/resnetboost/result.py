"""The results of a run, read from its folder."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from resnetboost.table import Table, Value
from resnetboost_api.evaluation_details import EvaluationDetails
from resnetboost_api.status import StageStatus, Status
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import details, metricsfile, runfolder
from resnetboost_operator.runs.metricsfile import Measured

_EVALUATION = ("top1", "top5", "test_loss", "ema_top1", "ema_top5", "ema_test_loss")


class RunFailed(UserError):
    """A run that did not complete; `run` is what it left, and the exit code that of the command line."""

    def __init__(self, run: "Run") -> None:
        super().__init__(run.message)
        self.run = run
        self.exit_code = run.exit_code


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint: weights to evaluate, predict with, export, or resume from."""

    stage: str
    attempt: int
    step: int
    path: Path


class Run:
    """A run folder. Every property is read when it is asked for, so that it also shows a run that goes on."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the folder of a run that was started. Raises `UserError`."""
        self._folder = runfolder.open_existing(Path(folder))

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def status(self) -> Status:
        """The job's status, as on a cluster: phase, stages, conditions, attempts."""
        return self._folder.read_status()

    @property
    def complete(self) -> bool:
        """True if all stages are complete."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """The exit code that `resnetboost run` has for this end: 0 if complete, else by the class of the failure."""
        from resnetboost_operator.cli.view import summary

        return summary.exit_code(self.status)

    @property
    def message(self) -> str:
        """How the run ended, in a sentence."""
        from resnetboost_operator.cli.view import summary

        return f"{self._folder.read_job()['metadata']['name']} {summary.outcome(self.status)}"

    def check(self) -> "Run":
        """Return the run if it is complete. Raises `RunFailed` if it is not."""
        if not self.complete:
            raise RunFailed(self)
        return self

    @property
    def stages(self) -> Sequence[StageStatus]:
        """State and results of each stage: top1, top5 and test_loss of its last evaluation."""
        return self.status.stages

    @property
    def steps(self) -> Table:
        """The metrics of every step, those of metrics.csv; `step` counts over all stages."""
        return _steps(self._measured())

    @property
    def epochs(self) -> Table:
        """The metrics of every whole epoch: means over its steps, and the evaluation at its end (`nan` without one)."""
        return _epochs(self._measured())

    def _measured(self) -> Measured:
        if self._folder.in_use():  # who runs it merges at its end
            return metricsfile.measured(metricsfile.rows(self._folder))
        return metricsfile.read(self._folder.metrics_file)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All complete checkpoints by stage, attempt and step; the last one is the newest."""
        job = self._folder.read_job()
        root = self._folder.checkpoints / job["metadata"]["uid"]
        return tuple(found for stage in job["spec"]["stages"] for found in _checkpoints(root / stage["name"]))

    @property
    def evaluation(self) -> EvaluationDetails | None:
        """The newest evaluation by class that `resnetboost eval --record` has recorded; None without one."""
        return details.newest(self._folder)

    @property
    def report(self) -> Path | None:
        """The report, an HTML file; None if there is none yet."""
        return _existing(self._folder.report_html)

    @property
    def picture(self) -> Path | None:
        """The report's curves, a PNG file; None if there is none yet."""
        return _existing(self._folder.report_png)

    @property
    def logs(self) -> tuple[Path, ...]:
        """The log of each rank and attempt."""
        return tuple(sorted(self._folder.logs.glob("*.log")))

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.message}>"


def _steps(measured: Measured) -> Table:
    columns: dict[str, Sequence[Value]] = {"step": measured.steps, "stage": measured.stages}
    return Table({**columns, "attempt": measured.attempts, **measured.columns})


def _epochs(measured: Measured) -> Table:
    """One row per finished epoch; the last of its steps has a whole number of epochs."""
    rows, begin = list[dict[str, Value]](), 0
    for place, (stage, epoch) in enumerate(zip(measured.stages, measured.column("epoch"), strict=True)):
        if place and stage != measured.stages[place - 1]:
            begin = place
        if epoch.is_integer():
            rows.append({"stage": stage, "epoch": int(epoch), **_means(measured, begin, place)})
            begin = place + 1
    names = ("stage", "epoch", "step", "loss", "accuracy", "learning_rate", "seconds", *_EVALUATION)
    return Table({name: [row[name] for row in rows] for name in names})


def _means(measured: Measured, begin: int, end: int) -> dict[str, Value]:
    """Figures of the steps from `begin` to `end`, both included."""
    places = range(begin, end + 1)

    def picked(name: str) -> list[float]:
        values = measured.column(name)
        return [values[place] for place in places if values[place] == values[place]]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values) if values else float("nan")

    return {
        "step": measured.steps[end],
        "loss": mean(picked("loss")),
        "accuracy": mean(picked("accuracy")),
        "learning_rate": measured.column("learning_rate")[end],
        "seconds": sum(picked("step_seconds")),
        **{name: measured.column(name)[end] for name in _EVALUATION},
    }


def _checkpoints(stage: Path) -> list[Checkpoint]:
    found = [manifest.parent for manifest in stage.glob("attempt-[0-9]*/step-[0-9]*/manifest.json")]
    made = [Checkpoint(stage.name, _number(path.parent), _number(path), path) for path in found]
    return sorted(made, key=lambda checkpoint: (checkpoint.attempt, checkpoint.step))


def _number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
