"""One job as a page: stages, problems with their remedy, and facts; for a terminal's width or as plain lines."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.cli.status import job_facts, job_table, job_view
from resnetboost_operator.cli.status.job_facts import Fact
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.view import frame, text

_LABEL_CELLS = 12


class JobPage(msgspec.Struct, frozen=True):
    """One job as a rich renderable; `events` are shown as facts."""

    view: JobView
    events: tuple[Fact, ...]
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield header, problem, stages, facts and the command to type next."""
        width = options.max_width if console.is_terminal else 0
        yield from self._head(width)
        if trouble := job_view.why(self.view, self.now):
            yield job_table.indented(trouble, job_table.trouble_style(self.view), width)
        facts = [*job_facts.facts(self.view, self.now), *self.events]
        if width:
            for stage in self.view.status.stages:
                yield from frame.stage_rows(stage, self.view.status, self.now, width, self.view.algorithms)
        else:
            facts = [*job_facts.stages(self.view.status, self.view.algorithms), *facts]
        if facts:
            yield from _facts(facts, width)
        if command := job_facts.advice(self.view):
            yield from _next(command, width)

    def _head(self, width: int) -> Iterator[RenderableType]:
        view = self.view
        phase = Text(view.status.phase, style=job_table.PHASE_STYLES.get(view.status.phase, ""))
        age = f"{readable.duration(self.now - view.created)} old"
        facts = text.facts(view.job) if view.job is not None else []
        yield Text.assemble((view.name, "bold"), f" in {view.namespace}: ", phase, f", {age}")
        if facts:
            yield job_table.indented(text.SEPARATOR.join(facts), "dim", width)


def _facts(facts: list[Fact], width: int) -> Iterator[RenderableType]:
    """A table row whose long sentences wrap beside their label, not under it."""
    if not width:
        for label, sentence in facts:
            yield Text(f"  {label:<{_LABEL_CELLS}}{sentence}".rstrip())
        return
    yield Text()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    before = ""
    for label, sentence in facts:
        grid.add_row(Text(label if label != before else "", style="dim"), Text(sentence))
        before = label
    yield Padding(grid, (0, 0, 0, job_table.INDENT), expand=False)


def _next(command: Sequence[str], width: int) -> Iterator[RenderableType]:
    """A command to copy: long ones continue on the next line with a backslash."""
    if not width:
        yield Text(f"  {'next':<{_LABEL_CELLS}}{' '.join(command)}")
        return
    lines = ["  →"]
    for word in command:
        if len(lines[-1]) + len(word) + len(" \\") >= width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    yield Text()
    yield Text("\n".join(lines), style="bold")
