"""Table of jobs that fits the terminal, with each job's problem under it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from resnetboost_api.status import Progress
from resnetboost_operator import readable
from resnetboost_operator.cli.status import job_view
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.view import text as run_text

_GAP = 2
INDENT = 2
_BAR_CELLS = 10
_LEAST_NAME = 24
PHASE_STYLES = {
    "Queued": "yellow",
    "Starting": "cyan",
    "Running": "cyan",
    "Restarting": "yellow",
    "Suspending": "yellow",
    "Suspended": "yellow",
    "Complete": "green",
    "Failed": "bold red",
}
V = TypeVar("V")


class _Column(msgspec.Struct, frozen=True):
    """A column; if the table is too wide, columns of the highest `order` are dropped first."""

    title: str
    order: int
    cell: Callable[[JobView, float], str]
    right: bool = False


class JobTable(msgspec.Struct, frozen=True):
    """All jobs; `namespaces` adds that column, `width` 0 prints one line per job."""

    jobs: tuple[JobView, ...]
    now: float
    namespaces: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the header, then each job with its problem under it, or beside it if lines do not wrap."""
        width = options.max_width if console.is_terminal else 0
        hidden = {*([] if self.namespaces else [_NAMESPACE]), _WHY if width else _BAR}
        columns = [found for found in _COLUMNS if found not in hidden]
        cells = {column: [column.cell(job, self.now) for job in self.jobs] for column in columns}
        yield from _lines(self.jobs, _fitting(columns, cells, width), cells, width, self.now)


_Cells = dict[_Column, list[str]]


def _fitting(columns: Sequence[_Column], cells: _Cells, width: int) -> dict[_Column, int]:
    """The columns that fit and their widths; the name shrinks before a required column is dropped."""
    widths = {column: max(len(column.title), *map(len, cells[column])) for column in columns}
    if not width:
        return widths
    shown: set[_Column] = set()
    room = width + _GAP
    for column in sorted(columns, key=lambda column: column.order):
        least = min(widths[column], _LEAST_NAME) if column is _NAME else widths[column]
        if least + _GAP > room and shown:
            continue
        shown.add(column)
        room -= least + _GAP
    found = {column: widths[column] for column in columns if column in shown}
    excess = sum(found.values()) + _GAP * (len(found) - 1) - width
    return found | {_NAME: found[_NAME] - max(0, excess)}


def _lines(
    jobs: Sequence[JobView], columns: dict[_Column, int], cells: _Cells, width: int, now: float
) -> Iterator[RenderableType]:
    yield _row([(_aligned(column, column.title, columns[column]), "bold") for column in columns])
    for number, job in enumerate(jobs):
        yield _row(
            [(_aligned(column, cells[column][number], columns[column]), _style(column, job)) for column in columns]
        )
        if width and (trouble := job_view.why(job, now)):
            yield indented(trouble, trouble_style(job), width)


def _row(cells: Sequence[tuple[str, str]]) -> Text:
    row = Text()
    for number, (cell, style) in enumerate(cells):
        row.append(" " * _GAP if number else "").append(cell, style)
    row.rstrip()
    return row


def indented(text: str, style: str, width: int) -> RenderableType:
    """A sentence that wraps at its indent; with `width` 0 it is one line."""
    return Padding(Text(text, style=style), (0, 0, 0, INDENT), expand=False) if width else Text(" " * INDENT + text)


def _aligned(column: _Column, text: str, width: int) -> str:
    text = readable.cut(text, width)
    return text.rjust(width) if column.right else text.ljust(width)


def _style(column: _Column, job: JobView) -> str:
    if column is _NAME:
        return "bold"
    if column is _PHASE:
        return PHASE_STYLES.get(job.status.phase, "")
    return trouble_style(job) if column is _WHY else ""


def trouble_style(job: JobView) -> str:
    """The style of a job's problem: waiting is no failure."""
    return "red" if job.status.phase == "Failed" else "yellow"


def in_order(jobs: Sequence[JobView]) -> tuple[JobView, ...]:
    """Sort jobs that may still change first, of these the queued ones last, then by name."""
    return tuple(sorted(jobs, key=lambda job: (job.is_over, job.status.phase == "Queued", job.namespace, job.name)))


