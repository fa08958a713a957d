"""How jobs of a cluster are printed: redrawn in place, one line per change, or as objects for programs."""

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from resnetboost_operator import readable, yamltext
from resnetboost_operator.cli.status import job_table
from resnetboost_operator.cli.status.job_facts import Fact
from resnetboost_operator.cli.status.job_page import JobPage
from resnetboost_operator.cli.status.job_table import JobTable
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.status.request import Form


class Screen(Protocol):
    """Shows jobs."""

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Show all jobs; `events` are those of the requested job."""

    def notice(self, text: str) -> None:
        """Show a message until the next one; '' for none."""

    def close(self) -> None:
        """End the screen; the last picture stays."""


def choose(form: Form, *, one: bool, follow: bool, all_spaces: bool) -> Screen:
    """The screen for an output format, on standard output."""
    if form != "text":
        return Objects(form, one=one, follow=follow)
    readable.make_plain(sys.stdout)
    console = Console(highlight=False, markup=False)
    picture = Picture(one=one, all_spaces=all_spaces)
    if not follow:
        return Once(console, picture)
    fixed = not console.is_terminal or os.environ.get("TERM") in ("dumb", "unknown")
    return Lines(all_spaces=all_spaces) if fixed else InPlace(console, picture)


class Picture:
    """The page of one job, or a table of all."""

    def __init__(self, *, one: bool, all_spaces: bool) -> None:
        self._one = one
        self._all_spaces = all_spaces

    def draw(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> RenderableType:
        """Draw the current state."""
        if self._one:
            return Group(*(JobPage(job, events, time.time()) for job in jobs))
        return JobTable(job_table.in_order(jobs), time.time(), self._all_spaces)


class Once:
    """Prints once; without a terminal, lines are not wrapped."""

    def __init__(self, console: Console, picture: Picture) -> None:
        self._console = console
        self._picture = picture

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print the jobs."""
        self._console.print(self._picture.draw(jobs, events), soft_wrap=not self._console.is_terminal)

    def notice(self, text: str) -> None:
        """Do nothing: the command ends right away."""

    def close(self) -> None:
        """Do nothing: everything is printed."""


class InPlace:
    """Redraws in place, without a refresh thread."""

    def __init__(self, console: Console, picture: Picture) -> None:
        self._picture = picture
        self._shown: RenderableType = Text()
        self._notice = ""
        self._closed = False
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._frame, redirect_stderr=False)
        self._live.start()

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Redraw."""
        self._shown = self._picture.draw(jobs, events) if jobs else Text("there are no jobs yet", style="dim")
        self._live.refresh()

    def notice(self, text: str) -> None:
        """Keep the message under the picture."""
        self._notice = text

    def close(self) -> None:
        """Release the terminal."""
        self._closed = True
        self._live.stop()

    def _frame(self) -> RenderableType:
        """Picture and notice. The last line is empty or short, so that an echoed ^C does not shift the next line."""
        ended = self._closed and not self._notice
        return self._shown if ended else Group(self._shown, Text(self._notice, style="yellow"))


class Lines:
    """Prints a line with the time for each change of a job; problems go to standard error."""

    def __init__(self, *, all_spaces: bool) -> None:
        self._all_spaces = all_spaces
        self._printed: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._notice = ""

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print what changed."""
        there = {job.uid: job_table.change(job, namespaces=self._all_spaces) for job in jobs}
        for uid in self._printed.keys() - there.keys():
            _line(f"{self._printed[uid].split('  ')[0]}  is deleted")
        for uid, line in there.items():
            if self._printed.get(uid) != line:
                _line(line)
        self._printed = there

    def notice(self, text: str) -> None:
        """Print the message once."""
        if text and text != self._notice:
            print(f"resnetboost: {text}", file=sys.stderr, flush=True)
        self._notice = text

    def close(self) -> None:
        """Do nothing: everything is printed."""


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Objects:
    """Prints objects as the API server has them: one, or a List; with -w, each one as it changes."""

    def __init__(self, form: Form, *, one: bool, follow: bool) -> None:
        self._form = form
        self._one = one
        self._follow = follow
        self._printed: dict[str, str] = {}

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print what changed."""
        manifests = [_without_bookkeeping(job) for job in jobs]
        if not self._follow:
            listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
            self._print(manifests[0] if self._one else listed, indent=2)
            return
        for job, manifest in zip(jobs, manifests, strict=True):
            version = job.manifest["metadata"]["resourceVersion"]
            if self._printed.get(job.uid) != version:
                self._printed[job.uid] = version
                self._print(manifest, indent=None)

    def _print(self, manifest: object, indent: int | None) -> None:
        if self._form == "json":
            print(json.dumps(manifest, indent=indent), flush=True)
        else:
            print(yamltext.dump_all([manifest]) if self._follow else yamltext.dump(manifest), end="", flush=True)

    def notice(self, text: str) -> None:
        """Do nothing: programs read objects only."""

    def close(self) -> None:
        """Do nothing: everything is printed."""


def _without_bookkeeping(job: JobView) -> dict[str, object]:
    """The object as kubectl prints it."""
    metadata = {key: value for key, value in job.manifest["metadata"].items() if key != "managedFields"}
    return job.manifest | {"metadata": metadata}
