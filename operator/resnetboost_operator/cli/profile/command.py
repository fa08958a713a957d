"""`resnetboost profile`: starts the trainer's profiler on this machine and shows its result."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from resnetboost_api import names
from resnetboost_api.profile import Profile
from resnetboost_operator import errors
from resnetboost_operator.cli import arguments, job_file
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.profile import picture, text
from resnetboost_operator.cli.trainer import process as trainer
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import parse_job, ranks_per_summand
from resnetboost_operator.local import container, machine
from resnetboost_operator.manifests.container import THREADS
from resnetboost_operator.manifests.trainer_config import trainer_config

CONFIG, RESULT, PICTURE = "profile-config.yaml", "profile.json", "profile.png"
INTERRUPTED = 130


class ProfileRequest(msgspec.Struct, frozen=True):
    """Arguments of `resnetboost profile`; `stage` None means the job's first one."""

    file: Path
    assignments: Sequence[str]
    stage: str | None
    ranks: int
    steps: int
    out: Path | None
    json: bool


@click.command()
@arguments.FILE
@arguments.SET
@click.option("--stage", metavar="NAME", help="Stage to profile.  [default: the first]")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks on this machine.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps to measure.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Output folder. [default: profiles/<job name>]"
)
@click.option("-o", "--output", "form", type=click.Choice(["json"]), help="Print profile.json instead of tables.")
@click.pass_context
def profile(ctx: click.Context, /, form: str | None, **given: Any) -> None:
    """Train some steps of the job FILE on this machine and show where rank 0's time goes.

    Shows the time by part of a step (data, forward, backward, reduction, optimizer) and by operator, as tables,
    and writes profile.json and profile.png. The files of MindSpore's profiler stay in DIR/mindspore. The weights
    are new and are discarded.

    \b
    Exit codes are those of `resnetboost run`; Ctrl-C: 130.

    \b
    Examples:
      resnetboost profile examples/digits.yaml
      resnetboost profile examples/digits.yaml --ranks 2 --set stages[0].localBatchSize=64
      resnetboost profile job.yaml -o json | jq '.times.parts[] | {name, ms: (.seconds.mean * 1000)}'
    """
    ctx.exit(measure(ProfileRequest(**given, json=form == "json")))


def measure(request: ProfileRequest) -> int:
    """Measure, print the tables, draw the picture; return the exit code. Raises `UserError`."""
    job = job_file.with_absolute_paths(job_file.load(request.file, request.assignments))
    config = _config(job, request.stage, request.ranks)
    _check_room(request.ranks, machine.memory_bytes())
    trainer.check_installed("profile")
    folder = (request.out or Path("profiles") / job["metadata"]["name"]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        code = _run_ranks(folder, request.ranks, request.steps)
        return code or _report(folder, request.json)
    except OSError as error:
        raise errors.storage_error(error) from None


def _check_room(ranks: int, memory_bytes: int) -> None:
    """Refuse more ranks than memory allows: each one imports MindSpore."""
    most = max(1, memory_bytes // machine.RANK_BYTES)
    if ranks > most:
        raise UserError(f"--ranks: {ranks} need more memory than this machine has; use at most {most}")


def _config(job: dict[str, Any], name: str | None, ranks: int) -> dict[str, Any]:
    """The trainer's config of that stage. Raises `UserError` if that is impossible."""
    parsed = parse_job(job)
    stages = {stage.name: stage for stage in parsed.spec.stages}
    if name is not None and name not in stages:
        raise UserError(f"--stage: {name} is no stage of the job; it has {', '.join(stages)}")
    stage = stages[name] if name is not None else parsed.spec.stages[0]
    averaged = ranks_per_summand(parsed.spec.device, stage)
    if ranks % averaged:
        problem = f"--ranks: {ranks} is no multiple of the {averaged} ranks that Adasum averages on a node"
        raise UserError(f"{problem}; use {averaged} or {2 * averaged}")
    return trainer_config(parsed, stage, 0)


def _run_ranks(folder: Path, ranks: int, steps: int) -> int:
    """Run the ranks; return the exit code. Rank 0 writes to the terminal, others to files; a failed rank ends all."""
    addresses = machine.Addresses() if ranks > 1 else None
    hosts = [addresses.next() for _ in range(ranks)] if addresses is not None else ["127.0.0.1"]
    signal.signal(signal.SIGTERM, _stop)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            processes.append(_start(folder, rank, hosts, steps))
        return _ended(processes, folder)
    except KeyboardInterrupt:
        click.echo("resnetboost: stopped; nothing was measured", err=True)
        return INTERRUPTED
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the processes it started
            process.wait()
        if addresses is not None:
            addresses.close()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _start(folder: Path, rank: int, hosts: Sequence[str], steps: int) -> subprocess.Popen[bytes]:
    """Start a rank on cores of its own; it ends when this process does."""
    ranks, cores = len(hosts), machine.share(machine.usable_cores(), rank, len(hosts))
    command = [
        sys.executable,
        "-m",
        trainer.TRAINER,
        "profile",
        str(folder / CONFIG),
        str(folder),
        "--steps",
        str(steps),
    ]
    variables = {
        names.ENV_RANK: str(rank),
        names.ENV_WORLD_SIZE: str(ranks),
        names.ENV_COORDINATOR: f"{hosts[0]}:{names.PORT_COORDINATOR}" if ranks > 1 else "",
        names.ENV_BIND_ADDRESS: hosts[rank],
        THREADS: str(len(cores)),
    }
    log = None if rank == 0 else (folder / f"rank-{rank}.log").open("wb")
    return subprocess.Popen(
        container.tied(command, cores),
        env=os.environ | trainer.unicode_variables() | variables,
        cwd=folder,  # MindSpore leaves files where it runs
        stdin=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the ranks
    )


def _ended(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait until all have succeeded or one has failed; return its exit code, as a shell would."""
    with selectors.DefaultSelector() as running:
        for index, process in enumerate(processes):
            running.register(os.pidfd_open(process.pid), selectors.EVENT_READ, index)
        while running.get_map():
            for key, _ in running.select():
                running.unregister(key.fd)
                os.close(key.fd)
                rank: int = key.data
                code = processes[rank].wait()
                if code:
                    _report_failed_rank(rank, code, folder)
                    return code if code > 0 else 128 - code
    return 0


def _report_failed_rank(rank: int, code: int, folder: Path) -> None:
    """Say which rank failed. Rank 0 printed its own error, unless it was killed."""
    if rank:
        click.echo(f"resnetboost: rank {rank} failed with {code}; {folder / f'rank-{rank}.log'} says why", err=True)
    elif code < 0:
        click.echo(f"resnetboost: the trainer was ended by {signal.Signals(-code).name}", err=True)


def _report(folder: Path, as_json: bool) -> int:
    """Draw the picture into the folder and print the numbers."""
    profile = msgspec.json.decode((folder / RESULT).read_bytes(), type=Profile)
    (folder / PICTURE).write_bytes(picture.draw(profile))
    if as_json:
        click.echo((folder / RESULT).read_text(encoding="utf-8"), nl=False)
        return 0
    screen = console(standard_output())
    text.show(screen, profile)
    screen.print(f"{folder / PICTURE}", soft_wrap=True)
    return 0
