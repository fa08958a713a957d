"""`resnetboost sweep`: begins a sweep or goes on with it, and shows what it found."""

import asyncio
import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from resnetboost_api import failures, names
from resnetboost_operator import errors, readable, yamltext
from resnetboost_operator.cli import arguments, interrupts, job_file
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.sweep import picture, text
from resnetboost_operator.cli.sweep import space as spaces
from resnetboost_operator.cli.sweep.conductor import Conductor
from resnetboost_operator.cli.sweep.folder import SweepFolder
from resnetboost_operator.cli.sweep.local import LocalTrials
from resnetboost_operator.cli.sweep.place import Ended, Place
from resnetboost_operator.cli.sweep.space import Space, Value
from resnetboost_operator.cli.sweep.study import Study, Trial
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.cli.view.trial_table import SWEEPS, Tried
from resnetboost_operator.errors import UserError
from resnetboost_operator.local import entry, machine
from resnetboost_operator.runs.runfolder import write

Manifest = dict[str, Any]
On = Literal["here", "cluster"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_INTERRUPTED = failures.INTERRUPTED.exit_code or 1
_FAILED = 1
_STOPS: dict[On, str] = {
    "here": "stopping the runs after their steps, checkpointing… (Ctrl-C again to kill)",
    "cluster": "stopping; the jobs go on in the cluster",
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants: the job and the space, where its trials run, and how many of them."""

    name: str
    written: Manifest
    space: Space
    trials: int
    parallel: int
    on: On
    namespace: str
    seed: int
    prunes: bool
    place: str
    """The job's file, for messages."""

    def record(self) -> Manifest:
        """What must be the same when the sweep goes on."""
        return {
            "name": self.name,
            "on": self.on,
            **({"namespace": self.namespace} if self.on == "cluster" else {}),
            "seed": self.seed,
            "space": msgspec.to_builtins(self.space),
            "job": self.written,
        }

    def job_of(self, uid: str, number: int, values: Mapping[str, Value]) -> Manifest:
        """The job of a trial, as a file would have it. Raises `JobError` if its values exclude each other."""
        changed = spaces.applied(self.written, values)
        metadata = changed["metadata"]
        tried = trial_table.annotation(Tried(uid, self.space.metric, dict(values)))
        labels = {names.LABEL_SWEEP: self.name, names.LABEL_TRIAL: str(number)}
        own = {
            "name": f"{self.name}-{number}",
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), names.ANNOTATION_TRIAL: tried},
        }
        made = {**changed, "metadata": {**metadata, **own}}
        checked = job_file.checked(made, f"{self.place} of trial {number}")
        return job_file.with_absolute_paths(checked) if self.on == "here" else made


