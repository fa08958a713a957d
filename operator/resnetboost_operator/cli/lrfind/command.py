"""`resnetboost lr-find`: starts the trainer's sweep on this machine and shows its result."""

from pathlib import Path
from typing import Any

import click
import yaml

from resnetboost_operator import errors
from resnetboost_operator.cli import arguments, job_file
from resnetboost_operator.cli.lrfind import picture, sweep, text
from resnetboost_operator.cli.trainer import process as trainer
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config

CONFIG, RESULT, PICTURE = "lr-find-config.yaml", "lr-find.csv", "lr-find.png"
_RATE = click.FloatRange(0, 1000, min_open=True)


@click.command()
@arguments.FILE
@arguments.SET
@click.option("--stage", metavar="NAME", help="Stage to sweep.  [default: the first]")
@click.option("--from", "lowest", type=_RATE, default=1e-5, show_default=True, help="First learning rate.")
@click.option("--to", "highest", type=_RATE, default=10.0, show_default=True, help="Last learning rate.")
@click.option("--steps", type=click.IntRange(20, 100000), default=100, show_default=True, help="Rates to try.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Output folder. [default: lr-finds/<job name>]"
)
@click.pass_context
def lr_find(
    ctx: click.Context,
    /,
    file: Path,
    assignments: tuple[str, ...],
    stage: str | None,
    lowest: float,
    highest: float,
    steps: int,
    out: Path | None,
) -> None:
    """Train the job FILE at learning rates that grow from step to step, and suggest one.

    One rank on this machine trains the stage's network on its data with its algorithm and global batch. Prints the
    curve of the loss, and writes lr-find.csv and lr-find.png. The weights are new, or those of model.weights, and are
    discarded; checkpoints of runs are never read or written.

    The suggestion, for learningRate.peak, is a tenth of the rate at which the loss diverges: where it has come back
    by half of its fall. If it does not diverge, it is the rate at which the loss falls most steeply.

    \b
    Exit codes are those of `resnetboost run`; Ctrl-C: 130.

    \b
    Examples:
      resnetboost lr-find examples/digits.yaml
      resnetboost lr-find job.yaml --stage fine --from 1e-6 --to 0.1 --steps 200
    """
    if lowest >= highest:
        raise UserError(f"--to: {highest:g} must be above --from, {lowest:g}")
    job = job_file.with_absolute_paths(job_file.load(file, assignments))
    config = _config(job, stage)
    trainer.check_installed("lr-find")
    folder = (out or Path("lr-finds") / job["metadata"]["name"]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        words, range_ = [str(folder / CONFIG), str(folder / RESULT)], {"from": lowest, "to": highest}
        if code := trainer.run("lr-find", words, steps=steps, **range_):
            ctx.exit(code)
        _report(folder, f"{job['metadata']['name']}, stage {config['stage']}: {config['algorithm']}")
    except OSError as error:
        raise errors.storage_error(error) from None


def _config(job: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The trainer's config of that stage, for one rank that does the work of all. Raises `UserError`."""
    parsed = parse_job(job)
    stages = {stage.name: stage for stage in parsed.spec.stages}
    if name is not None and name not in stages:
        raise UserError(f"--stage: {name} is no stage of the job; it has {', '.join(stages)}")
    stage = stages[name] if name is not None else parsed.spec.stages[0]
    config = trainer_config(parsed, stage, 0)
    return config | ({"virtualRanks": stage.device_count} if stage.device_count > 1 else {})


def _report(folder: Path, title: str) -> None:
    """Print the curve and the suggestion, and draw the picture into the folder."""
    found = sweep.read(folder / RESULT)
    suggestion = found.suggestion()
    click.echo("\n".join([title, "", *text.curve(found), "", *text.words(suggestion), ""]))
    (folder / PICTURE).write_bytes(picture.draw(title, found, suggestion))
    click.echo(folder / PICTURE)
