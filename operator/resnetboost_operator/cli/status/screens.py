"""Where jobs of a cluster are shown: redrawn in place, a line for each change, or objects for programs."""

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
from resnetboost_operator.cli.status.command import Form
from resnetboost_operator.cli.status.job_facts import Fact
from resnetboost_operator.cli.status.job_page import JobPage
from resnetboost_operator.cli.status.job_table import JobTable
from resnetboost_operator.cli.status.job_view import JobView


class Screen(Protocol):
    """What is told what there is."""

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """All jobs as they are now; `events` of the one job."""

    def notice(self, text: str) -> None:
        """What else must be known now, until the next notice; '' for nothing."""

    def close(self) -> None:
        """Nothing follows: the last picture stays."""


def choose(form: Form, *, one: bool, follow: bool, all_spaces: bool) -> Screen:
    """The screen for a form of output, on standard output as it is."""
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
    """A page of the one job, or a table."""

    def __init__(self, *, one: bool, all_spaces: bool) -> None:
        self._one = one
        self._all_spaces = all_spaces

    def draw(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> RenderableType:
        """As things are now."""
        if self._one:
            return Group(*(JobPage(job, events, time.time()) for job in jobs))
        return JobTable(job_table.in_order(jobs), time.time(), self._all_spaces)


class Once:
    """Prints; lines are as long as they are where no terminal wraps them."""

    def __init__(self, console: Console, picture: Picture) -> None:
        self._console = console
        self._picture = picture

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print it."""
        self._console.print(self._picture.draw(jobs, events), soft_wrap=not self._console.is_terminal)

    def notice(self, text: str) -> None:
        """There is none before the end."""

    def close(self) -> None:
        """All is printed."""


class InPlace:
    """Draws over what it drew before; without a thread of its own."""

    def __init__(self, console: Console, picture: Picture) -> None:
        self._picture = picture
        self._shown: RenderableType = Text()
        self._notice = ""
        self._closed = False
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._frame, redirect_stderr=False)
        self._live.start()

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Draw."""
        self._shown = self._picture.draw(jobs, events) if jobs else Text("there are no jobs yet", style="dim")
        self._live.refresh()

    def notice(self, text: str) -> None:
        """Keep it under the picture."""
        self._notice = text

    def close(self) -> None:
        """Give the terminal back."""
        self._closed = True
        self._live.stop()

    def _frame(self) -> RenderableType:
        """The last line is empty or short: what a key leaves there (^C) must not reach the next one."""
        ended = self._closed and not self._notice
        return self._shown if ended else Group(self._shown, Text(self._notice, style="yellow"))


class Lines:
    """A line for each change of a job, with the time in front; trouble goes to standard error."""

    def __init__(self, *, all_spaces: bool) -> None:
        self._all_spaces = all_spaces
        self._told: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._notice = ""

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print what is new."""
        there = {job.uid: job_table.change(job, namespaces=self._all_spaces) for job in jobs}
        for uid in self._told.keys() - there.keys():
            _line(f"{self._told[uid].split('  ')[0]}  is deleted")
        for uid, line in there.items():
            if self._told.get(uid) != line:
                _line(line)
        self._told = there

    def notice(self, text: str) -> None:
        """Say it once."""
        if text and text != self._notice:
            print(f"resnetboost: {text}", file=sys.stderr, flush=True)
        self._notice = text

    def close(self) -> None:
        """All is printed."""


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Objects:
    """The objects as the API server has them: one, or a List; when followed, one after another, each as it changes."""

    def __init__(self, form: Form, *, one: bool, follow: bool) -> None:
        self._form = form
        self._one = one
        self._follow = follow
        self._told: dict[str, str] = {}

    def show(self, jobs: Sequence[JobView], events: tuple[Fact, ...]) -> None:
        """Print what is new."""
        manifests = [_without_bookkeeping(job) for job in jobs]
        if not self._follow:
            listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
            self._print(manifests[0] if self._one else listed, indent=2)
            return
        for job, manifest in zip(jobs, manifests, strict=True):
            version = job.manifest["metadata"]["resourceVersion"]
            if self._told.get(job.uid) != version:
                self._told[job.uid] = version
                self._print(manifest, indent=None)

    def _print(self, manifest: object, indent: int | None) -> None:
        if self._form == "json":
            print(json.dumps(manifest, indent=indent), flush=True)
        else:
            print(yamltext.dump_all([manifest]) if self._follow else yamltext.dump(manifest), end="", flush=True)

    def notice(self, text: str) -> None:
        """Programs see what changes, and nothing else."""

    def close(self) -> None:
        """All is printed."""


def _without_bookkeeping(job: JobView) -> dict[str, object]:
    """As kubectl shows it."""
    metadata = {key: value for key, value in job.manifest["metadata"].items() if key != "managedFields"}
    return job.manifest | {"metadata": metadata}