@click.command()
@arguments.FILE
@arguments.SET
@click.option(
    "--space",
    "space_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Fields to try, with their values: a YAML file.",
)
@click.option(
    "--trials", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Trials of the whole sweep."
)
@click.option(
    "--on", type=click.Choice(["here", "cluster"]), default="here", show_default=True, help="Where the trials run."
)
@click.option("--parallel", type=click.IntRange(1, 1000), default=1, show_default=True, help="Trials at a time.")
@click.option("-n", "--namespace", metavar="NAME", default="", help="Namespace of the jobs, with --on cluster.")
@click.option(
    "--name", metavar="NAME", help="Name of the sweep, with which its jobs' names begin.  [default: the job's]"
)
@click.option("--no-prune", is_flag=True, help="End no trial before its last epoch.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of the values.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder.  [default: sweeps/<name>]")
@click.option("--fresh", is_flag=True, help="Delete an earlier sweep in the folder and start over.")
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    file: Path,
    assignments: tuple[str, ...],
    space_file: Path,
    trials: int,
    on: On,
    parallel: int,
    namespace: str,
    name: str | None,
    no_prune: bool,
    seed: int,
    out: Path | None,
    fresh: bool,
) -> None:
    """Try values of fields of the job FILE, and find those with the best test accuracy.

    The first trial has the job's own values, where they are in the space. The values of later ones are drawn by what
    earlier trials gave. A trial whose accuracy is below the median of the others' at the same epoch is ended early:
    a run is stopped with a checkpoint, a job of the cluster suspended.

    The folder has the study, a run folder per trial, best.yaml (the job with the best values) and a picture. The same
    command goes on after Ctrl-C or a kill, and runs more trials if --trials is larger. Jobs of a cluster go on
    meanwhile.

    \b
    Exit codes:
      0 all trials have ended         10 job file, space or option
      1 no trial gave a result        16 interrupted; the same command goes on

    \b
    Examples:
      resnetboost sweep examples/digits.yaml --space examples/sweep/digits.yaml --trials 12
      resnetboost sweep job.yaml --space space.yaml --on cluster --parallel 4
      resnetboost status --sweep digits
    """
    written = job_file.written(file, assignments)
    defaulted = job_file.checked(written, file)
    space = spaces.read(space_file)
    spaces.check(space, written, space_file)
    name = name or str(defaulted["metadata"]["name"])
    _check(name, on, namespace, parallel, defaulted)
    request = Request(
        name=name,
        written=written,
        space=space,
        trials=trials,
        parallel=parallel,
        on=on,
        namespace=namespace,
        seed=seed,
        prunes=not no_prune,
        place=str(file),
    )
    request.job_of("", trials - 1, {})  # its name must not be too long
    folder = SweepFolder(out or SWEEPS / name)
    if on == "cluster":
        from resnetboost_operator.cli.sweep import cluster

        if fresh or not folder.record_file.exists():
            asyncio.run(cluster.check(namespace))  # before the folder is changed
        request = msgspec.structs.replace(request, namespace=cluster.resolved(namespace))
    try:
        with folder.locked():
            if fresh:
                folder.clear()
            ctx.exit(_Sweep(request, folder, spaces.own_values(space, defaulted)).run())
    except OSError as error:
        raise errors.storage_error(error) from None


