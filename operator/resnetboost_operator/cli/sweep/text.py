"""Shows a sweep as it goes: a line for whatever happens, and on a terminal one about the trials that run."""

import os
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text

from resnetboost_api.evaluations import Metric
from resnetboost_operator import readable
from resnetboost_operator.cli.sweep.place import Ended
from resnetboost_operator.cli.sweep.study import Trial
from resnetboost_operator.cli.view import trial_table

LABELS = {"top1": "top-1", "top5": "top-5", "loss": "test loss"}
_LONGEST = 160


class Screen:
    """Prints what happens to trials. `best` is the number of the best trial so far."""

    def __init__(self, console: Console, metric: Metric, trials: int) -> None:
        self._console, self._metric, self._trials = console, metric, trials
        self._running: dict[int, str] = {}
        self._done = 0
        fixed = not console.is_terminal or os.environ.get("TERM") in ("dumb", "unknown")
        self._live = None if fixed else Live(console=console, auto_refresh=False, transient=True)
        if self._live is not None:
            self._live.start()

    def line(self, text: str) -> None:
        """Print a line."""
        self._console.print(readable.cut(text, _LONGEST), soft_wrap=True)

    def begun(self, done: int) -> None:
        """So many trials had ended before."""
        self._done = done

    def begins(self, trial: Trial, resumes: bool) -> None:
        """A trial begins, or goes on."""
        self._running[trial.number] = ""
        self.line(f"trial {trial.number} {'goes on' if resumes else 'begins'}: {trial_table.words(trial.values)}")
        self._refresh()

    def reports(self, trial: Trial, epoch: int, value: float) -> None:
        """A trial was evaluated."""
        self._running[trial.number] = f"epoch {epoch}, {self._figure(value)}"
        if self._live is None:
            self.line(f"trial {trial.number}: {self._running[trial.number]}")
        self._refresh()

    def ends(self, trial: Trial, ended: Ended) -> None:
        """A trial has ended."""
        self._running.pop(trial.number, None)
        self._done += 1
        match ended.how:
            case "complete":
                told = self._figure(ended.value)
            case "pruned":
                told = "ended early, below the median"
            case _:
                told = f"{ended.how}: {ended.why}"
        self.line(f"trial {trial.number}: {readable.printable(told)} ({self._done} of {self._trials})")
        self._refresh()

    def close(self) -> None:
        """Release the terminal."""
        if self._live is not None:
            self._live.stop()

    def _figure(self, value: float | None) -> str:
        return f"{LABELS[self._metric]} {trial_table.shown_figure(value, self._metric)}"

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(
                Text(_running(self._running), style="dim", overflow="ellipsis", no_wrap=True), refresh=True
            )


def _running(trials: Mapping[int, str]) -> str:
    return " · ".join(f"trial {number} {told or 'starts'}" for number, told in trials.items())


def importances(found: Mapping[str, float]) -> str:
    """What the parameters' values decide, in a line."""
    paths = list(found)
    return ", ".join(f"{trial_table.short(path, paths)} {100 * share:.0f} %" for path, share in found.items())
