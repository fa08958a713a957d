"""One job as a page: stages, trouble and what to do about it, facts; for a terminal's width or as plain lines."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.cli.run import frame, text
from resnetboost_operator.cli.status import job_facts, job_table, job_view
from resnetboost_operator.cli.status.job_facts import Fact
from resnetboost_operator.cli.status.job_view import JobView

_LABEL_CELLS = 12


class JobPage(msgspec.Struct, frozen=True):
    """One job as a rich renderable; `events` are facts too."""

    view: JobView
    events: tuple[Fact, ...]
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Header, trouble, stages, facts, what to type next."""
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
    """Long sentences wrap beside their label, never under it."""
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
    """A command is there to be copied: where it is too long it goes on as a shell wants it."""
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