def _check(name: str, on: On, namespace: str, parallel: int, job: Manifest) -> None:
    """Check what options say. Raises `UserError`."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--name: {name!r} can be no sweep's name; use a-z, 0-9 and '-'")
    if importlib.util.find_spec("optuna") is None:
        raise UserError("a sweep needs optuna, which is not installed; `make setup` installs it")
    if on == "cluster":
        return
    if namespace:
        raise UserError(f"-n: {namespace} is for jobs of a cluster; add --on cluster, or leave it out")
    entry.check(job["spec"])
    most = machine.memory_bytes() // (machine.RANK_BYTES * int(job["spec"]["device"]["count"]))
    if parallel > max(1, most):
        raise UserError(f"--parallel: {parallel} runs need more memory than this machine has; use at most {most}")


class _Sweep:
    """One sweep from its begin, or from where an earlier process left it."""

    def __init__(self, request: Request, folder: SweepFolder, own: Mapping[str, Value] | None) -> None:
        self._request, self._folder = request, folder
        self._output = standard_output()
        self._console = console(self._output)
        self._uid = folder.enter(_comparable(request.record(), folder))
        self._study = Study(folder.journal, request.space, request.seed, prunes=request.prunes)
        if own is not None:
            self._study.suggest_first(own)

    def run(self) -> int:
        """Run what is missing, print the table, and return the exit code."""
        if self._study.count >= self._request.trials and not self._study.unfinished():
            self._console.print(
                f"{self._folder.path} has all {self._request.trials} trials already; --trials adds more"
            )
            whole, failed = True, False
        else:
            whole, failed = asyncio.run(self._train())
        self._close()
        if failed:
            why = next((row.note for row in reversed(self._study.rows()) if row.state == "Failed"), "")
            raise UserError(
                f"the first trials all failed, the last one: {why}; repair this and start over with --fresh"
            )
        if not whole:
            self._console.print(f"  go on      {_command()}", soft_wrap=True)
            return _INTERRUPTED
        return 0 if self._study.best() is not None else _FAILED

    async def _train(self) -> tuple[bool, bool]:
        """Run the trials; whether all have ended, and whether the first ones all failed."""
        screen = text.Screen(self._console, self._request.space.metric, self._request.trials)
        screen.begun(sum(row.state != "Running" for row in self._study.rows()))
        audience = _Recording(screen, self)
        try:
            async with self._place() as place:
                conductor = Conductor(
                    self._study,
                    place,
                    lambda number, values: self._request.job_of(self._uid, number, values),
                    audience,
                    trials=self._request.trials,
                    parallel=self._request.parallel,
                )

                def stop() -> None:
                    screen.line(_STOPS[self._request.on])
                    conductor.stop()

                interrupts.listen(self._output, stop, conductor.kill)
                whole = await conductor.run()
                return whole, conductor.failed
        finally:
            screen.close()

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[Place]:
        request = self._request
        if request.on == "here":
            yield LocalTrials(self._folder.trials, request.space.metric, request.parallel)
            return
        from resnetboost_operator.cli.sweep import cluster

        async with cluster.connected(request.namespace, request.name, self._uid, request.space.metric) as place:
            yield place

    def record(self) -> None:
        """Write the list of trials, and the best job."""
        best = self._study.best()
        rows, metric = self._study.rows(), self._request.space.metric
        self._folder.list_trials(self._request.name, metric, rows, best.number if best is not None else None)
        if best is not None:
            head = f"# The best of {len(rows)} trials: trial {best.number}, {text.LABELS[metric]} "
            job = spaces.applied(self._request.written, best.parameters)
            write(
                self._folder.best_file, f"{head}{trial_table.shown_figure(best.value, metric)}.\n{yamltext.dump(job)}"
            )

    def _close(self) -> None:
        """Print the table and what it means, and draw the picture."""
        self.record()
        best, rows = self._study.best(), self._study.rows()
        metric, screen = self._request.space.metric, self._console
        screen.print()
        screen.print(trial_table.table(rows, metric, best.number if best is not None else None))
        screen.print()
        if shares := self._study.importances():
            screen.print(f"  decided by {text.importances(shares)}", soft_wrap=True)
        if best is not None:
            screen.print(f"  best job   {self._folder.best_file}", soft_wrap=True)
            self._draw()

    def _draw(self) -> None:
        best = self._study.best()
        assert best is not None
        title = f"{self._request.name}: {readable.plural(len(self._study.rows()), 'trial')}"
        try:
            write(self._folder.picture, picture.draw(title, self._request.space, list(self._study.histories()), best))
        except ImportError:
            return  # without matplotlib there is no picture, and nothing else is missing
        self._console.print(f"  picture    {self._folder.picture}", soft_wrap=True)


def _comparable(record: Manifest, folder: SweepFolder) -> Manifest:
    """The record without its namespace if the folder's was written by version 0.2 or before, which kept none."""
    kept = yamltext.read_mapping(folder.record_file) if folder.record_file.exists() else record
    if kept is None or "namespace" in kept:
        return record
    return {field: value for field, value in record.items() if field != "namespace"}


class _Recording:
    """Shows what happens, and writes the sweep's files after each trial."""

    def __init__(self, screen: text.Screen, sweep: _Sweep) -> None:
        self._screen, self._sweep = screen, sweep
        self.begins, self.reports = screen.begins, screen.reports

    def ends(self, trial: Trial, ended: Ended) -> None:
        """Record and show the end of a trial."""
        self._sweep.record()
        self._screen.ends(trial, ended)


def _command() -> str:
    """This command as the user can call it again."""
    return shlex.join(["resnetboost", *(word for word in sys.argv[1:] if word != "--fresh")])
