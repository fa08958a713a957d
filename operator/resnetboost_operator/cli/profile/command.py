"""`resnetboost profile`: a job file into where its time goes on this machine; the trainer measures."""

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

from resnetboost_operator import api, errors, names
from resnetboost_operator.cli import job_file, trainer
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.profile import data, picture, text
from resnetboost_operator.cli.run import command as run_command
from resnetboost_operator.errors import UserError
from resnetboost_operator.local import container, machine
from resnetboost_operator.manifests import gang

CONFIG, RESULT, PICTURE = "config.yaml", "profile.json", "profile.png"
INTERRUPTED = 130


class Wanted(msgspec.Struct, frozen=True):
    """What the user asks for; without `stage` it is the job's first one."""

    file: Path
    assignments: Sequence[str]
    stage: str | None
    ranks: int
    steps: int
    out: Path | None
    json: bool


def run(wanted: Wanted) -> int:
    """Measure, tell, draw; the exit code. Raises UserError."""
    job = run_command.with_absolute_paths(job_file.load(wanted.file, wanted.assignments))
    config = _config(job, wanted.stage, wanted.ranks)
    _check_room(wanted.ranks, machine.memory_bytes())
    trainer.check_installed("profile")
    folder = (wanted.out or Path("profiles") / job["metadata"]["name"]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        code = _measure(folder, wanted.ranks, wanted.steps)
        return code or _tell(folder, wanted.json)
    except OSError as error:
        raise errors.storage_error(error) from None


def _check_room(ranks: int, memory_bytes: int) -> None:
    """Each rank imports MindSpore for itself."""
    most = max(1, memory_bytes // run_command.RANK_BYTES)
    if ranks > most:
        raise UserError(f"--ranks: {ranks} need more memory than this machine has; use at most {most}")


def _config(job: dict[str, Any], name: str | None, ranks: int) -> dict[str, Any]:
    """What the trainer reads for that stage. Raises UserError where there is none, or it cannot have so many ranks."""
    parsed = api.parse(job)
    stages = {stage.name: stage for stage in parsed.spec.stages}
    if name is not None and name not in stages:
        raise UserError(f"--stage: {name} is no stage of the job; it has {', '.join(stages)}")
    config = gang.trainer_config(parsed, stages[name] if name is not None else parsed.spec.stages[0], 0)
    if "adasum" in config:
        averaged = config["adasum"]["ranksPerNode"]
        if ranks % averaged:
            problem = f"--ranks: {ranks} is no multiple of the {averaged} ranks that Adasum averages on a node"
            raise UserError(f"{problem}; use {averaged} or {2 * averaged}")
    return config


def _measure(folder: Path, ranks: int, steps: int) -> int:
    """Rank 0 speaks here, the others into files; the first one that fails ends all. The exit code."""
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
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            process.wait()
        if addresses is not None:
            addresses.close()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _start(folder: Path, rank: int, hosts: Sequence[str], steps: int) -> subprocess.Popen[bytes]:
    """A rank on cores of its own, which ends when this process does."""
    ranks, cores = len(hosts), machine.share(machine.usable_cores(), rank, len(hosts))
    shim = [sys.executable, "-I", "-S", container.__file__, str(os.getpid()), ",".join(map(str, cores))]
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
        gang.THREADS: str(len(cores)),
    }
    log = None if rank == 0 else (folder / f"rank-{rank}.log").open("wb")
    return subprocess.Popen(
        [*shim, *command],
        env=os.environ | trainer.unicode_variables() | variables,
        cwd=folder,  # MindSpore leaves files where it runs
        stdin=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for this process, which ends them
    )


def _ended(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> int:
    """When all have ended well, or the first one has not: its exit code, as a shell has it."""
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
                    _tell_of_rank(rank, code, folder)
                    return code if code > 0 else 128 - code
    return 0


def _tell_of_rank(rank: int, code: int, folder: Path) -> None:
    """Rank 0 has told by itself, unless it was killed."""
    if rank:
        click.echo(f"resnetboost: rank {rank} failed with {code}; {folder / f'rank-{rank}.log'} says why", err=True)
    elif code < 0:
        click.echo(f"resnetboost: the trainer was ended by {signal.Signals(-code).name}", err=True)


def _tell(folder: Path, as_json: bool) -> int:
    """The picture into the folder, the numbers to the terminal."""
    profile = data.read(folder / RESULT)
    (folder / PICTURE).write_bytes(picture.draw(profile))
    if as_json:
        click.echo((folder / RESULT).read_text(encoding="utf-8"), nl=False)
        return 0
    screen = console(standard_output())
    text.show(screen, profile)
    screen.print(f"{folder / PICTURE}", soft_wrap=True)
    return 0