def change(job: JobView, *, namespaces: bool) -> str:
    """A job in one line with everything that changes, except what changes with the clock alone."""
    progress = job.progress if job.status.phase in ("Running", "Complete", "Failed") else None
    running = job.status.phase == "Running"
    phrases = [] if progress is None else [*run_text.position(progress), *run_text.figures(progress, running=running)]
    name = f"{job.namespace}/{job.name}" if namespaces else job.name
    return "  ".join(filter(None, [name, job.status.phase, job.status.stage, *phrases, job_view.why(job)]))


def stage(job: JobView) -> str:
    """The stage and its number."""
    names = [found.name for found in job.status.stages]
    if len(names) < 2 or job.status.stage not in names:
        return job.status.stage
    return f"{job.status.stage} {names.index(job.status.stage) + 1}/{len(names)}"


def percent(job: JobView) -> int | None:
    """The fraction of the stage that is done."""
    if job.status.phase == "Complete":
        return 100
    return job.progress.percent if job.progress is not None else None


def ranks(job: JobView) -> str:
    """How many of the ranks run; for an ended job, how many it had."""
    found = job.status.ranks
    if job.is_over:
        return str(found.desired)
    return f"{found.running}/{found.desired}" if found.desired else ""


def _bar(job: JobView) -> str:
    share = percent(job)
    if share is None:
        return ""
    done = share * _BAR_CELLS // 100
    return "━" * done + "─" * (_BAR_CELLS - done)


def _of_progress(
    read: Callable[[Progress], V | None], written: Callable[[V], str], *, while_it_runs: bool = False
) -> Callable[[JobView, float], str]:
    """A cell of the progress; empty if unknown or outdated."""

    def cell(job: JobView, now: float) -> str:
        if job.progress is None or (while_it_runs and job.status.phase != "Running"):
            return ""
        value = read(job.progress)
        return "" if value is None else written(value)

    return cell


def _step(progress: Progress) -> str:
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else ""


def _top1(job: JobView, now: float) -> str:
    found = job.stage.top1 if job.stage is not None and job.stage.top1 is not None else None
    value = found if found is not None or job.progress is None else job.progress.top1
    return "" if value is None else readable.share(value)


def _percent(job: JobView, now: float) -> str:
    share = percent(job)
    return "" if share is None else f"{share} %"


def _goodput(job: JobView, now: float) -> str:
    found = job.status.goodput
    return f"{found.percent} %" if found is not None and found.attempt_seconds else ""


def _age(job: JobView, now: float) -> str:
    return readable.duration(now - job.created)


_NAMESPACE = _Column("NAMESPACE", 2, lambda job, now: job.namespace)
_NAME = _Column("NAME", 0, lambda job, now: job.name)
_PHASE = _Column("PHASE", 1, lambda job, now: job.status.phase)
_BAR = _Column("", 15, lambda job, now: _bar(job))
_WHY = _Column("WHY", 99, job_view.why)
_RUNNING = {"while_it_runs": True}
_COLUMNS = (
    _NAMESPACE,
    _NAME,
    _PHASE,
    _Column("STAGE", 11, lambda job, now: stage(job)),
    _Column("ALGORITHM", 13, lambda job, now: job.algorithms.get(job.status.stage, "")),
    _BAR,
    _Column("DONE", 3, _percent, right=True),
    _Column("STEP", 8, _of_progress(_step, str), right=True),
    _Column("LOSS", 6, _of_progress(lambda found: found.loss, readable.quantity), right=True),
    _Column("ACCURACY", 7, _of_progress(lambda found: found.accuracy, readable.share), right=True),
    _Column("TOP-1", 12, _top1, right=True),
    _Column(
        "IMAGES/S", 14, _of_progress(lambda found: found.images_per_second, readable.quantity, **_RUNNING), right=True
    ),
    _Column("RANKS", 5, lambda job, now: ranks(job), right=True),
    _Column("RESTARTS", 9, lambda job, now: str(job.status.restarts), right=True),
    _Column("GOODPUT", 16, _goodput, right=True),
    _Column("ETA", 10, _of_progress(lambda found: found.eta_seconds, readable.duration, **_RUNNING), right=True),
    _Column("AGE", 4, _age, right=True),
    _WHY,
)
