"""The live picture of a run, laid out for the width of the terminal."""

import time
from collections.abc import Iterator, Mapping

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from resnetboost_api.status import Progress, StageStatus, Status
from resnetboost_operator import readable
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.job import Job

_MARKS = {
    "Pending": ("○", "dim"),
    "Running": ("●", "cyan"),
    "Complete": ("✓", "green"),
    "Failed": ("✗", "bold red"),
}
_INDENT = 2


class Line(msgspec.Struct, frozen=True):
    """An event in the picture; `time` in unix seconds."""

    time: float
    text: str
    warning: bool


class Frame(msgspec.Struct, frozen=True):
    """Everything one picture shows, as a rich renderable."""

    job: Job
    status: Status
    events: tuple[Line, ...]
    notice: Text
    now: float
    elapsed_seconds: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield header, stages, events and notice."""
        width = options.max_width
        yield self._header(width)
        for stage in self.status.stages:
            yield from stage_rows(stage, self.status, self.now, width, {})
        if self.events:
            yield Text()
            yield _event_table(self.events)
        if self.notice:
            yield Text()
            yield self.notice

    def _header(self, width: int) -> RenderableType:
        restarts = readable.plural(self.status.restarts, "restart") + "  "
        right = Text.assemble((restarts, "yellow" if self.status.restarts else "dim"))
        right.append(readable.duration(self.elapsed_seconds))
        name = readable.cut(self.job.name, width // 2)
        facts = run_text.fit(run_text.facts(self.job), width - len(name) - right.cell_len - 4)
        return _row(Text.assemble((name, "bold"), "  ", facts), right)


def stage_rows(
    stage: StageStatus, status: Status, now: float, width: int, algorithms: Mapping[str, str]
) -> Iterator[RenderableType]:
    """A stage's progress bar and figures; `algorithms` labels stages by name, if given."""
    current = stage.name == status.stage and stage.state not in ("Complete", "Failed")
    mark, style = _MARKS["Running" if current else stage.state]
    names = max(len(found.name) for found in status.stages)
    head = Text.assemble((mark, style), " ", (stage.name.ljust(names), "bold" if current else style))
    if stage.name in algorithms:
        head.append("  " + algorithms[stage.name].ljust(max(map(len, algorithms.values()))), "dim")
    yield Text()
    if stage.state == "Pending" and not current:
        yield Text.assemble(head, ("  waiting", "dim"))
        return
    progress = run_text.progress_of(stage, status)
    yield _bar_row(head, stage, progress, width)
    yield Padding(
        Text(run_text.fit(_details(stage, status, progress, now), width - _INDENT)),
        (0, 0, 0, _INDENT),
    )


def _details(stage: StageStatus, status: Status, progress: Progress | None, now: float) -> list[str]:
    if stage.state == "Complete":
        attempts = readable.plural(stage.attempts, "attempt")
        return [*run_text.result(stage), *run_text.skipped(stage), attempts]
    if stage.state == "Failed":
        return ["failed", *(run_text.figures(progress, running=False) if progress is not None else [])]
    waiting = run_text.waiting(status, now)
    figures = run_text.figures(progress, running=status.phase == "Running") if progress is not None else []
    return [*([waiting] if waiting else []), *figures, *run_text.skipped(stage)]


def _bar_row(head: Text, stage: StageStatus, progress: Progress | None, width: int) -> RenderableType:
    done, total = _steps(stage, progress)
    phrases = run_text.position(progress) if progress is not None and stage.state != "Complete" else []
    room = width - head.cell_len - 2
    tail = "  ".join(phrases)
    bar_width = room - len(tail) - 2
    if bar_width < 10:  # on a narrow terminal the epoch matters more than the step
        tail = phrases[0] if phrases else ""
        bar_width = room - len(tail) - 2
    bar = ProgressBar(
        total=total, completed=done, width=max(4, bar_width), complete_style="cyan", finished_style="green"
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(head, bar, Text(tail, no_wrap=True))
    return grid


def _steps(stage: StageStatus, progress: Progress | None) -> tuple[int, int]:
    if stage.state == "Complete":
        return 1, 1
    if progress is None or progress.total_steps == 0:
        return 0, 1
    return progress.step, progress.total_steps


def _row(left: Text, right: Text) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_row(left, right)
    return grid


def _event_table(events: tuple[Line, ...]) -> Table:
    """A table row whose long message wraps beside its time, not under it."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for line in events:
        stamp = Text(time.strftime("%H:%M:%S", time.localtime(line.time)), style="dim")
        grid.add_row(stamp, Text(line.text, style="yellow" if line.warning else ""))
    return grid
