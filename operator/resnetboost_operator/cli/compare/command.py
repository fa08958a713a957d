"""`resnetboost compare`: reads run folders, prints a table and draws the picture."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from resnetboost_operator import readable
from resnetboost_operator.cli.compare import text
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import comparison, comparison_picture, place, runfolder
from resnetboost_operator.runs.comparison import Run

MOST = 14  # colours, solid and dashed


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--target",
    "targets",
    type=click.FloatRange(0, 1, min_open=True),
    multiple=True,
    metavar="SHARE",
    help="Accuracy to reach, such as 0.95. Repeatable.  [default: the highest that a run reached]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("compare.png"),
    show_default=True,
    metavar="FILE",
    help="Picture: .png, .svg or .pdf.",
)
@click.option("-n", "--namespace", metavar="NAME", default="", help="Namespace of job/NAME.  [default: the context's]")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def compare(folders: tuple[Path, ...], targets: tuple[float, ...], out: Path, namespace: str, form: str) -> None:
    """Compare local runs and jobs of a cluster: accuracy, epochs and seconds to accuracies, time of a step, settings.

    RUN is a run folder, the name of one in ./runs, or job/NAME for a job of the cluster, whose curves come from the
    log of its rank 0. The picture has loss and test accuracy by step, by epoch and
    by second. Seconds are those of training steps, without starts, compiling and evaluations. A run may be training
    still.

    \b
    Examples:
      resnetboost compare digits digits-thor
      resnetboost compare job/digits job/digits-thor digits -n team-a
      resnetboost compare runs/momentum runs/thor --target 0.9 --target 0.95 --out compare.svg
    """
    picture = _format(out)
    runs = _read(_named(folders), namespace)
    _check_measured(runs)
    chosen = comparison.targets(runs, targets)
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(text.summary(runs, chosen))).decode())
    else:
        text.show(console(standard_output()), runs, chosen)
    runfolder.write(out, _drawn(runs, picture))
    if form == "text":
        click.echo(out)


def _read(named: Sequence[tuple[str, Path]], namespace: str) -> list[Run]:
    """The runs, in their order; what is missing of jobs goes to standard error."""
    from resnetboost_operator.cli.compare import cluster

    targets = [str(path) for _, path in named if _is_job(path)]
    if namespace and not targets:
        raise UserError(f"-n: {namespace} is for jobs of a cluster; write job/NAME for one, or leave it out")
    jobs: dict[str, cluster.Found] = {}

    async def read_jobs() -> None:
        async with cluster.connected(namespace) as found:
            for target in targets:
                jobs[target] = await found.read(target)

    if targets:
        asyncio.run(read_jobs())
    for job in jobs.values():
        for sentence in job.missing:
            print(f"resnetboost: {readable.printable(sentence)}", file=sys.stderr, flush=True)
    return [
        jobs[str(path)].run if _is_job(path) else comparison.read(runfolder.open_existing(path), name)
        for name, path in named
    ]


def _is_job(path: Path) -> bool:
    """True for job/NAME, unless a run folder has this path."""
    return len(path.parts) == 2 and path.parts[0] == "job" and not (path / "job.yaml").is_file()


def _format(out: Path) -> str:
    form = out.suffix.removeprefix(".").lower()
    if form not in comparison_picture.FORMATS:
        known = ", ".join(f".{known}" for known in comparison_picture.FORMATS)
        raise UserError(f"--out: {out} has none of the extensions {known}; use one of them")
    return form


def _named(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each run's folder under the shortest name that tells it from the others. Raises `UserError`."""
    if len(folders) > MOST:
        raise UserError(f"{len(folders)} runs are more than a picture can show; compare at most {MOST}")
    paths = [Path(place.named(str(path))) for path in folders]
    names = [str(path) if _is_job(path) else path.absolute().name for path in paths]
    return [(name if names.count(name) == 1 else str(path), path) for name, path in zip(names, paths, strict=True)]


def _check_measured(runs: Sequence[Run]) -> None:
    if empty := [run.name for run in runs if not run.loss]:
        raise UserError(f"{empty[0]} has no finished step yet; compare it later, or leave it out")


def _drawn(runs: Sequence[Run], form: str) -> bytes:
    try:
        return comparison_picture.draw(runs, form)
    except ImportError as error:
        raise UserError(f"a picture needs {error.name}; pip install {error.name}") from None
